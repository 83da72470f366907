"""Which cluster a test gets: the one that the user named, else a control plane of our own."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.access import Cluster
from cluster.control_plane import ControlPlane
from cluster.errors import NoCluster
from cluster.kubeconfig import Endpoint

_CHOICE = "KUBEHARNESS_TEST_CLUSTER"


def is_given() -> bool:
    """Whether the environment names a cluster; KUBECONFIG alone names none, so that none is used by mistake.

    Raises NoCluster for a choice that we do not know. `kind` comes with the node tier.
    """
    choice = os.environ.get(_CHOICE, "")
    if choice not in ("", "given"):
        raise NoCluster(f"{_CHOICE} is {choice!r}: leave it unset for our own cluster, or say 'given'")
    return choice == "given"


def open_cluster() -> AbstractContextManager[Cluster]:
    """Return the cluster that the environment asks for, to be entered; ClusterError if it cannot be had."""
    return _given_cluster() if is_given() else ControlPlane()


@contextmanager
def _given_cluster() -> Iterator[Cluster]:
    """The cluster of KUBECONFIG's current context. It is left as it is, save what tests do to it."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        raise NoCluster(f"{_CHOICE} is 'given', so KUBECONFIG must name the cluster's kubeconfig file")
    merged, endpoint = _view(path)
    folder = Path(tempfile.mkdtemp(prefix="kubeharness-given-cluster-"))
    try:
        copy = folder / "admin.kubeconfig"  # KUBECONFIG may be a list of files; --kubeconfig takes one
        copy.touch(mode=0o600)
        copy.write_text(json.dumps(merged))
        yield Cluster(kubeconfig=copy, endpoint=endpoint, folder=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _view(path: str) -> tuple[dict[str, Any], Endpoint]:
    command = [str(binaries.kubectl()), "config", "view", "--raw", "--flatten", "--minify", "-o", "json"]
    environment = os.environ | {"KUBECONFIG": path}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise NoCluster(f"KUBECONFIG {path!r} cannot be used: {done.stderr.strip()}")
    merged: dict[str, Any] = json.loads(done.stdout)
    cluster: dict[str, str] = merged["clusters"][0]["cluster"]
    ca = base64.b64decode(cluster.get("certificate-authority-data", ""))
    return merged, Endpoint(server=cluster["server"], ca=ca)
