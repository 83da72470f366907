"""A database that does not answer, and a process that was frozen: nobody's failure (I4, I10)."""

import pytest

from kubeharness.core.lane import LaneState
from kubeharness.core.records import SettledCode, SettledStatus
from kubeharness.engine import parting
from support.faulty import FaultyStore
from support.house import House, rule, tool, until


def faulty(house: House) -> FaultyStore:
    assert isinstance(house.store, FaultyStore)
    return house.store


async def test_what_a_lost_answer_claimed_is_handed_back_by_a_worker_that_drains() -> None:
    async with House(rules=[rule({"text": "ok"})], workers=0, wrapped=FaultyStore).open() as house:
        submission = await house.dispatch("go")
        faulty(house).plan["claim"] = ["after"]
        faulty(house).plan["held"] = ["before"]
        worker = house.start_worker()
        await until(lambda: faulty(house).calls["claim"] > 0)
        await worker.drain()
        lane = await house.lane()

        assert lane.state is LaneState.READY
        assert (lane.claim, lane.counters.failures) == (1, 0)
        assert house.models.requests == []
        house.start_worker()
        ended = await house.settled(submission)
        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)


async def test_an_outage_while_a_run_ends_is_waited_for_and_costs_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "ENDING_SECONDS", 0.1)
    script = [rule({"error": {"kind": "Transient", "retryAfterSeconds": 0}}, **{"try": 1}), rule({"text": "ok"})]
    async with House(rules=script, chunk_delay_ms=30, chunk_characters=1, wrapped=FaultyStore).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: len(house.models.requests) == 2)
        await house.cancel(submission)
        faulty(house).plan["settle"] = ["before"] * 4
        house.working[0].coordinator.rouse()
        ended = await house.settled(submission)

        assert ended.error_code is SettledCode.CANCELLED
        assert (ended.attempts, ended.failures) == (2, 0)


async def test_a_worker_that_was_frozen_renews_before_it_reaps() -> None:
    released = False

    async def slow(arguments: object) -> str:
        await until(lambda: released)
        return "done"

    script = [rule({"toolCall": {"name": "slow", "arguments": {}}}, turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("slow", slow)], wrapped=FaultyStore, lease_ms=1500).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: faulty(house).calls["reap"] > 0 and not faulty(house).busy)  # connected for half a lease
        freeze(house, seconds=5)
        await until(lambda: faulty(house).calls["reap"] > 1)
        released = True
        ended = await house.settled(submission)

        assert (ended.attempts, ended.failures) == (1, 0)


def freeze(house: House, *, seconds: float) -> None:
    """What SIGSTOP does to a process: its own clock and the store's go on, and nothing of it ran meanwhile."""
    clock = house.clock
    monotonic = clock.monotonic
    clock.monotonic = lambda: monotonic() + seconds  # type: ignore[method-assign]
    house.store_clock.ahead_ms += int(seconds * 1000)
