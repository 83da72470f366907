"""Tier one: our own etcd, kube-apiserver and kube-controller-manager on free ports of loopback.

No node, so nothing runs pods: CRDs, CEL, server-side apply, RBAC, garbage collection, namespaces and the
audit log are real, Pods stay Pending. `kind` and whatever runs pods belong to the node tier.
"""

import datetime
import shutil
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster import audit, binaries, components, kubeconfig, pki, probes
from cluster.access import Cluster
from cluster.components import Layout
from cluster.errors import ProcessFailed
from cluster.processes import Process, free_ports, running

_START_SECONDS = 45.0  # below the limit of a test, so that a failure is told by us, with its log


class ControlPlane(Cluster):
    """A control plane of our own: ready when the block is entered, all of it gone when the block is left.

    Raises ProcessFailed, with the end of the log, if a process ends early or is not ready in time;
    what had been started is then stopped, and the logs are kept. CommandMissing and BuildFailed come from
    `cluster.binaries`. Enter it from the main thread: see `cluster.processes.running`.
    """

    def __init__(self) -> None:
        etcd_port, peer_port, port = free_ports(3)
        folder = Path(tempfile.mkdtemp(prefix="kubeharness-control-plane-"))
        self._layout = Layout(
            folder=folder,
            authority=pki.Authority(folder / "pki"),
            address="127.0.0.1",
            port=port,
            etcd_port=etcd_port,
            peer_port=peer_port,
        )
        endpoint = self._layout.endpoint
        admin = self._layout.authority.client("admin", user="kubernetes-admin", groups=["system:masters"])
        super().__init__(
            kubeconfig=kubeconfig.with_certificate(folder / "admin.kubeconfig", endpoint, admin),
            endpoint=endpoint,
            folder=folder,
        )
        self._probe = probes.ApiProbe(endpoint.server, endpoint.ca, admin)
        self._stack = ExitStack()
        self._running: list[Process] = []

    def __enter__(self) -> Self:
        try:
            with ExitStack() as starting:
                self._start(starting)
                self._stack = starting.pop_all()
        except ProcessFailed:
            raise  # it names a log in our folder
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes, one JSON event a line."""
        return self._layout.audit_log

    def audit_writes(self, since: datetime.datetime, users: Collection[str] | None = None) -> list[audit.Write]:
        """Return the writes that the server answered since then, by these users or by all."""
        return audit.read_writes(self.audit_log, since=since, users=users)

    def wait_ready(self, timeout: float = _START_SECONDS) -> None:
        """Return once the API server is ready and the controller-manager does its work; else ProcessFailed.

        The sign of the latter is the ServiceAccount of namespace `default`, which one of its controllers
        makes.
        """
        deadline = time.monotonic() + timeout
        self._wait_for("/readyz", deadline)
        self._wait_for("/api/v1/namespaces/default/serviceaccounts/default", deadline)

    def _start(self, stack: ExitStack) -> None:
        """Start all three. The last one waits only ten seconds for the API server, so we wait before it."""
        kubernetes = binaries.control_plane_binaries()
        deadline = time.monotonic() + _START_SECONDS
        signing, verifying = pki.signing_key(self.folder)
        apiserver = components.apiserver_flags(self._layout, signing=signing, verifying=verifying)
        apiserver["endpoint-reconciler-type"] = "none"  # it refuses a loopback address
        controllers = components.controller_manager_flags(self._layout, signing=signing)
        self._launch(stack, binaries.etcd(), components.etcd_flags(self._layout))
        self._launch(stack, kubernetes / "kube-apiserver", apiserver)
        self._wait_for("/readyz", deadline)
        self._launch(stack, kubernetes / "kube-controller-manager", controllers)
        self.wait_ready(deadline - time.monotonic())

    def _launch(self, stack: ExitStack, executable: Path, flags: components.Flags) -> None:
        log = self.folder / f"{executable.name}.log"
        self._running.append(stack.enter_context(running(components.command(executable, flags), log)))

    def _wait_for(self, path: str, deadline: float) -> None:
        while not self._probe.answers(path):
            for process in self._running:
                process.require_alive()
            if time.monotonic() > deadline:
                raise self._running[-1].failed(f"did not bring up {path} in time")
            time.sleep(0.05)
