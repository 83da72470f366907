"""The suite notices what it is there for: each broken store fails it, on the invariant that it breaks."""

import asyncio

import pytest

from kubeharness.store.conformance import CASES, run_case
from store.saboteurs import SABOTAGES, Sabotage
from store.subjects import MemorySubject


async def _broken_promises(subject: MemorySubject, invariant: str) -> list[str]:
    failed = []
    for case in CASES:
        if case.invariant == invariant:
            try:
                async with asyncio.timeout(10):
                    await run_case(case, subject)
            except (AssertionError, ExceptionGroup) as broken:
                failed.append(f"{case.name}: {broken}")
    return failed


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=str)
async def test_the_suite_fails(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, broken in sabotage.patches:
        monkeypatch.setattr(owner, name, broken)

    assert await _broken_promises(sabotage.subject(), sabotage.invariant)


async def test_an_honest_store_passes_where_sabotaged_ones_fail() -> None:
    for invariant in {sabotage.invariant for sabotage in SABOTAGES}:
        assert await _broken_promises(MemorySubject(), invariant) == []
