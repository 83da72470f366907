"""`kubeharness publish -f PATH…`: compile manifests into a database, once, without a cluster."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kubeharness.settings import Settings


def publish(
    files: Annotated[list[Path], typer.Option("-f", "--file", help="Files or folders of YAML documents")],
) -> None:
    """Compile and publish what lies at the paths; exits 1 if a document failed."""
    settings = Settings()
    if not asyncio.run(_publish(settings, files)):
        raise typer.Exit(1)


async def _publish(settings: Settings, files: list[Path]) -> bool:
    from kubeharness.cli import publication
    from kubeharness.composition import open_store

    async with open_store(settings) as stored:
        epoch = await stored.store.epoch(settings.installation_id)
        planned = await publication.publish(stored.store, epoch, files, namespace=settings.default_namespace)
        stored.waker.touched([], work=True)
        await asyncio.sleep(0.05)  # the hint is coalesced; losing it would cost one poll
    for condition in planned.conditions:
        typer.echo(str(condition))
    return all(condition.ok for condition in planned.conditions)
