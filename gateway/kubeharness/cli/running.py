"""What long-running verbs share: logs, an event loop, signals that set one event."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from kubeharness.settings import Settings
from kubeharness.telemetry.logs import configure

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
