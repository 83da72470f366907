"""The mainstream shapes of the OpenAI-compatible wire, against aimock over a real socket."""

from typing import Any

import httpx2
import pytest

from kubeharness.core.errors import ProviderAuth, ProviderError, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.events import CompletionStart, ReasoningEnd, ReasoningStart
from kubeharness.core.messages import ProviderMessage, TextPart, ThinkingPart, ToolDefinition, Usage
from kubeharness.core.ports import Provider
from kubeharness.core.revision import ModelSettings
from kubeharness.providers.openai_compatible import OpenAICompatibleProvider
from support.aimock import AIMock
from support.turns import turn_of

MODEL = ModelSettings(name="gpt-test", context_window=8000, max_tokens=500, temperature=0.25)
ECHO = ToolDefinition("echo", "Echoes.", {"type": "object", "properties": {"message": {"type": "string"}}})


@pytest.fixture
def provider(aimock: AIMock, http: httpx2.AsyncClient) -> Provider:
    return OpenAICompatibleProvider(base_url=aimock.base_url, api_key="test-CANARY123", model=MODEL, http=http)


def answers(aimock: AIMock, *responses: dict[str, Any], **options: Any) -> None:
    aimock.answer(
        [{"match": {"turnIndex": n}, "response": response, **options} for n, response in enumerate(responses)]
    )


async def test_text_is_streamed_and_whole(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"content": "It is noon in Trondheim.", "usage": {"prompt_tokens": 20, "completion_tokens": 8}})
    turn = await turn_of(provider, "what time is it?")

    assert turn.events[0] == CompletionStart()
    assert len(turn.deltas) > 1
    assert "".join(turn.deltas) == turn.message.content == "It is noon in Trondheim."
    assert turn.message.parts == (TextPart("It is noon in Trondheim."),)
    assert turn.message.stop_reason == "stop"
    assert turn.message.usage == Usage(input=20, output=8)
    assert turn.message.model == "gpt-test"


async def test_the_request_says_what_the_revision_says(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"content": "yes"})
    await turn_of(
        provider,
        [ProviderMessage(role="system", content="Be kind."), ProviderMessage(role="user", content="hi")],
        [ECHO],
    )

    (entry,) = aimock.journal()
    body = entry["body"]
    assert (body["model"], body["max_tokens"], body["temperature"], body["stream"]) == ("gpt-test", 500, 0.25, True)
    assert body["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]
    assert body["tools"][0]["function"] == {"name": "echo", "description": "Echoes.", "parameters": ECHO.parameters}
    assert entry["headers"]["user-agent"].startswith("kubeharness/")


async def test_reasoning_is_told_from_text(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"content": "Noon.", "reasoning": "The sun is high."})
    turn = await turn_of(provider, "what time is it?")

    assert turn.reasoning == "The sun is high."
    assert sum(isinstance(event, ReasoningStart) for event in turn.events) == 1
    (end,) = [event for event in turn.events if isinstance(event, ReasoningEnd)]
    assert end.reasoning == "The sun is high."
    assert turn.message.parts == (ThinkingPart("The sun is high."), TextPart("Noon."))
    assert turn.message.content == "Noon."


async def test_a_call_and_its_result_make_the_round_trip(aimock: AIMock, provider: Provider) -> None:
    aimock.answer(
        [
            {"match": {"toolResultContains": "n-17"}, "response": {"content": "It said n-17."}},
            {
                "match": {"userMessage": "echo"},
                "response": {"toolCalls": [{"id": "call_x", "name": "echo", "arguments": {"message": "n-17"}}]},
            },
        ]
    )
    question = ProviderMessage(role="user", content="echo please")
    asked = (await turn_of(provider, [question], [ECHO])).message
    (call,) = asked.tool_calls
    result = ProviderMessage(role="tool", content="success: n-17", tool_call_id=call.id)
    answer = (await turn_of(provider, [question, asked, result], [ECHO])).message

    assert (call.name, call.arguments, call.provider_call_id) == ("echo", {"message": "n-17"}, "call_x")
    assert asked.stop_reason == "tool_calls"
    assert answer.content == "It said n-17."
    sent = aimock.requests()[1]["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "echo", "arguments": '{"message":"n-17"}'}
    assert sent[2] == {"role": "tool", "tool_call_id": "call_x", "content": "success: n-17"}


async def test_parallel_calls_come_in_order(aimock: AIMock, provider: Provider) -> None:
    calls = [{"name": "echo", "arguments": {"message": str(n)}} for n in range(3)]
    answers(aimock, {"content": "Three:", "toolCalls": calls})
    message = (await turn_of(provider, "three times", [ECHO])).message

    assert message.content == "Three:"
    assert [call.arguments for call in message.tool_calls] == [{"message": str(n)} for n in range(3)]
    assert len({call.id for call in message.tool_calls}) == 3


async def test_two_calls_with_one_id_are_two_calls_c26(aimock: AIMock, provider: Provider) -> None:
    calls = [{"id": "call_1", "name": "add", "arguments": {"a": n}} for n in (1, 2)]
    answers(aimock, {"toolCalls": calls}, {"content": "done"})
    question = ProviderMessage(role="user", content="add")
    asked = (await turn_of(provider, [question])).message
    results = [ProviderMessage(role="tool", content="success: ok", tool_call_id=call.id) for call in asked.tool_calls]
    await turn_of(provider, [question, asked, *results])

    assert [call.arguments for call in asked.tool_calls] == [{"a": 1}, {"a": 2}]
    assert len({call.id for call in asked.tool_calls}) == 2
    sent = aimock.requests()[1]["messages"]
    ids = [call["id"] for call in sent[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in sent[2:]] == ids


@pytest.mark.parametrize(
    ("reason", "stop"), [("length", "length"), ("content_filter", "content_filter"), ("odd", "other")]
)
async def test_the_stop_reason_is_kept_c35(aimock: AIMock, provider: Provider, reason: str, stop: str) -> None:
    answers(aimock, {"content": "half", "finishReason": reason})

    assert (await turn_of(provider, "go")).message.stop_reason == stop


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "invalid tool schema", ProviderFatal),
        (400, "This model's maximum context length is 32768 tokens", ProviderOverflow),
        (401, "Incorrect API key provided", ProviderAuth),
        (429, "slow down", ProviderTransient),
        (500, "oh no", ProviderTransient),
    ],
)
async def test_an_error_answer_is_typed_and_quoted_c33(
    aimock: AIMock, provider: Provider, status: int, message: str, error: type[ProviderError]
) -> None:
    answers(aimock, {"error": {"message": message, "type": "x"}, "status": status})

    with pytest.raises(ProviderError) as raised:
        await turn_of(provider, "go")
    assert type(raised.value) is error
    assert str(raised.value) == f"HTTP {status}: {message}"


async def test_retry_after_is_read_c32(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"error": {"message": "slow down"}, "status": 429, "retryAfter": 7})

    with pytest.raises(ProviderTransient) as raised:
        await turn_of(provider, "go")
    assert raised.value.retry_after == 7.0


async def test_the_key_is_redacted_where_the_provider_echoes_it_c53(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"error": {"message": "no such key: test-CANARY123"}, "status": 401})

    with pytest.raises(ProviderAuth) as raised:
        await turn_of(provider, "go")
    assert str(raised.value) == "HTTP 401: no such key: [redacted]"
    assert "CANARY" not in repr(raised.value.__cause__)


@pytest.mark.parametrize("broken", [{"truncateAfterChunks": 3}, {"disconnectAfterMs": 30, "latency": 20}])
async def test_a_stream_that_breaks_off_is_transient_c35(
    aimock: AIMock, provider: Provider, broken: dict[str, Any]
) -> None:
    answers(aimock, {"content": "a rather long answer that never comes to its end"}, **broken)

    with pytest.raises(ProviderTransient):
        await turn_of(provider, "go")


async def test_what_cannot_be_stored_comes_out_clean_c12(aimock: AIMock, provider: Provider) -> None:
    answers(aimock, {"content": "x\x00y", "toolCalls": [{"name": "echo", "arguments": {"message": "a\x00b"}}]})
    turn = await turn_of(provider, "go")

    assert turn.message.content == "x\N{REPLACEMENT CHARACTER}y" == "".join(turn.deltas)
    assert turn.message.tool_calls[0].arguments == {"message": "a\N{REPLACEMENT CHARACTER}b"}


async def test_a_wire_that_is_not_there_is_transient(http: httpx2.AsyncClient) -> None:
    provider = OpenAICompatibleProvider(base_url="http://127.0.0.1:9/v1", api_key=None, model=MODEL, http=http)

    with pytest.raises(ProviderTransient, match="ConnectError"):
        await turn_of(provider, "go")


@pytest.mark.parametrize("base_url", ["ftp://127.0.0.1/v1", "nonsense"])
async def test_an_address_that_can_never_work_is_fatal(http: httpx2.AsyncClient, base_url: str) -> None:
    provider = OpenAICompatibleProvider(base_url=base_url, api_key=None, model=MODEL, http=http)

    with pytest.raises(ProviderFatal):
        await turn_of(provider, "go")
