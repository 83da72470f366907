"""What a model's wire can do to a run, and what the run makes of it."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from kubeharness.core.errors import ProviderAuth, Unavailable
from kubeharness.core.events import CompletionDelta, CompletionEnd, CompletionStart, ProviderEvent
from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ProviderMessage, TextPart, ToolDefinition
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    AssistantMessageStarted,
    AssistantToolCall,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
)
from kubeharness.core.revision import Durability, SecretKeyRef
from support.house import House, calls, rule, tool, until

KEY = SecretKeyRef(name="openai", key="token")


def transient(**more: object) -> JsonObject:
    return {"error": {"kind": "Transient", "message": "529 overloaded", **more}}  # type: ignore[dict-item]


async def _delayed(house: House) -> bool:
    return (await house.lane()).state.value == "delayed"


async def test_a_transient_error_is_tried_again_and_the_tries_are_counted() -> None:
    script = [
        rule({"text": "half"}, transient(retryAfterSeconds=0), **{"try": 1}),
        rule(transient(retryAfterSeconds=0), **{"try": 2}),
        rule({"text": "whole"}),
    ]
    async with House(rules=script).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 3, 0)
        assert house.models.tries == [0, 1, 2]
        started = await house.payloads(AssistantMessageStarted)
        assert [message.try_ for message in started] == [1, 3]
        [aborted] = await house.payloads(AssistantMessageAborted)
        assert aborted.reason is AbortReason.STREAM_BROKEN
        assert "half" not in [text for _, text in house.said()]


async def test_retry_after_is_honoured_while_the_lane_holds_no_worker_c32() -> None:
    script = [rule(transient(retryAfterSeconds=0.5), contains="go", **{"try": 1}), rule({"text": "ok"})]
    async with House(rules=script).open() as house:
        began = asyncio.get_running_loop().time()
        submission = await house.dispatch("go")
        await until(lambda: _delayed(house))
        lane = await house.lane()
        await until(lambda: house.working[0].coordinator.held == 0)
        other = await house.settled(await house.dispatch("other", session="two"))
        ended = await house.settled(submission)
        took = asyncio.get_running_loop().time() - began

        assert (lane.counters.failures, lane.last_error) == (0, "529 overloaded")
        assert lane.not_before is not None
        assert other.status is ended.status is SettledStatus.SUCCEEDED
        assert took >= 0.5


async def test_a_back_off_that_names_no_time_is_short_and_jittered() -> None:
    script = [rule(transient(), **{"try": 1}), rule({"text": "ok"})]
    async with House(rules=script).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED


async def test_when_the_retries_are_used_up_the_run_fails_with_the_providers_words_c32() -> None:
    script = [rule(transient(retryAfterSeconds=0))]
    async with House(rules=script, durability=Durability(model_retries=2)).open() as house:
        ended = await house.ask("go")

        assert (ended.error_code, ended.error) == (SettledCode.RUN_FAILED, "529 overloaded")
        assert len(house.models.requests) == 3
        assert (ended.attempts, ended.failures) == (3, 0)


async def test_a_refused_key_is_read_again_once_and_may_have_been_rotated() -> None:
    async def stream(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        if house.models.keys[-1] != "new":
            house.secrets.values["openai", "token"] = "new"
            raise ProviderAuth("401 bad key")
        yield CompletionStart()
        yield CompletionDelta("ok")
        yield CompletionEnd(ProviderMessage("assistant", "ok", parts=(TextPart("ok"),), stop_reason="stop"), 0)

    async with House(stream=stream, api_key=KEY).open() as house:
        house.secrets.values["openai", "token"] = "old"
        ended = await house.ask("go")

        assert (ended.status, ended.attempts) == (SettledStatus.SUCCEEDED, 1)
        assert house.models.keys == ["old", "new"]
        assert house.secrets.fresh[-1] is True


async def test_a_key_that_stays_refused_fails_the_run_and_names_secret_and_key() -> None:
    async with House(rules=[rule({"error": {"kind": "Auth", "message": "401"}})], api_key=KEY).open() as house:
        house.secrets.values["openai", "token"] = "s3cr3t-value"
        ended = await house.ask("go")

        assert ended.error_code is SettledCode.RUN_FAILED
        assert "default/openai" in (ended.error or "")
        assert "'token'" in (ended.error or "")
        assert "s3cr3t-value" not in (ended.error or "")
        assert len(house.models.requests) == 2


async def test_an_overflow_and_a_window_too_small_end_the_run() -> None:
    overflow = [
        rule({"error": {"kind": "Overflow", "message": "too many tokens"}}, contains="go"),
        rule({"text": "ok"}),
    ]
    async with House(rules=overflow, window=100).open() as house:
        refused = await house.ask("go")
        large = await house.ask("x" * 1000)

        assert (refused.error_code, refused.error) == (SettledCode.CONTEXT_TOO_LARGE, "too many tokens")
        assert large.error_code is SettledCode.CONTEXT_TOO_LARGE
        assert "contextWindow is 100" in (large.error or "")
        assert len(house.models.requests) == 1


async def test_a_stream_without_an_end_is_tried_again_and_its_call_is_not_run_c35() -> None:
    ran: list[str] = []

    async def look(arguments: JsonObject) -> str:
        ran.append("once")
        return "seen"

    script = [
        rule({"text": "partial"}, *calls("look"), {"end": "Cut"}, turn=1, **{"try": 1}),
        rule(*calls("look"), turn=1),
        rule({"text": "ok"}),
    ]
    async with House(rules=script, tools=[tool("look", look)]).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)
        assert ran == ["once"]
        [aborted] = await house.payloads(AssistantMessageAborted)
        assert (aborted.turn_id, aborted.reason) == ("1.1.1", AbortReason.STREAM_BROKEN)
        assert [call.call_id for call in await house.payloads(AssistantToolCall)] == ["1.2.1.0"]


@pytest.mark.parametrize(("end", "code"), [("Length", SettledCode.RUN_FAILED), ("Refusal", SettledCode.REFUSED)])
async def test_a_cut_or_refused_answer_is_never_a_success_c35(end: str, code: SettledCode) -> None:
    async with House(rules=[rule({"text": "The answer is"}, {"end": end}, {"usage": {"input": 1}})]).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.error_code) == (SettledStatus.FAILED, code)
        assert "assistant_message_completed" in await house.kinds()
        assert await house.payloads(AssistantMessageAborted) == []


async def test_a_missing_secret_delays_the_lane_until_it_is_there() -> None:
    async with House(rules=[rule({"text": "ok"})], api_key=KEY).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _delayed(house))
        lane = await house.lane()
        written = await house.kinds()
        house.secrets.values["openai", "token"] = "here"
        house.store_clock.ahead_ms += 3000
        ended = await house.settled(submission)

        assert lane.counters.failures == 0
        assert lane.last_error == "Secret default/openai key 'token' does not exist"
        assert written == []
        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)


async def test_an_api_server_that_does_not_answer_for_a_secret_is_nobodys_failure() -> None:
    async with House(rules=[rule({"text": "ok"})], api_key=KEY).open() as house:
        house.secrets.fails = [Unavailable("the API server did not answer")]
        house.secrets.values["openai", "token"] = "here"
        submission = await house.dispatch("go")
        await until(lambda: _delayed(house))
        lane = await house.lane()
        house.store_clock.ahead_ms += 3000
        ended = await house.settled(submission)

        assert lane.counters.failures == 0
        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)


async def test_a_provider_that_breaks_in_a_way_of_its_own_spends_the_budget_with_growing_delay_c06() -> None:
    async def breaks(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        yield CompletionStart()
        raise ZeroDivisionError("of its own")

    delays: list[int] = []
    async with House(stream=breaks, durability=Durability(max_attempts=3)).open() as house:
        submission = await house.dispatch("boom")
        while len(delays) < 2:
            await until(lambda: _delayed(house))
            lane = await house.lane()
            assert lane.not_before is not None
            delays.append(lane.not_before - house.store_clock())
            house.store_clock.ahead_ms += delays[-1]
            await until(partial(_after, house, lane.claim))
        ended = await house.settled(submission)

        assert [math.ceil(delay / 1000) for delay in delays] == [1, 2]
        assert ended.error_code is SettledCode.ATTEMPT_BUDGET_EXHAUSTED
        assert (ended.attempts, ended.failures) == (3, 3)
        assert "ZeroDivisionError: of its own" in (ended.error or "")
        assert len(await house.payloads(AssistantMessageAborted)) == 3


async def _after(house: House, claim: int) -> bool:
    lane = await house.lane()
    return lane.claim != claim


async def test_a_provider_that_gives_up_its_own_scope_counts_as_a_failure_and_not_as_a_lost_worker() -> None:
    async def gives_up(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        yield CompletionStart()
        raise asyncio.CancelledError

    async with House(stream=gives_up, durability=Durability(max_attempts=1)).open() as house:
        ended = await house.ask("boom")

        assert (ended.error_code, ended.failures) == (SettledCode.ATTEMPT_BUDGET_EXHAUSTED, 1)
        assert len(await house.payloads(SubmissionSettled)) == 1
