"""One suite, three stores; Postgres in the version that we ship with and in the oldest that we promise."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import pytest
import pytest_asyncio

from kubeharness.store.conformance import CASES, Case, Subject, run_case
from kubeharness.store.verify import verify
from store.subjects import memory_subject, postgres_subject, sqlite_subject
from support.postgres import TEMPLATE
from support.postgres_server import PostgresServer

STORES = ("memory", "sqlite", "postgres", "debian_postgres")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@contextmanager
def _open(name: str, request: pytest.FixtureRequest) -> Iterator[AbstractAsyncContextManager[Subject]]:
    if name == "memory":
        yield memory_subject()
    elif name == "sqlite":
        folder: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        yield sqlite_subject(folder.mktemp("conformance") / "harness.db")
    else:
        server: PostgresServer = request.getfixturevalue(f"{name}_server")
        url = server.create("conformance", template=TEMPLATE)
        yield postgres_subject(url)
        server.drop("conformance")


@pytest_asyncio.fixture(params=STORES, scope="module", loop_scope="module")
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """One database for all cases, as a running installation would have it."""
    with _open(request.param, request) as opening:
        async with opening as opened:
            yield opened


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_store_keeps(case: Case, subject: Subject) -> None:
    await run_case(case, subject)


async def test_what_the_suite_leaves_behind_is_clean(subject: Subject) -> None:
    assert await verify(subject.store) == []


async def test_each_invariant_that_a_store_can_break_has_a_case() -> None:
    named = {case.invariant for case in CASES}

    assert {f"I{n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15)} <= named


async def test_cases_are_told_apart() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)
