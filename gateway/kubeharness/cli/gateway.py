"""`kubeharness gateway`: serves the HTTP API."""

import asyncio

from kubeharness.cli.running import run
from kubeharness.composition import open_auth, open_store
from kubeharness.settings import Settings


def gateway() -> None:
    """Serve the API until SIGTERM. Needs DATABASE_URL, and AUTH with what it needs."""
    from kubeharness.cli.serving import listen, serve_api
    from kubeharness.worker.health import Health

    settings = Settings()
    listener = listen(settings)

    async def serve(stop: asyncio.Event) -> None:
        from prometheus_client import generate_latest

        async def live() -> tuple[bool, str]:
            return True, ""

        async with open_auth(settings) as auth, open_store(settings) as stored:

            async def ready() -> tuple[bool, str]:
                if stop.is_set():
                    return False, "leaving"
                if (why := auth.unready()) is not None:
                    return False, why
                await stored.store.ready()
                return True, ""

            health = Health(live=live, ready=ready, metrics=generate_latest)
            server = await health.serve(settings.health_host, settings.health_port)
            try:
                await serve_api(settings, stored, stop, auth=auth, listener=listener)
            finally:
                server.close()

    run(settings, serve)
