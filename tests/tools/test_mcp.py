"""MCP over streamable HTTP: a real server, and a wire that misbehaves as told."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kubeharness.core.errors import ToolServerUnreachable
from kubeharness.core.messages import ToolCall, ToolDefinition, ToolResult
from kubeharness.tools.mcp import MAX_IMAGE_CHARACTERS, MCPConnection, discover
from kubeharness.tools.mcp_body import MAX_RESPONSE_BYTES, healed
from kubeharness.tools.mcp_wire import CALL_KEY
from kubeharness.tools.tasks import OwnedTasks
from kubeharness.tools.toolbox import Tool, Toolbox
from support.everything import Everything, free_port, running_everything
from support.mcpwire import MCPWire, failure, result, said
from support.rawwire import HANG, RESET, Answer, raw_wire


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with running_everything(tmp_path_factory.mktemp("everything")) as server:
        yield server


@asynccontextmanager
async def connection(url: str, headers: dict[str, str] | None = None, **options: Any) -> AsyncIterator[MCPConnection]:
    async with asyncio.timeout(20), OwnedTasks() as tasks:
        opened = MCPConnection("s", url, headers or {}, tasks, **options)
        yield opened
        if leaving := opened.close():
            await asyncio.wait([leaving], timeout=3)


async def call(wire: MCPWire, **options: Any) -> ToolResult:
    async with raw_wire(wire) as served, connection(served.url, **options) as opened:
        return await opened.call("t", {}, "k")


# --- the real server ---------------------------------------------------------------------------------------------


async def test_the_tools_of_a_server_are_discovered(everything: Everything) -> None:
    entries = {entry.name: entry for entry in await discover(everything.url, {})}

    assert {"echo", "get-sum", "trigger-long-running-operation"} <= set(entries)
    assert entries["echo"].description
    assert entries["echo"].input_schema["required"] == ["message"]


async def test_a_call_comes_back_with_its_text(everything: Everything) -> None:
    async with connection(everything.url) as opened:
        assert await opened.call("echo", {"message": "n-17"}, "k") == ToolResult("Echo: n-17")


async def test_an_error_of_the_tool_is_an_error_result(everything: Everything) -> None:
    async with connection(everything.url) as opened:
        wrong = await opened.call("get-sum", {"a": "x"}, "k1")
        missing = await opened.call("nope", {}, "k2")

    assert wrong.is_error
    assert missing.is_error
    assert "nope" in missing.content


async def test_calls_run_in_parallel_over_one_session(everything: Everything) -> None:
    async with connection(everything.url) as opened:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            slow = [
                group.create_task(opened.call("trigger-long-running-operation", {"duration": 0.5, "steps": 1}, f"k{n}"))
                for n in range(4)
            ]
            echoes = [group.create_task(opened.call("echo", {"message": str(n)}, f"e{n}")) for n in range(8)]

    assert [task.result().content for task in echoes] == [f"Echo: {n}" for n in range(8)]
    assert not any(task.result().is_error for task in slow)
    assert time.monotonic() - began < 1.9


async def test_images_resources_and_structured_content(everything: Everything) -> None:
    async with connection(everything.url) as opened:
        image = await opened.call("get-tiny-image", {}, "k1")
        structured = await opened.call("get-structured-content", {"location": "New York"}, "k2")
        links = await opened.call("get-resource-links", {"count": 1}, "k3")

    assert image.image_data_url is not None
    assert image.image_data_url.startswith("data:image/png;base64,")
    assert "[image, image/png]" in image.content
    assert structured.data is not None
    assert json.loads(structured.content) == structured.data
    assert "[resource demo://resource/" in links.content


async def test_a_restarted_server_is_met_with_a_new_session_and_one_repeat_c37(tmp_path: Path) -> None:
    port = free_port()
    async with connection(f"http://127.0.0.1:{port}/mcp") as opened:
        with running_everything(tmp_path, port):
            first = await opened.call("echo", {"message": "one"}, "k1")
        with running_everything(tmp_path, port):
            second = await opened.call("echo", {"message": "two"}, "k2")
            third = await opened.call("echo", {"message": "three"}, "k3")

    assert [first.content, second.content, third.content] == ["Echo: one", "Echo: two", "Echo: three"]


async def test_a_server_that_was_down_is_used_again_when_it_is_up(tmp_path: Path) -> None:
    port = free_port()
    async with connection(f"http://127.0.0.1:{port}/mcp") as opened:
        with pytest.raises(ToolServerUnreachable):
            await opened.call("echo", {"message": "one"}, "k1")
        with running_everything(tmp_path, port):
            assert (await opened.call("echo", {"message": "two"}, "k2")).content == "Echo: two"
        with pytest.raises(ToolServerUnreachable):
            await opened.call("echo", {"message": "three"}, "k3")
        with running_everything(tmp_path, port):
            assert (await opened.call("echo", {"message": "four"}, "k4")).content == "Echo: four"


async def test_a_dead_port_is_told_at_once() -> None:
    began = time.monotonic()

    with pytest.raises(ToolServerUnreachable, match=r"tool server 'dead' is not reachable: ConnectError"):
        await discover("http://127.0.0.1:9/mcp", {}, server="dead")
    assert time.monotonic() - began < 2


# --- a wire that misbehaves --------------------------------------------------------------------------------------


async def test_headers_and_the_call_key_are_sent() -> None:
    wire = MCPWire()
    async with raw_wire(wire) as served, connection(served.url, {"authorization": "Bearer secret-1"}) as opened:
        await opened.call("t", {"a": 1}, "sub_1:1.1.1.0")

    assert all(request.headers["authorization"] == "Bearer secret-1" for request in served.requests)
    assert wire.calls[0]["params"] == {"name": "t", "arguments": {"a": 1}, "_meta": {CALL_KEY: "sub_1:1.1.1.0"}}
    assert wire.goodbyes == 1


async def test_a_lost_session_is_opened_anew_and_the_call_repeated_once_c37() -> None:
    lost = Answer([b"Session not found"], status=404, content_type="text/plain")

    def forgetful(request: dict[str, Any]) -> Answer:
        return lost if len(wire.calls) == 1 else said(request, "ok")

    wire = MCPWire(forgetful)
    assert await call(wire) == ToolResult("ok")
    assert (len(wire.calls), wire.sessions) == (2, 2)

    wire = MCPWire(lambda request: lost)
    with pytest.raises(ToolServerUnreachable):
        await call(wire)
    assert (len(wire.calls), wire.sessions) == (2, 2)


async def test_calls_that_meet_at_a_lost_session_open_one_new_one_c37() -> None:
    def forgetful(request: dict[str, Any]) -> Answer:
        return failure(request, "no such session", status=404) if len(wire.calls) <= 4 else said(request, "ok")

    wire = MCPWire(forgetful)
    async with raw_wire(wire) as served, connection(served.url) as opened, asyncio.TaskGroup() as group:
        tasks = [group.create_task(opened.call("t", {}, f"k{n}")) for n in range(4)]

    assert [task.result().content for task in tasks] == ["ok"] * 4
    assert (len(wire.calls), wire.sessions) == (8, 2)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Answer([b"bad gateway"], status=502, content_type="text/html"), id="502"),
        pytest.param(Answer([b"half", RESET], content_type="application/json"), id="reset"),
        pytest.param(Answer([b"{nonsense"], content_type="application/json"), id="no JSON"),
        pytest.param(Answer([b"bad request"], status=400, content_type="text/plain"), id="400"),
    ],
)
async def test_other_failures_are_not_repeated_and_later_calls_work_c37(broken: Answer) -> None:
    def once(request: dict[str, Any]) -> Answer:
        return broken if len(wire.calls) == 1 else said(request, "ok")

    wire = MCPWire(once)
    async with raw_wire(wire) as served, connection(served.url) as opened:
        box = Toolbox([Tool(definition=_definition(), run=lambda a, k: opened.call("t", a, k), server="s")])
        first = await box.execute(ToolCall("1", "t"))
        assert len(wire.calls) == 1
        second = await box.execute(ToolCall("2", "t"))

    assert first.is_error
    assert second == ToolResult("ok")


async def test_a_server_that_only_accepts_is_given_up_within_the_budget_c36() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    began = time.monotonic()
    async with server:
        with pytest.raises(ToolServerUnreachable, match="no list of tools within"):
            await discover(url, {}, 0.3, server="mute")
        async with connection(url, connect_seconds=0.3) as opened:
            with pytest.raises(ToolServerUnreachable, match="no handshake within"):
                await opened.call("t", {}, "k")
    assert time.monotonic() - began < 5


async def test_a_server_that_never_lists_is_given_up_within_the_budget_c36() -> None:
    async with raw_wire(MCPWire(listed=lambda request: Answer([HANG]))) as served:
        with pytest.raises(ToolServerUnreachable, match="no list of tools within"):
            await discover(served.url, {}, 0.3, server="half")


async def test_a_call_that_only_sends_keep_alives_ends_at_its_timeout_c36() -> None:
    wire = MCPWire(lambda request: Answer([b": keep-alive\n\n", 0.05] * 200))
    async with raw_wire(wire) as served, connection(served.url) as opened:
        tool = Tool(definition=_definition(), run=lambda a, k: opened.call("t", a, k), timeout_seconds=0.4)
        answer = await Toolbox([tool]).execute(ToolCall("1", "t"))
        wire.call = lambda request: said(request, "ok")
        later = await Toolbox([tool]).execute(ToolCall("2", "t"))

    assert answer.cause == "timeout"
    assert later == ToolResult("ok")


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_of_many_megabytes_is_stopped_while_reading_c18_c36(streamed: bool) -> None:
    kind = "text/event-stream" if streamed else "application/json"
    wire = MCPWire(lambda request: Answer([b"data: ", *[b"x" * 1_048_576] * 40], content_type=kind))
    answer = await call(wire)

    assert (answer.is_error, answer.cause) == (True, "too_large")
    assert str(MAX_RESPONSE_BYTES) in answer.content


async def test_what_cannot_be_stored_comes_out_clean_c12_c13() -> None:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"A\\u0000B \xc3\xa9"}]}}'
    wire = MCPWire(lambda request: Answer([body % request["id"]], content_type="application/json"))
    assert (await call(wire)).content == "A\N{REPLACEMENT CHARACTER}B é"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_lone_surrogate_in_an_answer_comes_out_clean_c13(streamed: bool) -> None:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"bad \\ud83d end"}]}}'
    kind = "text/event-stream" if streamed else "application/json"

    def once(request: dict[str, Any]) -> Answer:
        if len(wire.calls) == 1:
            whole = body % request["id"]
            whole = b"data: " + whole + b"\n\n" if streamed else whole
            return Answer([whole[n : n + 1] for n in range(len(whole))], content_type=kind)
        return said(request, "ok")

    wire = MCPWire(once)
    async with raw_wire(wire) as served, connection(served.url) as opened:
        box = Toolbox([Tool(definition=_definition(), run=lambda a, k: opened.call("t", a, k))])
        first = await box.execute(ToolCall("1", "t"))
        second = await box.execute(ToolCall("2", "t"))

    assert first == ToolResult("bad \N{REPLACEMENT CHARACTER} end")
    assert second == ToolResult("ok")


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"\ud83d\ude80", "🚀"),
        (rb"\ude80\ud83d", "\N{REPLACEMENT CHARACTER}" * 2),
        (rb"\ud83d\ud83d\ude80", "\N{REPLACEMENT CHARACTER}🚀"),
        (rb"\\ud83d \\\ud83d", "\\ud83d \\\N{REPLACEMENT CHARACTER}"),
        (rb"\ud7ff\ue000\n", "\ud7ff\ue000\n"),
    ],
)
def test_only_lone_surrogates_are_touched_c13(sent: bytes, read: str) -> None:
    assert json.loads(healed(b'"' + sent + b'"')) == read


async def test_odd_content_is_named_and_odd_data_left_out() -> None:
    big = "x" * (MAX_IMAGE_CHARACTERS + 1)
    blocks = [
        {"type": "image", "data": big, "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "x://1", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "x://2", "blob": "AAAA"}},
    ]
    wire = MCPWire(lambda request: result(request, {"content": blocks, "structuredContent": {"n": 10**30}}))
    answer = await call(wire)

    assert answer.content.split("\n") == [
        "[image, image/png, too large]",
        "[audio, audio/wav]",
        "inside",
        "[resource x://2, binary]",
    ]
    assert (answer.image_data_url, answer.data) == (None, None)


async def test_structured_content_alone_is_said_as_text() -> None:
    wire = MCPWire(lambda request: result(request, {"content": [], "structuredContent": {"a": [1]}}))

    assert await call(wire) == ToolResult('{"a":[1]}', data={"a": [1]})


async def test_results_are_not_held_against_an_output_schema_whose_pattern_hangs_c39() -> None:
    hostile = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
    tools = [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": hostile}]
    value = {"content": [], "structuredContent": {"x": "a" * 40 + "!"}}
    wire = MCPWire(lambda request: result(request, value), tools=tools)
    began = time.monotonic()

    assert (await call(wire)).data == {"x": "a" * 40 + "!"}
    assert time.monotonic() - began < 3


async def test_secrets_are_redacted_from_whatever_the_server_says_c53() -> None:
    headers = {"authorization": "Bearer CANARY-token"}

    async def answered(wire: MCPWire) -> ToolResult:
        async with raw_wire(wire) as served, connection(f"{served.url}?api_key=CANARY789", headers) as opened:
            return await opened.call("t", {}, "k")

    told = await answered(MCPWire(lambda request: said(request, "you are CANARY-token with CANARY789")))
    failed = await answered(MCPWire(lambda request: failure(request, "bad Bearer CANARY-token")))
    with pytest.raises(ToolServerUnreachable) as raised:
        await discover("http://u:CANARY456@127.0.0.1:9/mcp?api_key=CANARY789", headers, server="s")

    assert told.content == "you are [redacted] with [redacted]"
    assert failed.content == "bad [redacted]"
    assert "CANARY" not in str(raised.value)


async def test_a_server_that_pages_for_ever_is_cut_off() -> None:
    def page(request: dict[str, Any]) -> Answer:
        return result(request, {"tools": list(MCPWire.tools) * 20, "nextCursor": "more"})

    async with raw_wire(MCPWire(listed=page)) as served:
        assert len(await discover(served.url, {})) == 1_000


async def test_leaving_in_the_middle_of_a_call_is_prompt() -> None:
    wire = MCPWire(lambda request: Answer([b": wait\n\n", HANG]))
    async with raw_wire(wire) as served:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with OwnedTasks() as tasks, asyncio.timeout(0.3):
                await MCPConnection("s", served.url, {}, tasks).call("t", {}, "k")
        assert time.monotonic() - began < 1.5


def _definition() -> ToolDefinition:
    return ToolDefinition("t", "A tool.", {"type": "object"})
