"""The shapes that no well-behaved server produces, byte by byte over a real socket."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from kubeharness.core.errors import ProviderAuth, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.events import CompletionDelta
from kubeharness.core.messages import ProviderMessage
from kubeharness.core.revision import ModelSettings
from kubeharness.providers.openai_compatible import OpenAICompatibleProvider
from support.rawwire import (
    CUT,
    DONE,
    HANG,
    RESET,
    Answer,
    Answers,
    Piece,
    call,
    delta,
    raw_wire,
    sse,
    text,
    usage,
    whole,
)
from support.turns import Turn, turn_of

MODEL = ModelSettings(name="m", context_window=8000)
ONE = {"id": "a", "index": 0, "name": "read", "arguments": '{"p":1}'}


async def ask(http: httpx2.AsyncClient, answers: Answers, *, idle_seconds: float = 5, base: str = "") -> Turn:
    async with raw_wire(answers) as wire:
        provider = OpenAICompatibleProvider(
            base_url=base.format(port=wire.port) or wire.base_url,
            api_key="test-CANARY123",
            model=MODEL,
            http=http,
            idle_seconds=idle_seconds,
        )
        return await turn_of(provider, "go")


async def calls_of(http: httpx2.AsyncClient, *chunks: Any) -> list[tuple[str, Any]]:
    message = (await ask(http, [whole(*chunks, finish="tool_calls")])).message
    return [(call.name, call.raw_arguments or call.arguments) for call in message.tool_calls]


TWO = [("read", {"p": 1}), ("read", {"p": 2})]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [call('{"p":1}', index=0, id="a", name="read"), call('{"p":2}', index=0, id="b", name="read")],
            id="all with index 0",
        ),
        pytest.param([call('{"p":1}', id="a", name="read"), call('{"p":2}', id="b", name="read")], id="without index"),
        pytest.param(
            [
                call("", id="a", name="read"),
                call('{"p"'),
                call(":1}"),
                call("", id="b", name="read"),
                call('{"p"'),
                call(":2}"),
            ],
            id="fragments without id and index",
        ),
        pytest.param(
            [
                call("", index=0, id="a", name="read"),
                call("", index=1, id="b", name="read"),
                call('{"p"', index=0),
                call('{"p"', index=1),
                call(":1}", index=0),
                call(":2}", index=1),
            ],
            id="interleaved with right indexes",
        ),
        pytest.param(
            [
                call("", index=0, id="a", name="read"),
                call('{"p"', index=0),
                call(":1}", index=0),
                call("", index=0, id="b", name="read"),
                call('{"p":2}', index=0),
            ],
            id="a new id at a used index",
        ),
        pytest.param(
            [call('{"p":1}', index=0, name="read"), call('{"p":2}', index=0, name="read")], id="a name again, no ids"
        ),
        pytest.param(
            [
                call('{"p"', index=0, id="a", name="read"),
                call(":1}", index=0, id="a", name="read"),
                call('{"p":2}', index=1, id="b", name="read"),
            ],
            id="id and name on every fragment",
        ),
        pytest.param(
            [
                call('{"p"', index=0, id="a", name="read"),
                call(":1}", index=5),
                call('{"p":2}', index=6, id="b", name="read"),
            ],
            id="an index that counts fragments",
        ),
        pytest.param(
            [call('{"p":1}', index=0, id="", name="read"), call('{"p":2}', index=1, id="", name="read")],
            id="empty ids",
        ),
    ],
)
async def test_two_calls_are_told_apart_c26_c27(http: httpx2.AsyncClient, chunks: Sequence[Any]) -> None:
    assert await calls_of(http, *chunks) == TWO


async def test_a_new_id_opens_a_new_call_even_where_the_last_has_no_arguments_c27(http: httpx2.AsyncClient) -> None:
    chunks = [call("", index=0, id="a", name="ping"), call("", index=0, id="b", name="ping")]

    assert await calls_of(http, *chunks) == [("ping", {}), ("ping", {})]


async def test_empty_cut_and_odd_arguments_c31(http: httpx2.AsyncClient) -> None:
    chunks = [
        call('{"path":"a"}', index=0, id="a", name="write"),
        call("", index=1, id="b", name="ping"),
        call("[1]", index=2, id="c", name="write"),
        call('{"x": NaN}', index=3, id="d", name="write"),
        call('{"n": 123456789012345678901234567890, "s": "\\ud83d"}', index=4, id="e", name="write"),
        call('{"deep": ' + "[" * 300 + "]" * 300 + "}", index=5, id="f", name="write"),
        call('{"path":"b', index=6, id="g", name="write"),
    ]
    message = (await ask(http, [whole(*chunks, finish="length")])).message

    found = [call.raw_arguments if call.raw_arguments is not None else call.arguments for call in message.tool_calls]
    assert found[:4] == [{"path": "a"}, {}, "[1]", '{"x": NaN}']
    assert found[4] == {"n": 1.2345678901234568e29, "s": "\N{REPLACEMENT CHARACTER}"}
    assert isinstance(found[5], str)
    assert found[6] == '{"path":"b'
    assert message.stop_reason == "length"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        pytest.param([sse(text("Hel")), sse(text("lo")), CUT], "RemoteProtocolError", id="a: text, then close"),
        pytest.param([sse(text("Hel")), RESET], "ReadError|RemoteProtocolError", id="a: text, then reset"),
        pytest.param([sse(text("Hel"))], "without a finish reason", id="a: text, then a clean end"),
        pytest.param([sse(text("Hel")), DONE], "without a finish reason", id="a: done, but no reason"),
        pytest.param(
            [sse(call('{"p":1}', index=0, id="a", name="read")), CUT], "RemoteProtocolError", id="b: a whole call"
        ),
        pytest.param(
            [sse(call('{"p":1}', index=0, id="a", name="read")), DONE], "without a finish reason", id="b: and done"
        ),
        pytest.param(
            [
                *(sse(text("x")) for _ in range(10)),
                sse({"error": {"message": "Overloaded", "type": "overloaded_error"}}, event="error"),
            ],
            "Overloaded",
            id="c: error event",
        ),
        pytest.param(
            [sse(text("x")), sse({"type": "error", "message": "Overloaded"}, event="error")],
            "Overloaded",
            id="c: error event of another form",
        ),
        pytest.param([sse(text("x")), b"data: {nonsense\n\n"], "JSONDecodeError", id="c: broken chunk"),
    ],
)
async def test_a_stream_without_its_end_is_a_dead_try_c35(
    http: httpx2.AsyncClient, pieces: Sequence[Piece], why: str
) -> None:
    with pytest.raises(ProviderTransient, match=why):
        await ask(http, [Answer(pieces)])


@pytest.mark.parametrize("last", [[b'data: {"choices":[],"usa', CUT], [CUT], [RESET], [b"data: {nonsense\n\n"]])
async def test_what_breaks_after_the_stop_reason_is_no_loss_c35(
    http: httpx2.AsyncClient, last: Sequence[Piece]
) -> None:
    turn = await ask(http, [Answer([sse(text("whole")), sse(delta("stop")), *last])])

    assert (turn.message.content, turn.message.stop_reason) == ("whole", "stop")


@pytest.mark.parametrize("last", [[sse(usage(7, 3)), DONE, HANG], [DONE, HANG], [HANG]])
async def test_a_server_that_holds_the_line_after_the_end_is_left_c35(
    http: httpx2.AsyncClient, last: Sequence[Piece]
) -> None:
    began = time.monotonic()
    turn = await ask(http, [Answer([sse(text("whole")), sse(delta("stop")), *last])], idle_seconds=30)

    assert turn.message.content == "whole"
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("finish", "fields", "stop"),
    [
        ("length", {}, "length"),
        ("content_filter", {}, "content_filter"),
        ("stop", {"refusal": "I will not."}, "refusal"),
        ("something_new", {}, "other"),
    ],
)
async def test_every_end_has_its_stop_reason_c35(
    http: httpx2.AsyncClient, finish: str, fields: dict[str, Any], stop: str
) -> None:
    message = (await ask(http, [whole(text("so "), delta(**fields), finish=finish)])).message

    assert message.stop_reason == stop
    assert message.content == "so " + fields.get("refusal", "")


async def test_a_page_under_status_200_is_transient_c35(http: httpx2.AsyncClient) -> None:
    page = Answer([b"<html>test-CANARY123 is down for maintenance</html>"], content_type="text/html")

    with pytest.raises(ProviderTransient, match=r"HTTP 200 with 'text/html' .*\[redacted\] is down"):
        await ask(http, [page])


async def test_an_error_under_status_200_is_what_it_says(http: httpx2.AsyncClient) -> None:
    body = json.dumps({"error": {"message": "prompt is too long", "type": "invalid_request_error"}}).encode()

    with pytest.raises(ProviderOverflow):
        await ask(http, [Answer([body], content_type="application/json")])


async def test_a_server_that_does_not_stream_is_understood(http: httpx2.AsyncClient) -> None:
    choice = {"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}).encode()
    turn = await ask(http, [Answer([body], content_type="application/json")])

    assert turn.deltas == ["all at once"]
    assert turn.message.stop_reason == "stop"


async def test_characters_split_over_writes_stay_whole_c30(http: httpx2.AsyncClient) -> None:
    said = '{"text":"Ö🚀家👩‍👩‍👧"}'
    chunks = [sse(text(said)), sse(text("!")), sse(delta("stop")), DONE]
    raw = b"".join(chunks).replace(b"\n", b"\r\n")
    unescaped = f"data: {json.dumps(text(said), ensure_ascii=False)}\r\n\r\n".encode() + raw
    turn = await ask(http, [Answer([bytes([byte]) for byte in unescaped])])

    assert turn.message.content == f"{said}{said}!"
    assert "".join(turn.deltas) == turn.message.content


async def test_a_surrogate_pair_over_two_chunks_is_one_character_c30(http: httpx2.AsyncClient) -> None:
    halves = [text("a\ud83d"), text("\ude80b"), text("\ud83d"), delta(reasoning_content="c\ud83d"), text("\ude80")]
    turn = await ask(http, [whole(*halves)])

    assert turn.deltas == ["a", "🚀b", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"]
    assert turn.message.content == "".join(turn.deltas)
    assert turn.reasoning == "c\N{REPLACEMENT CHARACTER}"


async def test_only_real_line_ends_end_a_line_c25(http: httpx2.AsyncClient) -> None:
    said = "a\rb\r\nc\nid: 999\nevent: x\ndata: {}\n\nd\u2028e\u2029f\u0085g\u000bh"
    frame = f"data: {json.dumps(text(said), ensure_ascii=False)}\n\n".encode()
    turn = await ask(http, [Answer([frame, sse(delta("stop")), DONE])])

    assert turn.message.content == said


async def test_nul_and_lone_surrogates_come_out_clean_c12_c13(http: httpx2.AsyncClient) -> None:
    chunks = [text("x\x00y"), text("bad \ud83d end"), call('{"t":"\\u0000"}', index=0, id="a\x00", name="t\x00")]
    message = (await ask(http, [whole(*chunks, finish="tool_calls")])).message

    sign = "\N{REPLACEMENT CHARACTER}"
    assert message.content == f"x{sign}ybad {sign} end"
    assert message.tool_calls[0].arguments == {"t": sign}
    assert (message.tool_calls[0].name, message.tool_calls[0].provider_call_id) == (f"t{sign}", f"a{sign}")


@pytest.mark.parametrize(
    "quiet",
    [
        pytest.param([HANG], id="nothing"),
        pytest.param([b": keep-alive\n\n", 0.1] * 20, id="comments"),
        pytest.param([sse(delta()), 0.1] * 20, id="empty chunks"),
        pytest.param([sse({}, event="ping"), 0.1] * 20, id="pings"),
    ],
)
async def test_silence_is_a_dead_try_and_keep_alives_do_not_count(
    http: httpx2.AsyncClient, quiet: Sequence[Piece]
) -> None:
    began = time.monotonic()

    with pytest.raises(ProviderTransient, match=r"silent for 0.3 s"):
        await ask(http, [Answer([sse(text("Hel")), *quiet])], idle_seconds=0.3)
    assert time.monotonic() - began < 1.5


async def test_a_server_that_never_answers_is_a_dead_try(http: httpx2.AsyncClient) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    provider = OpenAICompatibleProvider(
        base_url=f"http://127.0.0.1:{port}/v1", api_key=None, model=MODEL, http=http, idle_seconds=0.2
    )
    async with server:
        with pytest.raises(ProviderTransient, match="silent"):
            await turn_of(provider, "go")


async def test_a_slow_stream_is_not_silent(http: httpx2.AsyncClient) -> None:
    slow = [piece for n in range(5) for piece in (sse(text(str(n))), 0.15)]
    turn = await ask(http, [Answer([*slow, sse(delta("stop")), DONE])], idle_seconds=0.4)

    assert turn.message.content == "01234"


async def test_retry_after_as_a_date_is_relative_to_the_answer_c32(http: httpx2.AsyncClient) -> None:
    headers = {"retry-after": "Wed, 21 Oct 2026 07:28:03 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    busy = Answer([b'{"error":{"message":"busy"}}'], status=529, content_type="application/json", headers=headers)

    with pytest.raises(ProviderTransient, match="HTTP 529: busy") as raised:
        await ask(http, [busy])
    assert raised.value.retry_after == 3.0


@pytest.mark.parametrize(
    ("status", "error"), [(307, ProviderFatal), (403, ProviderAuth), (413, ProviderOverflow), (502, ProviderTransient)]
)
async def test_an_error_page_is_quoted(http: httpx2.AsyncClient, status: int, error: type[Exception]) -> None:
    page = Answer([b"<html>bad test-CANARY123</html>"], status=status, content_type="text/html")

    with pytest.raises(error, match=rf"HTTP {status}: <html>bad \[redacted\]</html>"):
        await ask(http, [page])


async def test_secrets_in_the_address_are_redacted_c53(http: httpx2.AsyncClient) -> None:
    page = Answer([b"who is CANARY456 with CANARY789?"], status=400, content_type="text/plain")

    with pytest.raises(ProviderFatal) as raised:
        await ask(http, [page], base="http://127.0.0.1:{port}/v1?api_key=CANARY789&x=CANARY456")
    assert "CANARY" not in str(raised.value)


async def test_leaving_the_stream_closes_the_connection(http: httpx2.AsyncClient) -> None:
    async with raw_wire([Answer([sse(text("Hel")), HANG])]) as wire, asyncio.timeout(5):
        provider = OpenAICompatibleProvider(base_url=wire.base_url, api_key=None, model=MODEL, http=http)
        stream = provider.stream([ProviderMessage(role="user", content="go")], [])
        async for event in stream:
            if isinstance(event, CompletionDelta):
                break
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator
        await wire.left.wait()


async def test_a_call_without_key_sends_no_authorization(http: httpx2.AsyncClient) -> None:
    async with raw_wire([whole(text("hi"))]) as wire:
        for key in (None, "k"):
            provider = OpenAICompatibleProvider(base_url=f"{wire.base_url}/?v=1", api_key=key, model=MODEL, http=http)
            await turn_of(provider, "go")

    assert "authorization" not in wire.requests[0].headers
    assert wire.requests[1].headers["authorization"] == "Bearer k"
    assert wire.requests[0].path == "/v1/chat/completions?v=1"


async def test_a_connection_serves_again_after_an_answer_and_after_an_error(http: httpx2.AsyncClient) -> None:
    busy = Answer([b"busy"], status=429, content_type="text/plain")
    async with raw_wire([whole(text("hi")), busy, whole(text("hi"))]) as wire:
        provider = OpenAICompatibleProvider(base_url=wire.base_url, api_key=None, model=MODEL, http=http)
        await turn_of(provider, "go")
        with pytest.raises(ProviderTransient):
            await turn_of(provider, "go")
        await turn_of(provider, "go")

    assert len(wire.requests) == 3
    assert wire.connections == 1
