"""`kubeharness migrate`: bring the database to this build's schema, once, under a lock."""

import asyncio

import typer

from kubeharness.settings import Settings


def migrate() -> None:
    """Apply the migrations that DATABASE_URL lacks; safe to run by many at once."""
    from kubeharness.store.migrate import migrate as apply

    settings = Settings()
    url = settings.direct() or settings.database()
    if not url.startswith(("postgresql:", "postgres:")):
        raise ValueError("only Postgres needs migrating; SQLite and memory stores make their own schema")
    schema = asyncio.run(apply(url))
    typer.echo(f"schema {schema.version} (builds from {schema.min_build})")
