"""`kubeharness worker`: claims submissions and runs them."""

import asyncio

from kubeharness.cli.running import run
from kubeharness.composition import open_secrets, open_store, open_worker
from kubeharness.settings import Settings


def worker() -> None:
    """Run a worker until SIGTERM, then drain."""
    settings = Settings()

    async def serve(stop: asyncio.Event) -> None:
        from prometheus_client import generate_latest

        from kubeharness.worker.health import Health

        async with (
            open_store(settings) as stored,
            open_secrets(settings) as secrets,
            open_worker(settings, stored, secrets) as built,
        ):
            health = Health(live=built.live, ready=built.ready, metrics=generate_latest)
            server = await health.serve(settings.health_host, settings.health_port)
            try:
                await built.run(stop)
            finally:
                server.close()

    run(settings, serve)
