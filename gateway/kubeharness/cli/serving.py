"""Serves the API of one process: runtime, auth, uvicorn; leaves without cutting anyone off in mid-answer."""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterator

import uvicorn

from kubeharness.api.app import create_app
from kubeharness.api.auth import Auth, Open, Tokens
from kubeharness.api.settings import ApiSettings
from kubeharness.api.sse import frame
from kubeharness.composition import Stored, SystemClock, component_id
from kubeharness.engine.crashpoints import UNARMED, CrashPoint, CrashPoints
from kubeharness.engine.runtime import Runtime
from kubeharness.settings import Settings

LEAVE_SECONDS = 5.0


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def auth_of(settings: Settings) -> Auth:
    """Who may call. Raises ValueError for a gateway that would be open without being told so."""
    if settings.auth == ("none",):
        if not _loopback(settings.host):
            raise ValueError(
                f"KUBEHARNESS_AUTH=none would be open on {settings.host}; use KUBEHARNESS_AUTH=token, or HOST=127.0.0.1"
            )
        return Open()
    if settings.auth == ("token",):
        if settings.tokens_file is None:
            raise ValueError("KUBEHARNESS_AUTH=token needs KUBEHARNESS_TOKENS_FILE (or say KUBEHARNESS_AUTH=none)")
        return Tokens(settings.tokens_file)
    raise ValueError(f"KUBEHARNESS_AUTH={','.join(settings.auth)}: use token, or none alone")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve_api(
    settings: Settings,
    stored: Stored,
    stop: asyncio.Event,
    *,
    auth: Auth,
    listening: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until `stop` is set; then streams end one by one, requests are finished, and it returns."""
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
        server = _Server(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                timeout_graceful_shutdown=int(LEAVE_SECONDS) + 2,
                lifespan="off",
            )
        )
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve(), name="uvicorn")
            tasks.create_task(_announce(server, listening), name="announce")
            await _either(stop, serving)
            runtime.stop(LEAVE_SECONDS)
            server.should_exit = True
            await serving


async def _either(stop: asyncio.Event, serving: "asyncio.Task[None]") -> None:
    """Until told to stop; a server that could not start ends the process with its reason."""
    async with asyncio.TaskGroup() as waits:
        told = waits.create_task(stop.wait())
        await asyncio.wait({told, serving}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
    if serving.done() and not stop.is_set():
        raise RuntimeError("the HTTP server ended; is the port taken?")


async def _announce(server: uvicorn.Server, listening: Callable[[str], None]) -> None:
    while not server.started:
        if server.should_exit:
            return
        await asyncio.sleep(0.02)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    listening(f"http://{host}:{port}")
