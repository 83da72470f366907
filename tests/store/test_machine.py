"""Memory is the model: whatever is played, SQLite and Postgres answer alike and keep the same lanes."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from kubeharness.core import transitions
from kubeharness.store.conformance import Subject
from kubeharness.store.verify import verify
from store.machine import StoreMachine, slow_failures
from store.subjects import postgres_subject, sqlite_subject

pytestmark = pytest.mark.timeout(180)  # 10 s on an idle machine
BOUNDED = settings(
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


async def _play(subject: Subject, *, real_clock: bool, examples: int) -> None:
    """Hypothesis runs on a thread of its own, the stores in this loop."""

    class Machine(StoreMachine):
        loop = asyncio.get_running_loop()
        other = subject

    Machine.real_clock = real_clock
    bounded = settings(BOUNDED, max_examples=examples)
    await asyncio.to_thread(run_state_machine_as_test, Machine, settings=bounded)

    assert await verify(subject.store) == []


@pytest.fixture(autouse=True)
def slow_failure_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "failure_delay_ms", slow_failures)


async def test_sqlite_answers_as_memory_does(tmp_path: Path) -> None:
    async with sqlite_subject(tmp_path / "harness.db") as subject:
        await _play(subject, real_clock=False, examples=40)


async def test_postgres_answers_as_memory_does(postgres_url: str) -> None:
    async with postgres_subject(postgres_url) as subject:
        await _play(subject, real_clock=True, examples=25)
