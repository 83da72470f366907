"""An HTTP server that says exactly the given bytes at the given moments: for what no well-behaved server does.

async with raw_wire([Answer([sse(text("Hel")), 0.1, CUT])]) as wire:
    ...  # a provider with base_url=wire.base_url
    wire.requests[0].json()
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

CUT: Literal["cut"] = "cut"
"""The connection ends here, without the end of the body."""
RESET: Literal["reset"] = "reset"
"""The same with a TCP reset."""
HANG: Literal["hang"] = "hang"
"""Nothing more, until the client leaves."""

Piece = bytes | float | Literal["cut", "reset", "hang"]


@dataclass(frozen=True)
class Answer:
    """One response. Bytes are one HTTP chunk and one write each; a number is a pause in seconds."""

    pieces: Sequence[Piece] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What was asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body read."""
        return json.loads(self.body)


@dataclass
class RawWire:
    """A running server; `left` is set once a client has gone in the middle of an answer."""

    host: str = "127.0.0.1"
    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def base_url(self) -> str:
        """The URL before the path of chat completions."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def url(self) -> str:
        """The URL of an MCP endpoint."""
        return f"http://{self.host}:{self.port}/mcp"


Answers = Sequence[Answer] | Callable[[Request], Answer]


@asynccontextmanager
async def raw_wire(answers: Answers, *, host: str = "127.0.0.1") -> AsyncIterator[RawWire]:
    """Serve for the block: the answers in turn (the last for ever), or what a function says of each request."""
    wire = RawWire(host)
    given = list(answers) if not callable(answers) else []
    serving: dict[asyncio.StreamWriter, asyncio.Event] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = serving[writer] = asyncio.Event()
        wire.connections += 1
        try:
            while (request := await _request(reader)) is not None:
                wire.requests.append(request)
                if callable(answers):
                    answer = answers(request)
                else:
                    answer = given.pop(0) if len(given) > 1 else given[0]
                if not await _say(answer, reader, writer, wire):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            wire.left.set()
        finally:
            del serving[writer]
            writer.close()
            ended.set()

    server = await asyncio.start_server(serve, host, 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        async with asyncio.timeout(5):
            for writer, ended in list(serving.items()):
                writer.transport.abort()
                await ended.wait()


async def _request(reader: asyncio.StreamReader) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body)


async def _say(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: RawWire) -> bool:
    head = {"content-type": answer.content_type, "transfer-encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in head.items() if value)]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    for piece in answer.pieces:
        match piece:
            case bytes():
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
            case "cut" | "reset":
                if piece == RESET:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return False
            case "hang":
                await reader.read(1)  # nothing comes but the end
                wire.left.set()
                return False
            case _:
                await asyncio.sleep(piece)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


# --- frames of an OpenAI-compatible stream -----------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"


def sse(chunk: object, event: str | None = None) -> bytes:
    """A frame."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(chunk)}\n\n".encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of one choice."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(content: str) -> dict[str, Any]:
    """A chunk of visible text."""
    return delta(content=content)


def call(arguments: str | None = None, *, index: int | None = None, id: Any = None, name: str | None = None) -> Any:
    """A chunk with one fragment of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    fragment = {"index": index, "id": id, "function": {k: v for k, v in function.items() if v is not None}}
    return delta(tool_calls=[{k: v for k, v in fragment.items() if v is not None}])


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """The chunk of tokens at the end."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def whole(*chunks: dict[str, Any], finish: str = "stop") -> Answer:
    """A well-formed stream of these chunks."""
    return Answer([*(sse(chunk) for chunk in chunks), sse(delta(finish)), sse(usage(7, 3)), DONE])
