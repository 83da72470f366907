"""`kubeharness gateway`: serves the HTTP API."""

import asyncio
from collections.abc import Awaitable, Callable

from kubeharness.cli.running import open_health, run
from kubeharness.composition import open_auth, open_store
from kubeharness.core.errors import Unavailable
from kubeharness.settings import Settings


def gateway() -> None:
    """Serve the API until SIGTERM. Needs DATABASE_URL, and AUTH with what it needs.

    A database that does not answer, or not as ours, ends nothing: the gateway waits, unready, and says why.
    """
    from kubeharness.cli.serving import listen, serve_api

    settings = Settings()
    listener = listen(settings)

    async def serve(stop: asyncio.Event) -> None:
        from kubeharness.worker.readiness import Readiness

        serving: list[Callable[[], Awaitable[None]]] = []

        async def may_serve() -> None:
            if stop.is_set():
                raise Unavailable("leaving")
            if not serving:
                raise Unavailable("starting")
            await serving[0]()

        readiness = Readiness(may_serve)
        async with (
            open_health(settings, live=_alive, ready=readiness.look),
            open_auth(settings) as auth,
            open_store(settings, wait=True) as stored,
            asyncio.TaskGroup() as life,
        ):
            watching = life.create_task(readiness.run(), name="readiness")
            await serve_api(settings, stored, stop, auth=auth, listener=listener, built=serving.append)
            watching.cancel()

    run(settings, serve)


async def _alive() -> tuple[bool, str]:
    """The event loop turns, or this would not be answered."""
    return True, ""
