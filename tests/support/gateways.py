"""A gateway on a real socket, and clients that see its bytes."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from kubeharness.api import sse
from kubeharness.api.app import Gateway, create_app
from kubeharness.api.auth import Auth, Open
from kubeharness.api.server import bind, serve
from kubeharness.api.settings import ApiSettings
from kubeharness.engine.ports import Store, Waker
from kubeharness.engine.runtime import Runtime
from support.playing import WallClock

_numbers = itertools.count(1)


@dataclass
class Served:
    """A running gateway."""

    app: Gateway
    runtime: Runtime
    url: str
    port: int
    stop: asyncio.Event

    def client(self, **options: Any) -> httpx2.AsyncClient:
        """A client of it."""
        return httpx2.AsyncClient(base_url=self.url, timeout=20, **options)

    async def raw(self, request: bytes) -> bytes:
        """The answer to bytes as they stand, read to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            await writer.drain()
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def gateway(
    store: Store,
    waker: Waker,
    *,
    auth: Auth | None = None,
    settings: ApiSettings | None = None,
    poll_seconds: float = 0.2,
    drain_seconds: float = 1.0,
) -> AsyncIterator[Served]:
    """Serve until the block ends."""
    stop = asyncio.Event()
    listener = bind("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    async with Runtime.open(
        store,
        waker,
        WallClock(),
        component_id=f"gateway-{next(_numbers)}",
        framer=sse.frame,
        poll_seconds=poll_seconds,
    ) as runtime:
        app = create_app(runtime, auth or Open(), settings)
        async with asyncio.TaskGroup() as tasks:
            share = 0.6 * drain_seconds
            tasks.create_task(serve(app, listener, stop, streams_seconds=share, requests_seconds=drain_seconds - share))
            try:
                await _listening(port)
                yield Served(app, runtime, f"http://127.0.0.1:{port}", port, stop)
            finally:
                stop.set()


async def _listening(port: int) -> None:
    async with asyncio.timeout(10):
        while True:
            with socket.socket() as probe:
                probe.setblocking(False)
                try:
                    await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))
                    return
                except OSError:
                    await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Frame:
    """One event as it came over the wire."""

    id: str
    event: str
    data: str
    raw: bytes


async def frames(response: httpx2.Response, *, limit: int | None = None) -> list[Frame]:
    """The frames of a stream until it ends, or so many."""
    found: list[Frame] = []
    async for frame in each_frame(response):
        found.append(frame)
        if limit is not None and len(found) == limit:
            break
    return found


async def each_frame(response: httpx2.Response) -> AsyncIterator[Frame]:
    """Frames as they come; comments and `retry` are passed over."""
    buffer = b""
    async for chunk in response.aiter_raw():
        buffer += chunk
        while b"\n\n" in buffer:
            raw, _, buffer = buffer.partition(b"\n\n")
            frame = parsed(raw)
            if frame is not None:
                yield frame


def parsed(raw: bytes) -> Frame | None:
    """A frame by the rules of an event stream: lines end in CR, LF or CRLF only."""
    fields: dict[str, str] = {}
    lines = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    for line in lines:
        name, _, value = line.decode().partition(":")
        if name:
            assert name not in fields or name == "retry", f"a field stands twice: {raw!r}"
            fields[name] = value.removeprefix(" ")
    if "data" not in fields:
        return None
    return Frame(fields["id"], fields["event"], fields["data"], raw)
