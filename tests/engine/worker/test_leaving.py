"""Leaving a lane: drained at a seam or where the run stands, or because another took it; and the two seams."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.core.json import JsonObject
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    OutcomeCause,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
)
from kubeharness.core.revision import Durability
from kubeharness.engine.ports import Append, Loaded, Release
from kubeharness.engine.seams import EngineEvent, Next, Operation, Seams
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from support.house import House, calls, rule, tool, until


async def _has_calls(house: House) -> bool:
    return (await house.lane()).open_calls > 0


async def _streamed(house: House) -> bool:
    return "assistant_text_delta" in [record.kind for record in await house.records()]


async def test_a_drained_worker_hands_over_at_the_seam_and_another_goes_on() -> None:
    go = asyncio.Event()

    async def waits(arguments: JsonObject) -> str:
        await go.wait()
        return "waited"

    script = [rule(*calls("waits"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("waits", waits)]).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _has_calls(house))
        house.working[0].services.draining.set()
        go.set()
        await house.working[0].drain()
        lane = await house.lane()
        house.start_worker()
        ended = await house.settled(submission)

        assert (lane.state, lane.counters.failures, lane.counters.handovers) == ("ready", 0, 1)
        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 2, 0)
        assert [o.content for o in await house.payloads(ToolOutcome)] == ["waited"]
        assert await house.payloads(AssistantMessageAborted) == []


async def test_at_the_drains_end_a_running_call_may_have_run_and_the_failure_is_taken_back() -> None:
    async def hangs(arguments: JsonObject) -> str:
        await asyncio.sleep(60)
        return "never"

    script = [rule(*calls("hangs"), turn=1), rule({"text": "{{tool}}"})]
    async with House(rules=script, tools=[tool("hangs", hangs)]).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _has_calls(house))
        await house.working[0].drain()
        lane = await house.lane()
        house.start_worker()
        ended = await house.settled(submission)

        assert (lane.state, lane.counters.failures, lane.open_calls) == ("ready", 0, 0)
        assert ended.status is SettledStatus.SUCCEEDED
        [outcome] = await house.payloads(ToolOutcome)
        assert (outcome.content, outcome.cause) == ("interrupted, may have run", OutcomeCause.INTERRUPTED)


async def test_at_the_drains_end_an_open_message_is_aborted_and_the_turn_is_made_again() -> None:
    async with House(rules=[rule({"text": "a long answer " * 60})], chunk_delay_ms=5).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _streamed(house))
        await house.working[0].drain(leave_now=True)
        lane = await house.lane()
        house.chunk_delay_ms = 0
        await house.publish()
        await house.cancel(submission)
        ended = await house.settled(submission)

        assert (lane.state, lane.counters.failures, lane.open_turn) == ("ready", 0, None)
        [aborted] = await house.payloads(AssistantMessageAborted)
        assert (aborted.turn_id, aborted.reason) == ("1.1.1", AbortReason.ATTEMPT_DIED)
        assert ended.error_code is SettledCode.CANCELLED


async def test_an_outcome_that_is_on_its_way_at_the_drains_end_is_kept_and_the_lane_handed_over() -> None:
    """The write is cancelled in flight: the ledger must be known from what was stored, not from who awaited it."""

    class Slow(TransactionalStore):
        hold: asyncio.Event | None = None

        async def execute(self, items: Sequence[object]) -> list[object]:  # type: ignore[override]
            done = await super().execute(items)  # type: ignore[arg-type]
            item = items[0]
            if self.hold is not None and isinstance(item, Append) and item.closed:
                hold, self.hold = self.hold, None
                stored.set()
                await hold.wait()
            return list(done)

    stored = asyncio.Event()

    async def quick(arguments: JsonObject) -> str:
        return "done"

    script = [rule(*calls("quick"), turn=1), rule({"text": "{{tool}}"})]
    async with House(rules=script, tools=[tool("quick", quick)], wrapped=Slow).open() as house:
        assert isinstance(house.store, Slow)
        house.store.hold = asyncio.Event()
        submission = await house.dispatch("go")
        await stored.wait()
        await house.working[0].drain(leave_now=True)
        lane = await house.lane()
        house.start_worker()
        ended = await house.settled(submission)

        assert (lane.state, lane.counters.failures) == ("ready", 0)
        assert [o.content for o in await house.payloads(ToolOutcome)] == ["done"]
        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)


@pytest.mark.parametrize("inside", ["stream", "tool"])
async def test_a_worker_whose_lane_was_taken_writes_nothing_more_and_says_so_once_c05(
    inside: str, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = asyncio.Event()

    async def hangs(arguments: JsonObject) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        return "never"

    steps = calls("hangs") if inside == "tool" else [{"text": "a long answer " * 100}]
    script = [rule(*steps, turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("hangs", hangs)], chunk_delay_ms=10, lease_ms=300).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _has_calls(house) if inside == "tool" else _streamed(house))
        house.store_clock.ahead_ms = 3000
        await house.store.reap()
        house.store_clock.ahead_ms = 6000
        await house.store.sweep()
        thief = await house.claim_by_hand()
        before = await house.records()
        await until(lambda: house.working[0].coordinator.held == 0)
        after = await house.records()
        await house.cancel(submission)

        assert thief.claimed.lane.claim == 2
        assert after == before
        assert stopped.is_set() == (inside == "tool")
        lost = [record for record in caplog.records if "lost its lane" in record.getMessage()]
        assert len(lost) == 1


async def test_a_renewal_that_meets_the_settlement_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The lane is gone because it was settled: not a word about a lost lane, however often one renews."""
    async with House(rules=[rule({"text": "ok"})], lease_ms=300).open() as house:
        await house.ask("one")
        attempt = (await house.records())[-1].attempt_id
        assert attempt is not None
        for n in range(20):
            submission = await house.dispatch(f"more {n}")
            house.working[0].coordinator.rouse()
            await house.settled(submission)

    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


class Outage(TransactionalStore):
    """Reads and releases that are not answered at first."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.load_fails = 2
        self.released = 0

    async def load(self, conversation: object) -> Loaded | None:
        if self.load_fails:
            self.load_fails -= 1
            raise Unavailable("the database is away")
        return await super().load(conversation)  # type: ignore[arg-type]

    async def release(self, items: Sequence[Release]) -> Sequence[None | KubeharnessError]:
        answers = await super().release(items)
        self.released += 1
        if self.released == 1:
            raise Unavailable("the answer was lost")
        return answers


async def test_an_outage_of_the_database_is_nobodys_failure(caplog: pytest.LogCaptureFixture) -> None:
    script = [rule({"error": {"kind": "Transient", "retryAfterSeconds": 0}}, **{"try": 1}), rule({"text": "ok"})]
    async with House(rules=script, wrapped=Outage).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.failures, ended.attempts) == (SettledStatus.SUCCEEDED, 0, 2)
        assert not [record for record in caplog.records if "lost its lane" in record.getMessage()]


async def test_observers_that_raise_change_nothing_and_see_the_run() -> None:
    seen: list[str] = []

    def observe(event: EngineEvent) -> None:
        seen.append(event.name)
        raise ValueError("an observer of its own kind")

    async def quick(arguments: JsonObject) -> str:
        return "done"

    script = [rule(*calls("quick"), turn=1), rule({"text": "ok"})]
    seams = Seams(observers=[observe])
    async with House(rules=script, tools=[tool("quick", quick)], seams=seams).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert seen == [
            "submission_claimed",
            "turn_started",
            "turn_ended",
            "tool_call_started",
            "tool_call_ended",
            "turn_started",
            "delta",
            "turn_ended",
            "submission_settled",
        ]


async def test_an_interceptor_that_aborts_counts_like_a_failure() -> None:
    async def aborts(operation: Operation, inner: Next) -> None:
        raise PermissionError("not today")

    seams = Seams(interceptors=[aborts])
    async with House(rules=[rule({"text": "ok"})], seams=seams, durability=Durability(max_attempts=1)).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _delayed(house))
        lane = await house.lane()
        await house.cancel(submission)

        assert (lane.counters.failures, lane.last_error) == (2, "PermissionError: not today")
        assert house.models.requests == []


async def test_an_interceptor_that_ends_early_without_a_word_does_not_leave_the_lane_to_the_reaper() -> None:
    aborted: list[str] = []

    async def swallows(operation: Operation, inner: Next) -> None:
        if not aborted:
            aborted.append(operation.kind)
            return
        await inner()

    async with House(rules=[rule({"text": "ok"})], seams=Seams(interceptors=[swallows])).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 2, 1)
        assert len(await house.payloads(SubmissionSettled)) == 1


async def _delayed(house: House) -> bool:
    return (await house.lane()).state.value == "delayed"


async def test_a_claim_that_breaks_does_not_end_what_runs_here(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(TransactionalStore):
        broken = 2

        async def claim(self, **more: object) -> object:  # type: ignore[override]
            if self.broken:
                self.broken -= 1
                raise ValueError("a row of its own kind")
            return await super().claim(**more)  # type: ignore[arg-type]

    async with House(rules=[rule({"text": "ok"})], wrapped=Breaks).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert "claim failed" in caplog.text
