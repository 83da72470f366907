"""Liveness and readiness for a process that serves no API. Liveness never asks the database (C49)."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

READ_SECONDS = 5.0

Answer = Callable[[], Awaitable[tuple[bool, str]]]
"""(well, why)"""


class Health:
    """A tiny HTTP/1.1 server for probes: `/healthz`, `/readyz`, `/metrics`."""

    def __init__(self, *, live: Answer, ready: Answer, metrics: Callable[[], bytes]) -> None:
        self._live = live
        self._ready = ready
        self._metrics = metrics

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen; the caller closes the server."""
        return await asyncio.start_server(self._answer, host, port)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_SECONDS):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                status, kind, body = await self._route(line.decode("latin-1").split(" ")[1:2])
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
                )
                writer.write(head.encode() + b"\r\n" + body)
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            pass
        finally:
            writer.close()

    async def _route(self, path: list[str]) -> tuple[str, str, bytes]:
        match path:
            case ["/metrics"]:
                return "200 OK", "text/plain; version=0.0.4", self._metrics()
            case ["/healthz"]:
                well, why = await self._live()
            case ["/readyz"]:
                well, why = await self._ready()
            case _:
                return "404 Not Found", "application/json", b'{"error":"no such page","code":"not_found"}'
        body = json.dumps({"ok": well, "reason": why}).encode()
        return ("200 OK" if well else "503 Service Unavailable"), "application/json", body
