"""Tier two: a whole cluster of one node in a network namespace of its own, which really runs pods.

etcd, API server, controller-manager, scheduler, containerd, kubelet, kube-proxy, CoreDNS, a router for Ingress and
Gateway API, and a Postgres beside them that stands for the user's. Nothing of the host's network is touched; what a
node puts elsewhere `cluster.leftovers` takes away again.

Whoever talks to it must be inside its network: `own_node` and `entered` take the calling thread there.
"""

import datetime
import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cluster import audit, bringup, containers, leftovers, node_files, probes
from cluster.binaries import debian
from cluster.database import Database
from cluster.errors import KubectlFailed, NoCluster, NotReady
from cluster.kubeconfig import Endpoint
from cluster.namespaces import ADDRESS, NetworkNamespace
from cluster.node import NodeCluster
from cluster.processes import Process

CLUSTERS = Path("/var/lib/kubeharness/clusters")
KEPT = "kubeharness"
"""The name of the node that `make cluster-up` leaves running."""

_READY_SECONDS = 60.0


class OwnNode(NodeCluster):
    """A running node of our own, seen as its administrator by a thread that is inside its network.

    Its address is the gateway of the pods' network: Postgres and the router listen there too.
    """

    kind = "a node of our own"

    def __init__(self, folder: Path) -> None:
        self.namespace = NetworkNamespace(folder.name)
        state = json.loads((folder / "state.json").read_text())
        endpoint = Endpoint(server=state["server"], ca=(folder / "pki" / "ca.crt").read_bytes())
        super().__init__(kubeconfig=folder / "admin.kubeconfig", endpoint=endpoint, folder=folder)
        self.database = Database(folder)
        self._kept: bool = state["kept"]
        self._started: list[Process] = []

    @property
    def name(self) -> str:
        """What the API calls the node."""
        return node_files.NODE

    @property
    def address(self) -> str:
        """Where pods reach what a test serves, if it listens there."""
        return ADDRESS

    @property
    def router(self) -> str:
        """The URL under which Ingresses and HTTPRoutes are served, told apart by host and path."""
        return f"http://{ADDRESS}:{node_files.ROUTER_PORT}"

    @property
    def nsenter(self) -> list[str]:
        """What to write before a command of the host's so that it is in the node's network."""
        return self.namespace.nsenter

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes, one JSON event a line."""
        return self.folder / "audit.log"

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs, and of the pods' in `pods`."""
        return self.folder / "logs"

    def audit_writes(self, since: datetime.datetime, users: Collection[str] | None = None) -> list[audit.Write]:
        """Return the writes that the server answered since then, by these users or by all."""
        return audit.read_writes(self.audit_log, since=since, users=users)

    def entered(self) -> AbstractContextManager[None]:
        """This thread, and what it starts, is in the node's network for as long as the block lasts."""
        return self.namespace.entered()

    def outside(self) -> AbstractContextManager[None]:
        """This thread, and what it starts, is in the host's network for as long as the block lasts."""
        return self.namespace.left()

    def import_image(self, archive: Path) -> list[str]:
        """Give the node the images of an archive (OCI or docker) and return their names. Raises ImportFailed.

        Pods need `imagePullPolicy: Never` or `IfNotPresent`: the node reaches no registry.
        """
        return containers.import_image(debian("ctr", "containerd"), self.folder, archive)

    def create_database(self, name: str | None = None) -> str:
        """Make an empty database with a role that owns it; return the DSN that pods use."""
        return self.database.create(name)

    def kill_kubelet(self) -> None:
        """End the kubelet with SIGKILL. Its pods go on; the API keeps the node Ready for some 50 s."""
        kubelet = self._kubelet()
        if kubelet.lives():
            os.kill(kubelet.pid, signal.SIGKILL)
        _until(lambda: not kubelet.lives(), 10.0, "the killed kubelet is still there")

    def start_kubelet(self) -> None:
        """Start it again as it was, and return when it serves and the node is Ready. Nothing if it runs."""
        before = self._kubelet()
        if not before.lives():
            arguments = (self.folder, "kubelet", before.command, before.environment, self._kept)
            self.owns(bringup.start_part(*arguments))
        self.wait_ready()
        _until(self._kubelet_knows_its_pods, _READY_SECONDS, "the kubelet did not take its pods up again")

    def _kubelet_knows_its_pods(self) -> bool:
        """Whether it has read from the API which pods are its: until then it denies that they exist."""
        answer = json.loads(self.kubectl("get", "--raw", f"/api/v1/nodes/{self.name}/proxy/pods"))
        known = answer["items"] or []
        bound = self.kubectl_json("get", "pods", "-A", f"--field-selector=spec.nodeName={self.name}")["items"]
        return {pod["metadata"]["uid"] for pod in bound} <= {pod["metadata"]["uid"] for pod in known}

    def wait_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Return once kubelet, API server, DNS and router answer and the node is Ready. Raises NotReady."""
        _until(self.is_ready, timeout, f"the node is not ready; its logs are in {self.logs}")

    def is_ready(self) -> bool:
        """Whether every process runs and answers."""
        if not all(leftovers.Started.read(path).lives() for path in (self.folder / "pids").glob("*.json")):
            return False
        answers = bringup.kubelet_listens() and bool(
            probes.resolve("kubernetes.default.svc.cluster.local", server=ADDRESS)
        )
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        done = self._execute("get", "node", self.name, "-o", path, input=None, timeout=10.0, kubeconfig=None)
        return answers and done.stdout == "True" and probes.http_status(ADDRESS, node_files.ROUTER_PORT, "/") == 404

    def _kubelet(self) -> leftovers.Started:
        return leftovers.Started.read(self.folder / "pids" / "kubelet.json")

    def owns(self, process: Process) -> None:
        """Take a process of the node, to be buried here or, if the node is kept, never."""
        if self._kept:
            process.let_go()
        else:
            self._started.append(process)

    def reap(self) -> None:
        """Bury the processes that were started here, once they were ended."""
        for process in self._started:
            process.stop()


@contextmanager
def own_node() -> Iterator[OwnNode]:
    """A node for as long as the block lasts; the calling thread, which must be the main one, is in its network.

    First it clears what killed runs left. Raises ProcessFailed, whose message names a copy of the logs, and
    CommandMissing, BuildFailed, NamespaceFailed.
    """
    clear_abandoned()
    name = f"khn-{secrets.token_hex(3)}"
    try:
        with _brought_up(name, kept=False) as (node, end):
            try:
                with node.entered():
                    yield node
            finally:
                end()
                node.reap()
    finally:
        (CLUSTERS / f"{name}.lock").unlink(missing_ok=True)


def keep_node() -> OwnNode:
    """Return the node that stays until `end_kept_node`; started if it does not run, anew if it is not whole."""
    clear_abandoned()
    node = kept_node()
    if node is not None:
        with node.entered():
            if _told(node.is_ready):
                return node
        end_kept_node()
    with _brought_up(KEPT, kept=True) as (node, _):
        return node


def kept_node() -> OwnNode | None:
    """The node that `keep_node` left running, as far as its files tell; None if there is none."""
    folder = CLUSTERS / KEPT
    alive = (folder / "state.json").exists() and NetworkNamespace(KEPT).path.exists()
    return OwnNode(folder) if alive else None


def end_kept_node() -> None:
    """End it and take away what it left. Nothing happens if there is none. Raises NoCluster while it starts."""
    with _locked(KEPT) as free:
        if not free:
            raise NoCluster("the node is being started by another process; try again when that has ended")
        leftovers.sweep(CLUSTERS / KEPT, KEPT)


def clear_abandoned() -> None:
    """Take away what nodes left whose starter was killed. A kept node, and one whose starter lives, stay.

    Raises NoCluster if we are not root, SweepFailed if something stays.
    """
    if os.geteuid() != 0:
        raise NoCluster("a node of our own takes root: it makes a network namespace, mounts and cgroups")
    for folder in CLUSTERS.glob("*/"):
        with _locked(folder.name) as free:
            if free and not _is_kept(folder):
                leftovers.sweep(folder, folder.name)
                (CLUSTERS / f"{folder.name}.lock").unlink(missing_ok=True)


@contextmanager
def _brought_up(name: str, *, kept: bool) -> Iterator[tuple[OwnNode, Callable[[], None]]]:
    """A node and how to end it. Its name is locked for as long as the block lasts."""
    executables = bringup.Executables.found()
    folder = CLUSTERS / name
    with _locked(name) as free:
        if not free:
            raise NoCluster(f"the node {name} is being started by another process; try again when that has ended")
        leftovers.sweep(folder, name)
        folder.mkdir(parents=True)
        start: bringup.Bringup | None = None
        try:
            namespace = NetworkNamespace(name)
            namespace.create()
            with namespace.entered():
                start = bringup.Bringup(name, folder, executables, outlives_us=kept)
                start.run()
            server = f"https://{ADDRESS}:{bringup.API_PORT}"
            (folder / "state.json").write_text(json.dumps({"server": server, "kept": kept}))  # last: it is whole
        except BaseException as error:
            error.add_note(f"the logs of the node are in {_copied_logs(folder)}")
            leftovers.sweep(folder, name)
            for process in start.started if start else ():
                process.stop()
            raise
        node = OwnNode(folder)
        for process in start.started:
            node.owns(process)
        yield node, lambda: leftovers.sweep(folder, name)


@contextmanager
def _locked(name: str) -> Iterator[bool]:
    """Whether nobody else holds the node; if so, we do until the block ends or the kernel ends us."""
    CLUSTERS.mkdir(parents=True, exist_ok=True)
    with (CLUSTERS / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _is_kept(folder: Path) -> bool:
    state = folder / "state.json"
    return state.exists() and bool(json.loads(state.read_text())["kept"])


def _copied_logs(folder: Path) -> Path:
    copy = Path(tempfile.mkdtemp(prefix="kubeharness-node-logs-"))
    shutil.copytree(folder / "logs", copy, dirs_exist_ok=True, ignore_dangling_symlinks=True)
    return copy


def _until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """What kubectl cannot tell on a busy machine does not hold yet."""
    deadline = time.monotonic() + seconds
    while not _told(holds):
        if time.monotonic() > deadline:
            raise NotReady(otherwise)
        time.sleep(0.1)


def _told(holds: Callable[[], bool]) -> bool:
    try:
        return holds()
    except KubectlFailed:
        return False
