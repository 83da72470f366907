"""`kubeharness migrate`: bring the database to this build's schema, once, under a lock."""

import asyncio
import time

import typer

from kubeharness.core.errors import Unavailable
from kubeharness.settings import Settings

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
SCHEMES = ("postgresql:", "postgres:")


def migrate() -> None:
    """Apply the migrations that the database lacks; safe to run by many at once, harmless over a newer schema."""
    settings = Settings()
    url = settings.migrating()
    if not url.startswith(SCHEMES):
        raise ValueError("only Postgres needs migrating (postgresql://…); SQLite and memory stores make their own")
    asyncio.run(_migrate(url, settings))


async def _migrate(url: str, settings: Settings) -> None:
    """Try until the time is over. Raises Unavailable with the last reason, SchemaRefused."""
    from kubeharness.store.migrate import BUILD
    from kubeharness.store.migrate import migrate as apply

    until = time.monotonic() + settings.migrate_seconds
    pause = FIRST_PAUSE_SECONDS
    schema = None
    while schema is None:
        try:
            schema = await apply(url, app_role=settings.app_role)
        except Unavailable as error:
            if time.monotonic() + pause > until:
                raise Unavailable(f"gave up after {settings.migrate_seconds:g} s: {error.why}") from error
            typer.echo(f"kubeharness: {error.why}; next try in {pause:g} s", err=True)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
    if schema.version > BUILD:
        typer.echo(
            f"schema {schema.version} is newer than this build, which knows {BUILD}, and lets builds from "
            f"{schema.min_build} run: nothing to do"
        )
    else:
        typer.echo(f"schema {schema.version} (builds from {schema.min_build})")
    if settings.app_role is not None:
        typer.echo(f"role {settings.app_role} may read and write, and change no schema")
