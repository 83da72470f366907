"""Serves the API of one process: runtime, auth, uvicorn; leaves without cutting anyone off in mid-answer."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from kubeharness.api.app import create_app
from kubeharness.api.auth import Auth
from kubeharness.api.server import bind, serve
from kubeharness.api.settings import ApiSettings
from kubeharness.api.sse import frame
from kubeharness.composition import Stored, SystemClock, component_id, release
from kubeharness.engine.crashpoints import UNARMED, CrashPoint, CrashPoints
from kubeharness.engine.runtime import Runtime
from kubeharness.settings import Settings

REQUESTS_SECONDS = 5.0
"""What requests have once the streams are gone; beside it the process needs about three seconds to leave."""


def listen(settings: Settings) -> socket.socket:
    """The address of HOST and PORT. Raises ValueError if it cannot be had."""
    try:
        return bind(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise ValueError(
            f"cannot listen on {where} ({error.strerror}); set KUBEHARNESS_HOST or KUBEHARNESS_PORT"
        ) from error


async def serve_api(
    settings: Settings,
    stored: Stored,
    stop: asyncio.Event,
    *,
    auth: Auth,
    listener: socket.socket,
    listening: Callable[[str], None] = lambda url: None,
    built: Callable[[Callable[[], Awaitable[None]]], None] = lambda ready: None,
) -> None:
    """Serve until `stop` is set; then streams end one by one, requests are finished, and it returns.

    `built` is given what raises Unavailable while the gateway should get no traffic.
    """
    crash = CrashPoints(CrashPoint(settings.crash_point)) if settings.crash_point else UNARMED
    async with Runtime.open(
        stored.store,
        stored.waker,
        SystemClock(),
        component_id=component_id("gateway"),
        framer=frame,
        pool=settings.pool,
        poll_seconds=settings.poll_ms("gateway") / 1000,
        crash=crash,
        release=release(),
    ) as runtime:
        app = create_app(
            runtime,
            auth,
            ApiSettings(
                default_namespace=settings.default_namespace,
                root_path=settings.root_path,
                wait_seconds=settings.wait_seconds,
                max_body_bytes=settings.max_body_bytes,
            ),
        )
        built(app.ready)
        host, port = listener.getsockname()[:2]
        listening(f"http://{host}:{port}")
        await serve(
            app,
            listener,
            stop,
            streams_seconds=settings.stream_close_seconds,
            requests_seconds=REQUESTS_SECONDS,
        )
