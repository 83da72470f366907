"""What comes first when several things end a run: cancel, then the final answer, then a budget (I11)."""

import asyncio

import pytest

from kubeharness.core.lane import LaneState
from kubeharness.core.records import AssistantMessageAborted, SettledCode, SettledStatus
from kubeharness.core.revision import Durability
from support.faulty import FaultyStore
from support.house import House, calls, rule, tool, until


def faulty(house: House) -> FaultyStore:
    assert isinstance(house.store, FaultyStore)
    return house.store


async def test_a_logged_answer_beats_a_lifetime_that_is_over() -> None:
    async with House(lifetime_ms=5000, workers=0, wrapped=FaultyStore).open() as house:
        submission = await house.dispatch("go")
        dead = await house.claim_by_hand()
        await dead.hear()
        await dead.say("the answer")
        house.store_clock.ahead_ms = 120_000
        await house.store.reap()
        house.start_worker()
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert house.models.requests == []


async def test_an_answer_that_an_outage_holds_up_past_the_lifetime_is_a_success() -> None:
    async with House(rules=[rule({"text": "ok"})], lifetime_ms=300, wrapped=FaultyStore).open() as house:
        faulty(house).plan["settle"] = ["before"] * 8
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert faulty(house).calls["settle"] >= 8


async def test_an_answer_that_an_outage_holds_up_is_kept_when_the_worker_must_go() -> None:
    async with House(rules=[rule({"text": "ok"})], wrapped=FaultyStore).open() as house:
        faulty(house).plan["settle"] = ["before"] * 50
        submission = await house.dispatch("go")
        await until(lambda: faulty(house).calls["settle"] > 1)
        leaving = house._tasks.start(house.working[0].drain(leave_now=True))
        await asyncio.sleep(0.05)
        faulty(house).plan.clear()
        await leaving
        house.start_worker()
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert len(house.models.requests) == 1
        assert await house.payloads(AssistantMessageAborted) == []
        assert ended.failures == 0


@pytest.mark.parametrize("cancelled", [True, False])
async def test_cancel_and_budget_end_a_run_whose_revision_cannot_be_read(cancelled: bool) -> None:
    async with House(
        rules=[rule({"text": "ok"})], durability=Durability(max_attempts=10), workers=0, wrapped=FaultyStore
    ).open() as house:
        submission = await house.dispatch("go")
        faulty(house).plan["revision"] = ["gone"]
        house.start_worker()
        await until(lambda: faulty(house).calls["release"] > 0)
        if cancelled:
            await house.cancel(submission)
        while not cancelled and (lane := await house.lane()).head:
            if lane.state is LaneState.DELAYED and lane.not_before is not None:
                house.store_clock.ahead_ms += max(0, lane.not_before - house.store_clock())
            await asyncio.sleep(0.005)
        ended = await house.settled(submission)

        assert ended.error_code is (SettledCode.CANCELLED if cancelled else SettledCode.ATTEMPT_BUDGET_EXHAUSTED)
        if not cancelled:
            assert ended.error is not None
            assert "cannot be run" in ended.error


async def test_the_next_sequential_call_begins_after_the_outcome_before_it_is_durable() -> None:
    seen: list[int] = []

    async def lone(arguments: object) -> str:
        seen.append((await house.lane()).open_calls)
        return "ok"

    script = [rule(*calls("lone", "lone", "lone"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("lone", lone, sequential=True)], wrapped=FaultyStore).open() as house:
        await house.ask("go")

    assert seen == [3, 2, 1]
