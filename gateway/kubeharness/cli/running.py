"""What long-running verbs share: logs, an event loop, signals that set one event, the health port."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kubeharness.settings import Settings
from kubeharness.telemetry.logs import configure
from kubeharness.worker.health import Answer, Health

Serve = Callable[[asyncio.Event], Awaitable[None]]


def run(settings: Settings, serve: Serve) -> None:
    """Run until `serve` returns; SIGTERM and SIGINT set its event, and a second SIGINT ends at once."""
    configure(settings.log_format, settings.log_level)

    async def body() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def leave() -> None:
            if stop.is_set():
                loop.remove_signal_handler(signal.SIGINT)
            stop.set()

        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, leave)
        await serve(stop)

    try:
        import uvloop
    except ImportError:
        asyncio.run(body())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(body())


@asynccontextmanager
async def open_health(settings: Settings, *, live: Answer, ready: Answer) -> AsyncIterator[None]:
    """`/healthz`, `/readyz` and `/metrics` of this process for as long as the block lasts.

    Raises ValueError with the remedy if the port cannot be had.
    """
    from prometheus_client import generate_latest

    health = Health(live=live, ready=ready, metrics=generate_latest)
    try:
        server = await health.serve(settings.health_host, settings.health_port)
    except OSError as error:
        where = f"{settings.health_host}:{settings.health_port}"
        raise ValueError(
            f"cannot listen on {where} ({error.strerror}); set KUBEHARNESS_HEALTH_HOST or KUBEHARNESS_HEALTH_PORT"
        ) from error
    try:
        yield
    finally:
        server.close()
