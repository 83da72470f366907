"""What a test may ask of a cluster that runs pods, whichever it got.

Here stands what every cluster can do, and how one says that it cannot. Our own node is `cluster.own_node`, kind's
`cluster.kind`; a given cluster is a `NodeCluster` as it is.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

from cluster.access import Cluster
from cluster.errors import NotOffered
from cluster.kubeconfig import Endpoint


class NodeCluster(Cluster):
    """A cluster with nodes, seen as its administrator.

    Where it has a network of its own, the thread that opened it is inside: see `entered` and `outside`. What only
    our own node can do raises NotOffered elsewhere.
    """

    kind = "a given cluster"
    """What it is, for a person."""

    def __init__(self, *, kubeconfig: Path, endpoint: Endpoint, folder: Path) -> None:
        super().__init__(kubeconfig=kubeconfig, endpoint=endpoint, folder=folder)

    @property
    def name(self) -> str:
        """What the API calls the node; the first one's name if there are many."""
        return self.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")

    @property
    def address(self) -> str:
        """Where pods reach what a test serves, if it listens there."""
        self._refuse("an address at which pods reach the test")

    @property
    def router(self) -> str:
        """The URL under which Ingresses and HTTPRoutes are served, told apart by host and path."""
        self._refuse("a router for Ingress and Gateway API")

    @property
    def nsenter(self) -> list[str]:
        """What to write before a command of the host's so that it is in the cluster's network."""
        return []

    def entered(self) -> AbstractContextManager[None]:
        """This thread, and what it starts, is in the cluster's network for as long as the block lasts."""
        return nullcontext()

    def outside(self) -> AbstractContextManager[None]:
        """This thread, and what it starts, is in the host's network for as long as the block lasts.

        There, and not in a network of the cluster's own, package registries are reached.
        """
        return nullcontext()

    def import_image(self, archive: Path) -> list[str]:
        """Give the node the images of an archive (OCI or docker) and return their names. Raises ImportFailed."""
        self._refuse("importing an image")

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database with a role that owns it; return the DSN that pods use."""
        self._refuse("a Postgres beside the cluster")

    def kill_kubelet(self) -> None:
        """End the kubelet with SIGKILL. Its pods go on; the API keeps the node Ready for some 50 s."""
        self._refuse("killing the kubelet")

    def start_kubelet(self) -> None:
        """Start it again as it was, and return when it serves and the node is Ready. Nothing if it runs."""
        self._refuse("starting the kubelet")

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once the nodes are Ready. Raises ClusterError."""
        self.kubectl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={timeout:.0f}s", timeout=timeout)

    def _refuse(self, what: str) -> NoReturn:
        raise NotOffered(what, self.kind)
