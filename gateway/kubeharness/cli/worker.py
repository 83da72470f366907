"""`kubeharness worker`: claims submissions and runs them."""

import asyncio

from kubeharness.cli.running import open_health, run
from kubeharness.composition import open_pod_events, open_secrets, open_store, open_worker
from kubeharness.settings import Settings


def worker() -> None:
    """Run a worker until SIGTERM, then drain.

    A database that does not answer, or not as ours, ends nothing: the worker waits, unready, and says why.
    """
    settings = Settings()

    async def serve(stop: asyncio.Event) -> None:
        async with (
            open_store(settings, wait=True) as stored,
            open_secrets(settings) as secrets,
            open_worker(settings, stored, secrets) as built,
            open_health(settings, live=built.live, ready=built.ready),
            open_pod_events(settings) as tell,
        ):
            built.readiness.changed = tell
            await built.run(stop)

    run(settings, serve)
