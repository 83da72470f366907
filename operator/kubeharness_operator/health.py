"""/healthz, /readyz and /metrics on a port of its own: up before anything else, and for as long as the process is.

Alive means: the loop turns, and the watches are not deaf. Ready means: CRDs served, watches running, and the last
complete look at the API server succeeded, the database answers with a schema of ours, and the CRDs have every field.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

REQUEST_SECONDS = 5.0
LONGEST_REQUEST = 8_192
DEAF_SWEEPS = 2
"""Sweeps in a row that found objects which no watch had shown."""


@dataclass(slots=True)
class Health:
    """What the process says of itself."""

    served: bool = False
    """The API server serves our kinds."""
    watching: bool = False
    """The watches run."""
    waiting_for: str = "the CRDs"
    """What keeps it from being served."""
    trouble: Callable[[], str] = field(default=str)
    """Why the last complete look at the API server failed; empty if it did not."""
    lacking: Callable[[], str] = field(default=str)
    """What the server's CRDs lack: they are older than we are."""
    database: Callable[[], str] = field(default=str)
    """Why the database cannot be used; empty if it can."""
    gauges: Callable[[], Mapping[str, float]] = field(default=dict)
    """Figures by metric name, read when they are asked for."""
    deaf: Callable[[], int] = field(default=lambda: 0)
    """How many sweeps in a row found objects that no watch had shown."""

    def alive(self) -> tuple[bool, str]:
        """Whether a restart would not help, and why it would."""
        deaf = self.deaf()
        if deaf >= DEAF_SWEEPS:
            return False, f"the watches are deaf: {deaf} sweeps in a row found objects that they had not shown"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether the operator does its work, and what keeps it from it."""
        if not self.served:
            return False, f"waiting for {self.waiting_for}"
        if not self.watching:
            return False, "the watches are not running"
        trouble = self.trouble()
        if trouble:
            return False, f"the API server does not let us see everything: {trouble}"
        if database := self.database():
            return False, f"the database cannot be used: {database}"
        if lacking := self.lacking():
            return False, lacking
        return True, "ok"

    def metrics(self) -> str:
        """The figures in Prometheus' text format."""
        ready, alive = self.ready()[0], self.alive()[0]
        figures = {"ready": float(ready), "alive": float(alive), **self.gauges()}
        lines = []
        for name, value in figures.items():
            full = f"kubeharness_operator_{name}"
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {full} {kind}", f"{full} {value:g}"]
        return "\n".join(lines) + "\n"


@asynccontextmanager
async def serving(health: Health, *, host: str, port: int) -> AsyncIterator[int]:
    """Answer on this port for as long as the block lasts; yields the port, which is a free one for 0."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(health, request))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=LONGEST_REQUEST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _response(health: Health, request: bytes) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, text = _answer(health, path)
    if method not in (b"GET", b"HEAD"):
        status, text = "405 Method Not Allowed", "GET\n"
    body = text.encode()
    kind = "text/plain; version=0.0.4; charset=utf-8" if path == b"/metrics" else "text/plain; charset=utf-8"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == b"HEAD" else body)


def _answer(health: Health, path: bytes) -> tuple[str, str]:
    match path:
        case b"/healthz":
            good, why = health.alive()
        case b"/readyz":
            good, why = health.ready()
        case b"/metrics":
            return "200 OK", health.metrics()
        case _:
            return "404 Not Found", "/healthz /readyz /metrics\n"
    return ("200 OK" if good else "503 Service Unavailable"), why + "\n"
