"""A TCP proxy before Postgres that misbehaves on demand: cuts, refuses, swallows, or makes a listener deaf."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

NOTIFICATION = b"A"
"""The type byte of Postgres' NotificationResponse."""


class TcpProxy:
    """Forwards loopback connections to one server."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.accepted = 0
        self.black_hole = False
        """Swallow what either side says, without a word; new connections go through once it is lifted."""
        self.refusing = False
        self.deaf = False
        """Take notifications out of what the server says, as a transaction pooler would."""

    @property
    def url(self) -> str:
        """The database's address through this proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._address.username}@" if self._address.username else ""
        return urlunsplit(self._address._replace(netloc=f"{user}127.0.0.1:{port}"))

    def cut(self) -> None:
        """Reset every connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.add(writer)
        try:
            if self.refusing:
                return
            host, port = self._address.hostname or "127.0.0.1", self._address.port or 5432
            from_server, to_server = await asyncio.open_connection(host, port)
            self._writers.add(to_server)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._forward(reader, to_server))
                    tasks.create_task(self._forward_frames(from_server, writer))
            finally:
                self._writers.discard(to_server)
                to_server.close()
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._say(writer, data)
        writer.close()

    async def _forward_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What the server says, message by message: a type byte and a length that counts itself."""
        while True:
            head = await reader.read(1)
            if not head:
                writer.close()
                return
            if head in (b"S", b"N") and self._answers_tls(reader):
                await self._say(writer, head)  # the answer to a request for TLS has no length
                continue
            length = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(length, "big") - 4)
            if not (self.deaf and head == NOTIFICATION):
                await self._say(writer, head + length + body)

    @staticmethod
    def _answers_tls(reader: asyncio.StreamReader) -> bool:
        return not reader._buffer  # type: ignore[attr-defined]  # a lone byte, and nothing behind it

    async def _say(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.black_hole:
            return
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def tcp_proxy(url: str) -> AsyncIterator[TcpProxy]:
    """A proxy for as long as the block lasts."""
    proxy = TcpProxy(url)
    proxy._server = server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await server.wait_closed()
