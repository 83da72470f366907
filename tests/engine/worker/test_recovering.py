"""A worker that finds what a dead one left: engine.md, section 11, by logs written verb by verb."""

from collections.abc import Sequence

import pytest

from kubeharness.core.ids import CallId, SubmissionId, turn_id
from kubeharness.core.json import JsonObject
from kubeharness.core.lane import CallState, OpenCall
from kubeharness.core.messages import StopReason, TextPart
from kubeharness.core.records import (
    AbortReason,
    AssistantBody,
    AssistantMessageAborted,
    AssistantMessageCompleted,
    AssistantMessageStarted,
    AssistantToolCall,
    MessagePayload,
    OutcomeCause,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.revision import Durability
from kubeharness.core.transitions import CounterChange
from kubeharness.engine.patience import only
from kubeharness.engine.ports import Append
from support.house import House, rule, tool
from support.playing import Attempt

ECHO = [rule({"text": "re {{input}}"})]


async def dies(house: House, *, at_ms: int = 120_000) -> None:
    """The lease of whoever holds the lane runs out, and its delay passes."""
    house.store_clock.ahead_ms += at_ms
    assert len(await house.store.reap()) == 1
    house.store_clock.ahead_ms += 120_000
    await house.store.sweep()


async def begun(house: House) -> tuple[SubmissionId, Attempt]:
    """A submission in the hands of a worker that has written its input."""
    submission = await house.dispatch("hello")
    attempt = await house.claim_by_hand()
    await attempt.hear()
    return submission, attempt


async def ask(attempt: Attempt, *wanted: tuple[str, CallState, bool]) -> list[CallId]:
    """A completed message that asks for tools: (name, state, idempotent)."""
    turn = turn_id(1, attempt.claimed.lane.claim, 1)
    ids = [CallId(f"{turn}.{n}") for n in range(len(wanted))]
    message = MessagePayload(body=AssistantBody(stop_reason="tool_calls"))
    drafts = [
        attempt.draft(AssistantMessageStarted(model="m"), turn=turn),
        attempt.draft(AssistantMessageCompleted(message=message), turn=turn),
    ]
    drafts += [
        attempt.draft(AssistantToolCall(call_id=id_, tool_name=name), turn=turn)
        for id_, (name, _, _) in zip(ids, wanted, strict=True)
    ]
    opened = [
        OpenCall(
            call_id=id_,
            conversation=attempt.conversation,
            submission_id=attempt.claimed.submission_id,
            tool_name=name,
            state=state,
            idempotent=idempotent,
        )
        for id_, (name, state, idempotent) in zip(ids, wanted, strict=True)
    ]
    attempt.number += 1
    item = Append(
        conversation=attempt.conversation,
        attempt=attempt.claimed.attempt,
        number=attempt.number,
        lease_ms=60_000,
        drafts=drafts,
        opened=opened,
        counters=CounterChange(steps=1),
    )
    only(await attempt.store.append([item]))
    return ids


async def answer(attempt: Attempt, text: str, stop: StopReason = "stop") -> None:
    """A completed message without calls."""
    turn = turn_id(1, attempt.claimed.lane.claim, 9)
    body = AssistantBody(parts=(TextPart(text),), stop_reason=stop)
    await attempt.write(
        attempt.draft(AssistantMessageStarted(model="m"), turn=turn),
        attempt.draft(AssistantMessageCompleted(message=MessagePayload(body=body)), turn=turn),
    )


@pytest.mark.parametrize("over", [False, True])
async def test_a_logged_answer_is_settled_without_the_model_even_past_a_budget(over: bool) -> None:
    budget = Durability(max_attempts=1 if over else 10)
    async with House(rules=ECHO, workers=0, durability=budget).open() as house:
        submission, dead = await begun(house)
        await answer(dead, "the answer")
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 2, 1)
        assert house.models.requests == []


@pytest.mark.parametrize(("stop", "code"), [("length", SettledCode.RUN_FAILED), ("refusal", SettledCode.REFUSED)])
async def test_a_logged_answer_that_was_cut_is_settled_with_its_code_c35(stop: StopReason, code: SettledCode) -> None:
    async with House(rules=ECHO, workers=0).open() as house:
        submission, dead = await begun(house)
        await answer(dead, "half an ans", stop)
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)

        assert ended.error_code is code
        assert house.models.requests == []


async def test_a_logged_answer_with_mail_goes_on() -> None:
    async with House(rules=ECHO, workers=0).open() as house:
        submission, dead = await begun(house)
        await answer(dead, "the answer")
        await house.steer("and more", via="followup")
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert [text for _, text in house.said()] == ["hello", "the answer", "and more"]
        assert len(house.models.requests) == 1


async def test_open_calls_are_run_run_again_or_interrupted_by_what_the_ledger_says_c01() -> None:
    ran: list[str] = []

    def note(name: str) -> object:
        async def run(arguments: JsonObject) -> str:
            ran.append(name)
            return f"{name} ran"

        return run

    tools = [tool(name, note(name)) for name in ("waiting", "safe", "unsafe", "ended")]  # type: ignore[arg-type]
    async with House(rules=ECHO, tools=tools, workers=0).open() as house:
        submission, dead = await begun(house)
        ids = await ask(
            dead,
            ("waiting", CallState.RECORDED, False),
            ("unsafe", CallState.STARTED, False),
            ("safe", CallState.STARTED, True),
            ("ended", CallState.STARTED, False),
        )
        await dead.outcome(ids[3], "ended ran")
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)
        again = await house.ask("again")

        assert ended.status is SettledStatus.SUCCEEDED
        assert sorted(ran) == ["safe", "waiting"]
        outcomes = await house.payloads(ToolOutcome)
        assert len(outcomes) == 4
        causes = {o.call_id: o.cause for o in outcomes}
        assert causes == {ids[0]: None, ids[1]: OutcomeCause.INTERRUPTED, ids[2]: None, ids[3]: None}
        in_order = [
            "success: waiting ran",
            "error: interrupted, may have run",
            "success: safe ran",
            "success: ended ran",
        ]
        assert again.status is SettledStatus.SUCCEEDED
        for request in house.models.requests:
            assert [message.content for message in request if message.role == "tool"] == in_order
            assert [call.id for message in request for call in message.tool_calls] == ids


async def test_an_open_message_is_aborted_once_before_anything_else_and_never_read() -> None:
    async with House(rules=ECHO, workers=0).open() as house:
        submission, dead = await begun(house)
        await dead.start()
        await dead.delta("half")
        await dies(house)
        second = await house.claim_by_hand()
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)

        assert (second.claimed.lane.claim, ended.attempts) == (2, 3)
        [aborted] = await house.payloads(AssistantMessageAborted)
        assert aborted.reason is AbortReason.ATTEMPT_DIED
        assert house.said() == [("user", "hello")]
        assert [m.body for m in await house.payloads(UserMessage)] == ["hello"]


async def test_a_budget_that_is_over_settles_without_the_model_and_closes_what_is_open_c06() -> None:
    async with House(rules=ECHO, workers=0, durability=Durability(max_attempts=2)).open() as house:
        submission, dead = await begun(house)
        await ask(dead, ("unsafe", CallState.STARTED, False), ("waiting", CallState.RECORDED, False))
        await dies(house)
        await house.claim_by_hand()
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)
        after = await house.ask("again")

        assert ended.error_code is SettledCode.ATTEMPT_BUDGET_EXHAUSTED
        assert (ended.attempts, ended.failures) == (2, 2)
        assert "the worker that ran this was lost" in (ended.error or "")
        contents = [o.content for o in await house.payloads(ToolOutcome)]
        assert contents == ["interrupted, may have run", "interrupted, was not run"]
        assert after.status is SettledStatus.SUCCEEDED
        assert len(house.models.requests) == 1


async def test_a_lifetime_that_is_over_at_the_claim_settles_without_the_model() -> None:
    async with House(rules=ECHO, workers=0, lifetime_ms=1000).open() as house:
        submission = await house.dispatch("hello")
        house.store_clock.ahead_ms += 5000
        house.start_worker()
        ended = await house.settled(submission)

        assert (ended.error_code, ended.attempts) == (SettledCode.TIMEOUT_EXCEEDED, 0)
        assert await house.kinds() == ["submission_settled"]
        assert house.models.requests == []


async def test_steps_are_not_refilled_by_a_restart() -> None:
    async def quick(arguments: JsonObject) -> str:
        return "done"

    asks: Sequence[JsonObject] = [rule({"toolCall": {"name": "quick"}})]
    budget = Durability(max_turns=3)
    async with House(rules=asks, tools=[tool("quick", quick)], workers=0, durability=budget).open() as house:
        submission, dead = await begun(house)
        [call] = await ask(dead, ("quick", CallState.STARTED, False))
        await dead.outcome(call, "done")
        await dies(house)
        house.start_worker()
        ended = await house.settled(submission)

        assert ended.error_code is SettledCode.MAX_STEPS_REACHED
        assert len(house.models.requests) == 2
        assert len(await house.payloads(SubmissionSettled)) == 1
