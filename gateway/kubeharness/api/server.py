"""The HTTP server around the application: limits before anything is parsed, and a drain that streams survive."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kubeharness.api.app import Gateway

MAX_HEADER_BYTES = 64 * 1024
"""Request line and headers together."""
BACKLOG = 2048
STUCK_SECONDS = 1.0
"""What a stream has for its last bytes, once its moment has come."""
CLOSE = (b"connection", b"close")

_REFUSED = b'{"error":"this is not an HTTP request that can be read; see RFC 9112","code":"invalid"}'


class HeadTooLarge(Exception):
    """Request line and headers are over the limit: the parser stops reading."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on what comes before a body, and refusals in our own shape."""

    _head = 0

    def on_message_begin(self) -> None:
        """A new request: count anew."""
        self._head = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEADER_BYTES:
            raise HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, and close."""
        status = b"431 Request Header Fields Too Large" if self._head > MAX_HEADER_BYTES else b"400 Bad Request"
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(_REFUSED)) + _REFUSED)
        self.transport.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process, which drains before it stops this."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening address, port 0 for any; known before anything else is started."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((host, port))
    listener.setblocking(False)
    return listener


async def serve(
    app: Gateway,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    streams_seconds: float = 6.0,
    requests_seconds: float = 4.0,
) -> None:
    """Serve until `stop` is set; then end streams one by one within `streams_seconds`, let requests finish, return.

    Until the streams are gone whoever still comes is served, and told not to come again on this connection: a
    balancer may not know yet that we leave. Requests then have `requests_seconds`; what is left is cut.
    """
    server = _Server(_config(app, requests_seconds))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]), name="http")
        stopped = tasks.create_task(stop.wait(), name="stop")
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        server.config.encoded_headers.append(CLOSE)  # taken over by each tick of the server, which makes the date
        server.server_state.default_headers = [*server.server_state.default_headers, CLOSE]
        app.runtime.stop(streams_seconds)
        try:
            async with asyncio.timeout(streams_seconds + STUCK_SECONDS):
                await app.places.wait_empty()
        except TimeoutError:
            pass  # readers that take nothing: the server cuts them
        server.should_exit = True


def _config(app: Gateway, requests_seconds: float) -> uvicorn.Config:
    options: dict[str, Any] = {
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,
        "backlog": BACKLOG,
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": max(1, round(requests_seconds)),
    }
    return uvicorn.Config(app, **options)
