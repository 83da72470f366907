"""Text that no database and no wire takes: stored clean, replayed clean, and sent alike in the next request."""

from collections.abc import AsyncIterator, Sequence

import pytest

from kubeharness.core.events import CompletionDelta, CompletionEnd, CompletionStart, ProviderEvent
from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ProviderMessage, TextPart, ToolCall, ToolDefinition, ToolResult
from kubeharness.core.records import (
    AssistantMessageCompleted,
    AssistantTextDelta,
    AssistantToolCall,
    OutcomeCause,
    SettledStatus,
    ToolOutcome,
    UserMessage,
)
from support.house import House, calls, rule, tool, until

BAD = "a\x00b\ud83dc"
GOOD = "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"


async def test_a_body_that_cannot_be_sent_is_heard_clean_c12_c13() -> None:
    async with House(rules=[rule({"text": "re {{input}}"})]).open() as house:
        ended = await house.ask("a\x00b")

        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)
        assert [m.body for m in await house.payloads(UserMessage)] == ["a\N{REPLACEMENT CHARACTER}b"]
        assert house.said() == [("user", "a\N{REPLACEMENT CHARACTER}b")]


@pytest.mark.parametrize("how", ["content", "data", "raised"])
async def test_a_tool_result_that_cannot_be_sent_is_read_clean_now_and_later_c12_c13(how: str) -> None:
    async def bad(arguments: JsonObject) -> ToolResult:
        if how == "raised":
            raise ValueError(BAD)
        return ToolResult(BAD, data={BAD: [BAD]} if how == "data" else None)

    script = [rule(*calls("bad"), contains="first", turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("bad", bad)]).open() as house:
        first = await house.ask("first")
        second = await house.ask("second")

        assert (first.status, second.status) == (SettledStatus.SUCCEEDED, SettledStatus.SUCCEEDED)
        [outcome] = await house.payloads(ToolOutcome)
        assert GOOD in outcome.content
        assert outcome.data == ({GOOD: [GOOD]} if how == "data" else None)
        read = [text for request in house.models.requests[1:] for role, text in _said(request) if role == "tool"]
        assert len(set(read)) == 1
        assert len(read) == 2
        assert GOOD in read[0]


async def test_what_a_model_says_and_asks_is_kept_clean_and_sent_clean_c12_c13() -> None:
    async def stream(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        yield CompletionStart()
        yield CompletionDelta(BAD[:3])
        yield CompletionDelta(BAD[3:])
        asked = ToolCall("p1", BAD, {BAD: BAD}, provider_call_id=BAD)
        first = len(messages) == 1
        yield CompletionEnd(
            ProviderMessage(
                "assistant",
                BAD,
                parts=(TextPart(BAD),),
                tool_calls=(asked,) if first else (),
                stop_reason="stop",
                model=BAD,
            ),
            0,
        )

    async with House(stream=stream).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.failures) == (SettledStatus.SUCCEEDED, 0)
        [first, _] = await house.payloads(AssistantMessageCompleted)
        assert first.message.body.parts == (TextPart(GOOD),)
        deltas = [r.payload.text for r in await house.records() if isinstance(r.payload, AssistantTextDelta)]
        assert "".join(deltas) == GOOD * 2
        [call] = await house.payloads(AssistantToolCall)
        assert (call.tool_name, call.args, call.provider_call_id) == (GOOD, {GOOD: GOOD}, GOOD)
        [outcome] = await house.payloads(ToolOutcome)
        assert outcome.cause is OutcomeCause.UNKNOWN_TOOL
        sent = house.models.requests[1][1]
        assert (sent.content, sent.tool_calls[0].name, sent.tool_calls[0].arguments) == (GOOD, GOOD, {GOOD: GOOD})


async def test_a_steered_message_that_cannot_be_sent_is_heard_clean_c12_c13() -> None:
    async with House(
        rules=[rule({"error": {"retryAfterSeconds": 60}}, contains="go"), rule({"text": "ok"})]
    ).open() as house:
        submission = await house.dispatch("go")
        await until(lambda: _delayed(house))
        await house.steer(BAD)
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert house.said()[-1] == ("user", GOOD)


def _said(request: Sequence[ProviderMessage]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in request]


async def _delayed(house: House) -> bool:
    return (await house.lane()).state.value == "delayed"
