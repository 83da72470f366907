"""`kubeharness dev -f PATH…`: gateway, worker and compile in one process on one port, keyless."""

import asyncio
import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from kubeharness.cli.running import run
from kubeharness.composition import Stored, open_auth, open_secrets, open_store, open_worker, sqlite_path
from kubeharness.core.errors import KubeharnessError
from kubeharness.secrets.documents import DocumentSecrets
from kubeharness.settings import Settings

log = logging.getLogger(__name__)

DATA = Path("harness-data")
DEV_LEASE_SECONDS = 5.0
DEV_STREAM_CLOSE_SECONDS = 1.0
LOOK_MILLISECONDS = 500


def dev(
    files: Annotated[list[Path], typer.Option("-f", "--file", help="Files or folders of YAML documents")],
) -> None:
    """Run what lies at the paths on this machine; edits are in force within a second."""
    settings = _settings()
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        raise ValueError(f"-f: no such file or folder: {', '.join(missing)}")
    with ExitStack() as stack:
        if settings.database().startswith("sqlite:"):
            from kubeharness.store.sqlite.database import hold

            folder = sqlite_path(settings.database()).parent
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(hold(folder))
            except KubeharnessError as error:
                raise ValueError(str(error)) from None
        from kubeharness.cli.serving import listen

        listener = listen(settings)
        run(settings, lambda stop: _dev(settings, files, stop, listener))


def _settings() -> Settings:
    """Dev's own defaults, under whatever was said."""
    said = Settings()
    given = said.model_fields_set
    defaults: dict[str, object] = {
        "database_url": f"sqlite:{DATA / 'kubeharness.sqlite'}",
        "auth": "none",
        "log_format": "text",
        "lease_seconds": DEV_LEASE_SECONDS,
        "log_level": "warning",
        "stream_close_seconds": DEV_STREAM_CLOSE_SECONDS,
    }
    return Settings.model_validate(
        {**{name: getattr(said, name) for name in given}, **{k: v for k, v in defaults.items() if k not in given}}
    )


async def _dev(settings: Settings, files: list[Path], stop: asyncio.Event, listener: socket.socket) -> None:
    from kubeharness.cli.serving import serve_api

    async with open_auth(settings) as auth, open_store(settings) as stored, open_secrets(settings) as behind:
        secrets = DocumentSecrets(behind)
        epoch = await stored.store.epoch(settings.installation_id)
        publisher = _Publisher(stored, epoch, files, settings.default_namespace, secrets)
        await publisher.look()
        async with open_worker(settings, stored, secrets) as worker, asyncio.TaskGroup() as life:
            watching = life.create_task(publisher.watch(), name="watch")
            checks = life.create_task(_print_checks(stored), name="checks")
            work = life.create_task(worker.run(stop), name="worker")
            try:
                await serve_api(
                    settings,
                    stored,
                    stop,
                    auth=auth,
                    listener=listener,
                    listening=lambda url: _welcome(url, publisher.agents),
                )
            finally:
                stop.set()
            await work
            watching.cancel()
            checks.cancel()


class _Publisher:
    """Compiles what lies on disk, again when it changes; the last good of a broken document goes on."""

    def __init__(self, stored: Stored, epoch: int, files: list[Path], namespace: str, secrets: DocumentSecrets) -> None:
        self._stored = stored
        self._epoch = epoch
        self._files = files
        self._namespace = namespace
        self._secrets = secrets
        self._shown: list[str] = []
        self.agents: list[str] = []

    async def look(self) -> None:
        """Compile and publish once; print what became of each document, if that is news."""
        from kubeharness.cli import publication

        planned = await publication.publish(self._stored.store, self._epoch, self._files, namespace=self._namespace)
        self._secrets.replace(planned.secrets)
        self._stored.waker.touched([], work=True)
        self.agents = [write.name for write in planned.writes if write.activate]
        shown = [str(condition) for condition in planned.conditions]
        if shown != self._shown:
            self._shown = shown
            for line in shown:
                typer.echo(line)

    async def watch(self) -> None:
        """Look again whenever a file changes, within a second."""
        seen = await asyncio.to_thread(_stamps, self._files)
        while True:
            await asyncio.sleep(LOOK_MILLISECONDS / 1000)
            now = await asyncio.to_thread(_stamps, self._files)
            if now == seen:
                continue
            seen = now
            try:
                await self.look()
            except KubeharnessError as error:
                typer.echo(f"False publish: {error}")


def _stamps(files: list[Path]) -> dict[str, tuple[int, int]]:
    """Size and time of every file at or below the paths."""
    stamps: dict[str, tuple[int, int]] = {}
    for top in files:
        for path in (top, *top.rglob("*")) if top.is_dir() else (top,):
            try:
                found = path.stat()
            except OSError:
                continue
            stamps[str(path)] = (found.st_mtime_ns, found.st_size)
    return stamps


async def _print_checks(stored: Stored) -> None:
    """Say what the worker's checks found, when it changes."""
    version = 0
    said: dict[tuple[str, str, str], str] = {}
    while True:
        for result in await stored.store.check_results(after=version):
            version = max(version, result.version)
            key = (result.kind, result.namespace, result.name)
            text = "ok" if result.ok else f"{result.reason}: {result.message}"
            if result.done and said.get(key) != text:
                said[key] = text
                typer.echo(f"{'ok   ' if result.ok else 'False'} check {'/'.join(key)}: {text}")
        await asyncio.sleep(1)


def _welcome(url: str, agents: list[str]) -> None:
    typer.echo(f"Kubeharness dev on {url} (docs: {url}/docs)")
    for agent in agents:
        typer.echo(f"""  curl -s {url}/agents/{agent}/demo -d '{{"kind":"user","body":"hello there"}}'""")
        typer.echo(f"  curl -N {url}/agents/{agent}/demo")
