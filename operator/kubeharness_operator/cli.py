"""`kubeharness-operator run`: the process, its signals, and kopf, which watches for us and restarts when it ends.

The recipe with kopf is tried; each odd line of it says why it stands there.
"""

import asyncio
import json
import logging
import random
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import kopf
import typer

from kubeharness.core.errors import KubeharnessError
from kubeharness_operator import handlers
from kubeharness_operator.composition import Operator, enduring, operator
from kubeharness_operator.ports import ClusterError, EpochOver
from kubeharness_operator.settings import OperatorSettings

LONGEST_PAUSE_SECONDS = 5.0
HEALTHY_SECONDS = 60.0
"""Watches that held this long were no failed start."""

log = logging.getLogger(__name__)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # logs are read line by line
    help="The Kubernetes operator of Kubeharness.",
)


class Backoffs:
    """0.5, 1, 2, 4, 5, 5, 5 … seconds without end, each time anew: kopf ends for good when a list is used up."""

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)


def kopf_settings(silence_seconds: float) -> kopf.OperatorSettings:
    """kopf as a mere watcher: no peering, no events of its own, nothing written to any object."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.inactivity_timeout = silence_seconds  # the guard against a stream that is silent
    settings.watching.initial_streaming = False
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = Backoffs()
    settings.queueing.idle_timeout = 1
    settings.process.ultimate_exiting_timeout = None  # else it kills us ten minutes after a restart of the watches
    handlers.select(settings)
    return settings


def kopf_registry(parts: Operator) -> kopf.OperatorRegistry:
    """Our handlers, and a login: a bare registry has none."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**facts: Any) -> kopf.ConnectionInfo | None:
        return await kopf.login_via_async_client(**facts)

    handlers.register(registry, parts.objects, parts.queue, noticed=parts.noticed)
    return registry


async def serve(settings: OperatorSettings) -> None:
    """Be an operator until SIGTERM. Raises Conflict for a foreign database, EpochOver if another took over."""
    async with operator(settings) as parts, asyncio.TaskGroup() as tasks:
        watches = tasks.create_task(_serve(parts), name="watches")
        _on_stop(watches)
        await asyncio.wait([watches])


async def _serve(parts: Operator) -> None:
    async with asyncio.TaskGroup() as jobs:
        for job in parts.leading():
            jobs.create_task(enduring(job))
        await _until_served(parts)
        for job in parts.working():
            jobs.create_task(enduring(job))
        await asyncio.sleep(0)  # they run, so kopf takes none of them for its own
        await _watch(parts)


async def _until_served(parts: Operator) -> None:
    """Wait, unready, until the API server serves our kinds with a status and lets us list them."""
    said = ""
    for pause in Backoffs():
        try:
            await parts.check_served()
        except ClusterError as error:
            parts.health.served, parts.health.waiting_for = False, str(error)
            if str(error) != said:
                log.warning("waiting: %s", error)
            said = str(error)
        else:
            parts.health.served = True
            return
        await asyncio.sleep(pause)


async def _watch(parts: Operator) -> None:
    """Watch for ever: whatever ends kopf, it is started again after a pause. Never dies, never sits idle."""
    loop = asyncio.get_running_loop()
    settings, registry = kopf_settings(parts.settings.watch_silence_seconds), kopf_registry(parts)
    pauses = iter(Backoffs())
    while True:
        started = loop.time()
        try:
            await _kopf(parts, settings, registry)
            log.warning("the watches ended; they start again")
        except Exception:
            log.exception("the watches failed; they start again")
        finally:
            parts.health.watching = False
        if loop.time() - started > HEALTHY_SECONDS:
            pauses = iter(Backoffs())
        await asyncio.sleep(next(pauses) * random.uniform(0.5, 1.0))
        await _until_served(parts)


async def _kopf(parts: Operator, settings: kopf.OperatorSettings, registry: kopf.OperatorRegistry) -> None:
    mine = asyncio.all_tasks()
    namespaces = parts.settings.namespaces
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        standalone=True,
        stop_flag=asyncio.Event(),
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    watches = asyncio.current_task()
    if watches is not None:
        _on_stop(watches)  # again: kopf has put its own in place, which takes 5 s
    parts.health.watching = True
    await kopf.run_tasks(tasks, ignored=mine)


def _on_stop(task: asyncio.Task[None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)


# --- the command line ---------------------------------------------------------------------------------------------


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: OperatorSettings) -> None:
    """Everything to standard error; kopf's word on single objects only if it warns."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kubernetes_asyncio").setLevel(logging.WARNING)


@app.callback()
def _callback() -> None:
    """The Kubernetes operator of Kubeharness."""


@app.command()
def run() -> None:
    """Watch, compile, publish and report until SIGTERM. Settings: the environment, prefix KUBEHARNESS_."""
    try:
        settings = OperatorSettings()
    except ValueError as error:
        typer.echo(f"settings: {error}", err=True)
        raise typer.Exit(2) from error
    configure_logging(settings)
    try:
        asyncio.run(serve(settings))
    except* (KubeharnessError, ClusterError, EpochOver) as ended:
        for reason in _leaves(ended):
            log.error("%s", reason)  # a sentence that says what to do; a trace would say less
        sys.exit(1)


def _leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def main() -> None:
    """The entry point `kubeharness-operator`."""
    app()
