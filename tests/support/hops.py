"""Hops that do to HTTP what misconfigured proxies do: hold back, cut what is idle, take a prefix off, compress, refuse.

Bytes are passed on as they are but for the request's first line; each connection carries one request.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True)
class Hop:
    """A proxy on loopback before one gateway."""

    gateway: str
    holds: bool = False
    """Passes an answer on when it is whole."""
    cuts_after: float | None = None
    """Ends a connection on which the gateway said nothing for so long."""
    lasts: float | None = None
    """Ends a connection that is so old, whatever it says."""
    strips: str = ""
    """The prefix that it takes off, as `/prefix`."""
    answers: bytes = b""
    """Answers this itself."""
    via: str = "1.1 test-hop"
    port: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where callers reach it."""
        return f"http://127.0.0.1:{self.port}{self.strips}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if self.answers:
                writer.write(self.answers)
                await writer.drain()
                return
            place = urlsplit(self.gateway)
            from_gateway, to_gateway = await asyncio.open_connection(place.hostname, place.port or 80)
            self._writers.add(to_gateway)
            try:
                to_gateway.write(self._request(head))
                async with asyncio.TaskGroup() as tasks:
                    up = tasks.create_task(self._up(reader, to_gateway))
                    await self._down(from_gateway, writer)
                    up.cancel()
            finally:
                self._writers.discard(to_gateway)
                to_gateway.close()
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _request(self, head: bytes) -> bytes:
        line, _, headers = head.partition(b"\r\n")
        method, target, version = line.split(b" ")
        prefix = self.strips.encode()
        if prefix and target.startswith(prefix + b"/"):
            target = target[len(prefix) :]
        kept = [one for one in headers.split(b"\r\n") if one and not one.lower().startswith(b"connection:")]
        return b"\r\n".join([b" ".join((method, target, version)), *kept, b"connection: close", b"", b""])

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if not self.holds:
            writer.close()  # the client has left

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        first = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.lasts):
                while True:
                    async with asyncio.timeout(self.cuts_after):
                        data = await reader.read(65536)
                    if not data:
                        break
                    if first:
                        line, _, rest = data.partition(b"\r\n")
                        data = line + b"\r\nvia: " + self.via.encode() + b"\r\n" + rest
                        first = False
                    held += data
                    if not self.holds:
                        writer.write(held)
                        held = b""
                        await writer.drain()
        writer.write(held)
        with contextlib.suppress(OSError):
            await writer.drain()


@asynccontextmanager
async def hop(one: Hop) -> AsyncIterator[Hop]:
    """Serve until the block ends."""
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
        for writer in tuple(one._writers):
            writer.transport.abort()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await server.wait_closed()
