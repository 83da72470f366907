"""One cluster and one installation for all tests here; what was measured is printed at the end."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster import images
from cluster.node import NodeCluster
from e2e_cluster.release import INGRESS_HOST, NAME, ROOT, ROUTE_HOST, Release
from support.rawwire import Answer, Request, raw_wire

_FIGURES = pytest.StashKey[list[str]]()


@dataclass(slots=True)
class Figures:
    """Lines for the end of the run. They are printed, never judged."""

    lines: list[str]

    def say(self, line: str) -> None:
        """Keep a line."""
        self.lines.append(line)
        print(line)


@dataclass(slots=True)
class Shell:
    """Runs blocks as a person would in one terminal: variables live on, `ingress.test` is the router."""

    folder: Path
    environment: dict[str, str]
    done: list[str] = field(default_factory=list)

    def run(self, block: str, *, within: float = 300) -> str:
        """What a block printed. Fails if one of its commands fails."""
        script = f"set -e -o pipefail\n[ ! -f state ] || . ./state\ncd {ROOT}\nset -a\n{block}\nset +a\n"
        script += "jobs -p | xargs -r kill\n"  # what a block leaves running ends with it
        script = script.replace("values.yaml", str(self.folder / "values.yaml"))
        script += f"cd {self.folder}\ndeclare -p TOKEN URL 2>/dev/null > state || true\n"
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )
        self.done.append(block)
        assert ran.returncode == 0, f"{block}\nended with {ran.returncode}: {ran.stdout}{ran.stderr}"
        return ran.stdout


def pytest_configure(config: pytest.Config) -> None:
    """A place for figures."""
    config.stash[_FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured."""
    if lines := config.stash[_FIGURES]:
        terminalreporter.section("measured, not judged")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    """Where to say what was measured."""
    return Figures(request.config.stash[_FIGURES])


@pytest.fixture(scope="session")
def release(node: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The release, installed or not. The image is on the node."""
    with node.outside():  # where package registries are reached
        archive = images.product_image()
    node.import_image(archive)
    folder = tmp_path_factory.mktemp("release")
    release = Release(node, node.router, folder / "values.yaml", node.create_database())
    yield release
    release.api.close()


@pytest.fixture(scope="session")
def shell(release: Release) -> Shell:
    """A terminal with kubectl, helm and curl as a user has them."""
    folder = release.values.parent
    bin_ = folder / "bin"
    bin_.mkdir()
    for name, path in release.tools().items():
        (bin_ / name).symlink_to(path)
    address = release.router.removeprefix("http://")
    hosts = "".join(f'connect-to = "{host}:80:{address}"\n' for host in (INGRESS_HOST, ROUTE_HOST))
    (folder / ".curlrc").write_text(f"{hosts}fail-with-body\n")
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CURL_HOME": str(folder),
        "KUBECONFIG": str(release.cluster.kubeconfig),
        "DATABASE_URL": release.database,
    }
    return Shell(folder, environment)


@pytest.fixture
def empty(release: Release) -> Release:
    """A cluster on which nothing of ours is installed yet."""
    assert not release.there, f"this cluster has it already: helm uninstall {NAME}, then delete the namespace"
    return release


@pytest.fixture(scope="session")
def installed(release: Release, shell: Shell) -> Release:
    """The installation of the tutorial: made by its test, else here by its blocks, or left by a run before."""
    if not shell.done:
        for block in release.install_blocks():
            if not release.there or "values.yaml <<" in block:
                shell.run(block)
    release.whole()
    return release


@contextmanager
def serving_wire(host: str, answer: Callable[[Request], Answer]) -> Iterator[str]:
    """A model wire that pods reach, in a thread of its own; gives its base URL."""
    started: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with raw_wire(answer, host=host) as wire:
            started.append(wire.base_url)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield started[0]
    finally:
        stop.set()
        thread.join(10)
