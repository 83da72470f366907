"""A frugal HTTP client: the load generator shares two cores with what it measures."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

LIMIT = 1 << 20


class Wire:
    """One kept connection to a gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, url: str) -> "Wire":
        """Connect."""
        place = urlsplit(url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=LIMIT)
        return cls(reader, writer, place.netloc)

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """POST some JSON; status and JSON of the answer."""
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        status, headers = await self._head()
        return status, json.loads(await self._reader.readexactly(int(headers["content-length"])))

    async def events(self, path: str) -> AsyncIterator[tuple[str, bytes]]:
        """GET an event stream: kind and data of each record, as they come; the connection serves nothing else."""
        head = f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\naccept: text/event-stream\r\n\r\n"
        self._writer.write(head.encode())
        status, _ = await self._head()
        assert status == 200, f"{path} was answered with {status}"
        held = b""
        while (size := int(await self._reader.readline(), 16)) > 0:
            held += (await self._reader.readexactly(size + 2))[:-2]
            *frames, held = held.split(b"\n\n")
            for frame in frames:
                fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line)
                if b"event" in fields:
                    yield fields[b"event"].decode(), fields[b"data"]
                elif b"retry" in fields:
                    yield "open", b""

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def _head(self) -> tuple[int, dict[str, str]]:
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ", 2)[1]), headers
