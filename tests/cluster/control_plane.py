"""Tier one: our own etcd, kube-apiserver and kube-controller-manager on free ports of loopback.

No node, so nothing runs pods: CRDs, CEL, server-side apply, RBAC, garbage collection, namespaces and the
audit log are real, Pods stay Pending. `kind` and whatever runs pods belong to the node tier.
"""

import datetime
import http.client
import json
import shutil
import ssl
import tempfile
import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from cluster import audit, binaries, kubeconfig, pki
from cluster.access import Cluster
from cluster.errors import ProcessFailed
from cluster.processes import Process, free_ports, running

_START_SECONDS = 45.0  # below the limit of a test, so that a failure is told by us, with its log
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_SERVICE_RANGE = "10.96.0.0/16"
_SERVICE_ADDRESS = "10.96.0.1"


class ControlPlane(Cluster):
    """A control plane of our own: ready when the block is entered, all of it gone when the block is left.

    Raises ProcessFailed, with the end of the log, if a process ends early or is not ready in time;
    what had been started is then stopped, and the logs are kept. CommandMissing and BuildFailed come from
    `cluster.binaries`. Enter it from the main thread: see `cluster.processes.running`.
    """

    def __init__(self) -> None:
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        folder = Path(tempfile.mkdtemp(prefix="kubeharness-control-plane-"))
        self._authority = pki.Authority(folder / "pki")
        endpoint = kubeconfig.Endpoint(
            server=f"https://127.0.0.1:{self._port}", ca=self._authority.pair.certificate.read_bytes()
        )
        self._admin = self._authority.client("admin", user="kubernetes-admin", groups=["system:masters"])
        super().__init__(
            kubeconfig=kubeconfig.with_certificate(folder / "admin.kubeconfig", endpoint, self._admin),
            endpoint=endpoint,
            folder=folder,
        )
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
        return self.folder / "audit.log"

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
        self._launch(stack, binaries.etcd(), self._etcd_flags())
        self._launch(stack, kubernetes / "kube-apiserver", self._apiserver_flags(signing, verifying))
        self._wait_for("/readyz", deadline)
        self._launch(stack, kubernetes / "kube-controller-manager", self._controller_manager_flags(signing))
        self.wait_ready(deadline - time.monotonic())

    def _launch(self, stack: ExitStack, executable: Path, flags: dict[str, object]) -> None:
        command = [str(executable), *(f"--{name}={value}" for name, value in flags.items())]
        log = self.folder / f"{executable.name}.log"
        self._running.append(stack.enter_context(running(command, log)))

    def _wait_for(self, path: str, deadline: float) -> None:
        while not self._answers(path):
            for process in self._running:
                process.require_alive()
            if time.monotonic() > deadline:
                raise self._running[-1].failed(f"did not bring up {path} in time")
            time.sleep(0.05)

    def _answers(self, path: str) -> bool:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=5.0, context=self._admin_context())
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False  # not listening yet, or shutting the door while it starts
        finally:
            connection.close()

    def _admin_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca.decode())
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        return context

    def _etcd_flags(self) -> dict[str, object]:
        client = f"http://127.0.0.1:{self._etcd_port}"
        peer = f"http://127.0.0.1:{self._peer_port}"
        return {
            "name": "kubeharness-test",
            "data-dir": self.folder / "etcd",
            "unsafe-no-fsync": "true",  # nothing here outlives the process
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"kubeharness-test={peer}",
            "logger": "zap",
        }

    def _apiserver_flags(self, signing: Path, verifying: Path) -> dict[str, object]:
        serving = self._authority.server(
            "kube-apiserver",
            dns=["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
            addresses=["127.0.0.1", _SERVICE_ADDRESS],
        )
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(audit.POLICY))
        return {
            "etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self._port,
            "endpoint-reconciler-type": "none",  # it refuses a loopback address
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self._authority.pair.certificate,
            "authorization-mode": "RBAC",
            "service-account-issuer": _ISSUER,
            "service-account-signing-key-file": signing,
            "service-account-key-file": verifying,
            "service-cluster-ip-range": _SERVICE_RANGE,
            "allow-privileged": "true",
            "audit-policy-file": policy,
            "audit-log-path": self.audit_log,
            "audit-log-maxsize": 4096,  # MB: a rotated log would be an incomplete one
            "profiling": "false",
        }

    def _controller_manager_flags(self, signing: Path) -> dict[str, object]:
        pair = self._authority.client("controller-manager", user="system:kube-controller-manager")
        path = self.folder / "controller-manager.kubeconfig"
        return {
            "kubeconfig": kubeconfig.with_certificate(path, self._endpoint, pair),
            "secure-port": 0,  # nobody asks for its health: what it does is waited for
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": signing,
            "root-ca-file": self._authority.pair.certificate,
            "cluster-signing-cert-file": self._authority.pair.certificate,
            "cluster-signing-key-file": self._authority.pair.key,
            "service-cluster-ip-range": _SERVICE_RANGE,
            "kube-api-qps": 500,  # the default of 20 holds its start back for five seconds
            "kube-api-burst": 1000,
            "profiling": "false",
        }
