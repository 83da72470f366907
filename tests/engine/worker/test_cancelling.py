"""Cancel, wherever the submission stands; and the end of its lifetime."""

import asyncio

import pytest

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
from kubeharness.engine import batch
from support.house import House, calls, rule, tool, until


async def _is(house: House, state: str) -> bool:
    return (await house.lane()).state.value == state


async def test_cancelled_while_streaming_the_message_is_aborted_and_nothing_follows() -> None:
    async with House(rules=[rule({"text": "a very long answer" * 100})], chunk_delay_ms=10).open() as house:
        submission = await house.dispatch("go")

        async def streamed() -> bool:
            return "assistant_text_delta" in [record.kind for record in await house.records()]

        await until(streamed)
        at_once = await house.cancel(submission)
        ended = await house.settled(submission)

        assert not at_once
        assert (ended.error_code, ended.error) == (SettledCode.CANCELLED, "cancelled: no more")
        [aborted] = await house.payloads(AssistantMessageAborted)
        assert aborted.reason is AbortReason.CANCELLED
        assert (await house.records())[-1].kind == "submission_settled"


async def test_cancelled_inside_a_tool_the_call_is_closed_and_the_tool_stopped() -> None:
    stopped: list[str] = []

    async def hangs(arguments: JsonObject) -> str:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append("yes")
        return "never"

    alone = tool("hangs", hangs, sequential=True)
    async with House(rules=[rule(*calls("hangs", "hangs"))], tools=[alone]).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _has_calls(house))
        await house.cancel(submission)
        ended = await house.settled(submission)

        assert ended.error_code is SettledCode.CANCELLED
        assert [(o.content, o.cause) for o in await house.payloads(ToolOutcome)] == [
            ("cancelled, may have run", OutcomeCause.CANCELLED),
            ("cancelled, was not run", OutcomeCause.CANCELLED),
        ]
        assert stopped == ["yes"]


async def _has_calls(house: House) -> bool:
    return (await house.lane()).open_calls > 0


async def test_cancelled_in_the_queue_it_never_runs_and_the_next_does() -> None:
    go = asyncio.Event()

    async def holds(arguments: JsonObject) -> str:
        await go.wait()
        return "ok"

    script = [rule(*calls("holds"), contains="first", turn=1), rule({"text": "re {{input}}"})]
    async with House(rules=script, tools=[tool("holds", holds)]).open() as house:
        first, second, third = [await house.dispatch(body) for body in ("first", "second", "third")]
        await until(lambda: _has_calls(house))
        at_once = await house.cancel(second)
        go.set()
        ended = [await house.settled(submission) for submission in (first, second, third)]

        assert at_once
        assert [end.status for end in ended] == [
            SettledStatus.SUCCEEDED,
            SettledStatus.FAILED,
            SettledStatus.SUCCEEDED,
        ]
        assert ended[1].attempts == 0
        assert "second" not in [text for request in house.models.requests for text in [request[-1].content]]


async def test_cancelled_while_delayed_it_settles_at_once() -> None:
    script = [rule({"error": {"kind": "Transient", "message": "busy", "retryAfterSeconds": 60}})]
    async with House(rules=script).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _is(house, "delayed"))
        at_once = await house.cancel(submission)
        ended = await house.settled(submission)

        assert at_once
        assert (ended.error_code, ended.attempts) == (SettledCode.CANCELLED, 1)
        assert len(house.models.requests) == 1


async def test_a_cancel_flag_that_a_dead_worker_left_is_settled_by_the_next_claim_without_running() -> None:
    async with House(rules=[rule({"text": "ok"})], workers=0).open() as house:
        submission = await house.dispatch("go")
        dead = await house.claim_by_hand()
        await dead.hear()
        await dead.start()
        await house.cancel(submission)
        house.store_clock.ahead_ms = 120_000
        await house.store.reap()
        house.start_worker()
        ended = await house.settled(submission)

        assert (ended.error_code, ended.error) == (SettledCode.CANCELLED, "cancelled: no more")
        assert house.models.requests == []


async def test_a_lifetime_that_ends_while_a_tool_runs_cancels_the_tool() -> None:
    async def hangs(arguments: JsonObject) -> str:
        await asyncio.sleep(60)
        return "never"

    async with House(rules=[rule(*calls("hangs"))], tools=[tool("hangs", hangs)], lifetime_ms=300).open() as house:
        ended = await house.ask("go")

        assert ended.error_code is SettledCode.TIMEOUT_EXCEEDED
        [outcome] = await house.payloads(ToolOutcome)
        assert (outcome.cause, outcome.content) == (OutcomeCause.TIMEOUT, "timeout, may have run")


async def test_a_tool_that_ignores_its_cancel_does_not_hold_the_settlement_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CLOSE_SECONDS", 0.05)
    let_go = asyncio.Event()

    async def stubborn(arguments: JsonObject) -> str:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        return "late"

    script = [rule(*calls("stubborn"), contains="first"), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("stubborn", stubborn)]).open() as house:
        first = await house.dispatch("first")
        await until(lambda: _has_calls(house))
        await house.cancel(first)
        ended = await house.settled(first)
        second = await house.ask("second")
        let_go.set()

        assert ended.error_code is SettledCode.CANCELLED
        assert second.status is SettledStatus.SUCCEEDED
        [outcome] = await house.payloads(ToolOutcome)
        assert outcome.content == "cancelled, may have run"
        assert len(await house.payloads(SubmissionSettled)) == 2
