"""`kubeharness verify`: the invariants I1-I12, checked read-only over a database."""

import asyncio

import typer

from kubeharness.settings import Settings


def verify() -> None:
    """Check DATABASE_URL; prints each violation with its invariant and exits 1 if there is one."""
    settings = Settings()
    found = asyncio.run(_verify(settings))
    for violation in found:
        typer.echo(violation)
    typer.echo(f"{len(found)} violations")
    if found:
        raise typer.Exit(1)


async def _verify(settings: Settings) -> list[str]:
    from kubeharness.composition import open_store
    from kubeharness.store.verify import verify as check

    async with open_store(settings) as stored:
        return [str(violation) for violation in await check(stored.store)]
