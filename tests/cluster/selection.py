"""Which cluster a test gets: the one that the user named, else one that is made for the run and ends with it."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cluster import kind, kubeconfig
from cluster.access import Cluster
from cluster.control_plane import ControlPlane
from cluster.errors import NoCluster
from cluster.node import NodeCluster
from cluster.own_node import kept_node, own_node

_CHOICE = "KUBEHARNESS_TEST_CLUSTER"
_CHOICES = {
    "given": "the one of KUBECONFIG",
    "up": "the node of `make cluster-up`",
    "kind": "one of kind",
    "own": "a node of our own",
}


def choice() -> str:
    """What the environment names; empty if nothing. KUBECONFIG alone names none, so none is used by mistake.

    Raises NoCluster for a choice that we do not know.
    """
    chosen = os.environ.get(_CHOICE, "")
    if chosen and chosen not in _CHOICES:
        known = ", ".join(f"{name!r} ({what})" for name, what in _CHOICES.items())
        raise NoCluster(f"{_CHOICE} is {chosen!r}: leave it unset for our own cluster, or say {known}")
    return chosen


def is_given() -> bool:
    """Whether the environment names a cluster that is not of our making."""
    return choice() == "given"


def open_cluster() -> AbstractContextManager[Cluster]:
    """Return the cluster for tests that run no pod, to be entered; ClusterError if it cannot be had."""
    return _given_cluster() if is_given() else ControlPlane()


def open_node() -> AbstractContextManager[NodeCluster]:
    """Return the cluster for tests that run pods, to be entered from the main thread; ClusterError if there is none.

    With nothing named it is our own node where we are root, since only that one has a router and a database, else
    one of kind where an engine answers.
    """
    match choice():
        case "given":
            return _given_cluster()
        case "up":
            return _kept()
        case "kind":
            return kind.kind_cluster()
        case "" if os.geteuid() != 0 and kind.is_possible():
            return kind.kind_cluster()
        case _:
            return own_node()


@contextmanager
def _given_cluster() -> Iterator[NodeCluster]:
    """The cluster of KUBECONFIG's current context. It is left as it is, save what tests do to it."""
    path = os.environ.get("KUBECONFIG")
    if not path:
        raise NoCluster(f"{_CHOICE} is 'given', so KUBECONFIG must name the cluster's kubeconfig file")
    merged, endpoint = kubeconfig.read(path)
    folder = Path(tempfile.mkdtemp(prefix="kubeharness-given-cluster-"))
    try:
        copy = folder / "admin.kubeconfig"  # KUBECONFIG may be a list of files; --kubeconfig takes one
        copy.touch(mode=0o600)
        copy.write_text(json.dumps(merged))
        yield NodeCluster(kubeconfig=copy, endpoint=endpoint, folder=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _kept() -> Iterator[NodeCluster]:
    node = kept_node()
    if node is None:
        raise NoCluster(f"{_CHOICE} is 'up', but there is no node: `make cluster-up` starts it")
    with node.entered():
        node.wait_ready()
        yield node
