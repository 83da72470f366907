"""A cluster of `kind`, where a Docker or Podman engine answers: made for one run, deleted after it.

It has nodes, pods and Services, and takes image archives. It has no router, no Postgres and no kubelet to kill: tests
that need those run on our own node. Our build machines have no engine, so this module is not run by CI.
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ImportFailed, NoCluster
from cluster.kubeconfig import Endpoint, read
from cluster.node import NodeCluster

_CREATE_SECONDS = 600.0
_LOAD_SECONDS = 300.0


class KindCluster(NodeCluster):
    """A cluster that kind made."""

    kind = "a kind cluster"

    def __init__(self, name: str, *, kubeconfig: Path, endpoint: Endpoint, folder: Path) -> None:
        super().__init__(kubeconfig=kubeconfig, endpoint=endpoint, folder=folder)
        self._name = name

    def import_image(self, archive: Path) -> list[str]:
        """Load an archive onto all nodes. kind does not tell the names, so none are returned."""
        done = _kind("load", "image-archive", str(archive), "--name", self._name, timeout=_LOAD_SECONDS)
        if done.returncode != 0:
            raise ImportFailed(archive, done.stderr.strip())
        return []


def is_possible() -> bool:
    """Whether the command kind is here and an engine answers."""
    return shutil.which("kind") is not None and _engine() is not None


@contextmanager
def kind_cluster() -> Iterator[KindCluster]:
    """A cluster for as long as the block lasts. Raises NoCluster with what kind said."""
    name = f"kubeharness-test-{secrets.token_hex(3)}"
    folder = Path(tempfile.mkdtemp(prefix="kubeharness-kind-"))
    path = folder / "admin.kubeconfig"
    try:
        done = _kind(
            *("create", "cluster", "--name", name, "--kubeconfig", str(path), "--wait", "300s"),
            timeout=_CREATE_SECONDS,
        )
        if done.returncode != 0:
            raise NoCluster(f"kind did not make a cluster: {done.stderr.strip()}")
        _, endpoint = read(path)
        yield KindCluster(name, kubeconfig=path, endpoint=endpoint, folder=folder)
    finally:
        _kind("delete", "cluster", "--name", name, "--kubeconfig", str(path), timeout=120.0)
        shutil.rmtree(folder, ignore_errors=True)


def _kind(*args: str, timeout: float) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"KIND_EXPERIMENTAL_PROVIDER": "podman"} if _engine() == "podman" else {})
    return subprocess.run(
        ["kind", *args], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def _engine() -> str | None:
    for engine in ("docker", "podman"):
        if shutil.which(engine) is None:
            continue
        try:
            done = subprocess.run([engine, "info"], capture_output=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return engine
    return None
