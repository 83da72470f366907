"""Brings up the processes of a node, in the network namespace that the calling thread is in.

The order is that of who waits for whom: etcd, API server and containerd first, then whoever asks the API, the router
last, since it takes the Gateway API's CRDs. Each process is written down before it is waited for, so that
`cluster.leftovers` finds it whatever happens next.
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from cluster import binaries, components, kubeconfig, leftovers, node_files, pki, probes, processes
from cluster.access import Cluster
from cluster.archives import write_archive
from cluster.components import Layout
from cluster.containers import ctr, import_image
from cluster.database import Database
from cluster.errors import KubectlFailed, ProcessFailed
from cluster.namespaces import ADDRESS

_START_SECONDS = 120.0
API_PORT, _KUBELET_PORT = 6443, 10250


@dataclass(frozen=True, slots=True, kw_only=True)
class Executables:
    """Everything that a node runs. Found before its namespace is entered, from which no registry is reached."""

    etcd: Path
    control_plane: Path
    node: Path
    coredns: Path
    traefik: Path
    containerd: Path
    ctr: Path
    pod: Path
    gateway_api_crds: Path

    @classmethod
    def found(cls) -> "Executables":
        """Build and look up all of it. Raises CommandMissing, BuildFailed."""
        remedy = "tests/apt-packages.sh cluster"
        for command, package in (("runc", "runc"), ("iptables", "iptables"), ("conntrack", "conntrack")):
            binaries.debian(command, f"{package}, or run {remedy}")
        return cls(
            etcd=binaries.etcd(),
            containerd=binaries.debian("containerd", f"containerd containernetworking-plugins, or run {remedy}"),
            ctr=binaries.debian("ctr", "containerd"),
            control_plane=binaries.control_plane_binaries(),
            node=binaries.node_binaries(),
            coredns=binaries.coredns(),
            traefik=binaries.traefik(),
            pod=binaries.pod_binaries(),
            gateway_api_crds=binaries.gateway_api_crds(),
        )


class Bringup:
    """One start of one node; `started` are its processes, to be reaped once they were ended."""

    def __init__(self, name: str, folder: Path, executables: Executables, *, outlives_us: bool) -> None:
        self.name = name
        self.folder = folder
        self.started: list[processes.Process] = []
        self._executables = executables
        self._outlives_us = outlives_us
        self._deadline = time.monotonic() + _START_SECONDS
        for part in ("pids", "cni", "logs"):
            (folder / part).mkdir()
        self._layout = Layout(
            folder=folder,
            authority=pki.Authority(folder / "pki"),
            address=ADDRESS,
            port=API_PORT,
            etcd_port=2379,
            peer_port=2380,
        )
        endpoint = self._layout.endpoint
        admin = self._layout.authority.client("admin", user="kubernetes-admin", groups=["system:masters"])
        path = kubeconfig.with_certificate(folder / "admin.kubeconfig", endpoint, admin)
        self._admin = Cluster(kubeconfig=path, endpoint=endpoint, folder=folder)
        self._api = probes.ApiProbe(endpoint.server, endpoint.ca, admin)
        self._service = probes.ApiProbe(f"https://{components.SERVICE_ADDRESS}:443", endpoint.ca, admin)

    def run(self) -> None:
        """Start everything; return once the node is Ready and DNS, a Service and the router answer.

        Raises ProcessFailed with the end of the log of what ended or was not ready in time.
        """
        leftovers.remember_the_machine(self.folder.parent)
        signing = self._start_control_plane()
        self._start_containerd()
        database = Database(self.folder)
        self._start("postgres", database.prepare(outlives_us=self._outlives_us))
        self._until("kube-apiserver", lambda: self._api.answers("/readyz"))
        self._start_api_clients(signing)
        self._start_kubelet()
        self._start_router()
        self._until("postgres", database.answers)
        self._until("kubelet", self._node_is_ready)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._until("kube-controller-manager", lambda: self._api.answers(account))
        domain = f"kubernetes.default.svc.{node_files.DOMAIN}"
        self._until("coredns", lambda: probes.resolve(domain, server=ADDRESS) == [components.SERVICE_ADDRESS])
        self._until("kube-proxy", lambda: self._service.answers("/readyz"))
        self._until("traefik", self._router_is_programmed)

    def _start_control_plane(self) -> Path:
        signing, verifying = pki.signing_key(self.folder)
        apiserver = components.apiserver_flags(self._layout, signing=signing, verifying=verifying)
        apiserver |= components.kubelet_access_flags(self._layout)
        self._start("etcd", components.command(self._executables.etcd, components.etcd_flags(self._layout)))
        executable = self._executables.control_plane / "kube-apiserver"
        self._start("kube-apiserver", components.command(executable, apiserver))
        return signing

    def _start_containerd(self) -> None:
        config = self._file("containerd.toml", node_files.containerd(self.folder))
        self._document("cni/10-pods.conflist", node_files.cni(self.name, self.folder))
        self._start("containerd", [str(self._executables.containerd), "--config", str(config)])
        self._until("containerd", lambda: self._ctr_answers("version"))
        with tempfile.TemporaryDirectory() as scratch:
            archive = write_archive(Path(scratch, "pause.tar"), node_files.PAUSE_IMAGE, self._executables.pod / "pause")
            import_image(self._executables.ctr, self.folder, archive)

    def _start_api_clients(self, signing: Path) -> None:
        controllers = components.controller_manager_flags(self._layout, signing=signing)
        executable = self._executables.control_plane / "kube-controller-manager"
        self._start("kube-controller-manager", components.command(executable, controllers))
        scheduler: components.Flags = {
            "kubeconfig": self._layout.client("scheduler", user="system:kube-scheduler"),
            "leader-elect": "false",
            "secure-port": 0,
        }
        self._start("kube-scheduler", components.command(self._executables.node / "kube-scheduler", scheduler))
        proxy = node_files.kube_proxy(self._layout.client("kube-proxy", user="system:kube-proxy"))
        config: components.Flags = {"config": self._document("kube-proxy.json", proxy)}
        self._start("kube-proxy", components.command(self._executables.node / "kube-proxy", config))
        names = self._layout.client("coredns", user="coredns", groups=("system:masters",))
        corefile = self._file("Corefile", node_files.corefile(names))
        self._start("coredns", [str(self._executables.coredns), "-conf", str(corefile)])

    def _start_kubelet(self) -> None:
        """Its cgroup must be there before it."""
        leftovers.make_cgroups(self.name)
        (self.folder / "resolv.conf").write_text("")
        pair = self._layout.authority.server("kubelet", dns=[node_files.NODE], addresses=[ADDRESS])
        config = node_files.kubelet(
            self.folder,
            ca=self._layout.authority.pair.certificate,
            certificate=pair.certificate,
            key=pair.key,
            cgroup=self.name,
        )
        user, groups = f"system:node:{node_files.NODE}", ("system:nodes",)
        flags: components.Flags = {
            "config": self._document("kubelet.json", config),
            "kubeconfig": self._layout.client("node", user=user, groups=groups),
            "root-dir": self.folder / "kubelet",
            "hostname-override": node_files.NODE,
            "node-ip": ADDRESS,
        }
        self._start("kubelet", components.command(self._executables.node / "kubelet", flags))

    def _start_router(self) -> None:
        self._admin.kubectl("apply", "--server-side", "-f", str(self._executables.gateway_api_crds), timeout=60)
        self._admin.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        self._admin.apply(*node_files.router_objects())
        config = self._document("traefik.yaml", node_files.traefik())
        access = self._layout.client("traefik", user="traefik", groups=("system:masters",))
        command = [str(self._executables.traefik), f"--configfile={config}"]
        self._start("traefik", command, {"KUBECONFIG": str(access)})

    def _node_is_ready(self) -> bool:
        return self._condition("Ready", "node", node_files.NODE)

    def _router_is_programmed(self) -> bool:
        programmed = self._condition("Programmed", "gateway", node_files.ROUTER, "-n", node_files.ROUTER)
        return programmed and probes.http_status(ADDRESS, node_files.ROUTER_PORT, "/") == 404

    def _condition(self, type: str, *object: str) -> bool:
        """Whether a condition is true; not yet, if the object is not there or kubectl is late."""
        path = f"jsonpath={{.status.conditions[?(@.type=='{type}')].status}}"
        try:
            return self._admin.kubectl("get", *object, "-o", path) == "True"
        except KubectlFailed:
            return False

    def _ctr_answers(self, *args: str) -> bool:
        return ctr(self._executables.ctr, self.folder, *args).returncode == 0

    def _start(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.started.append(start_part(self.folder, name, command, environment or {}, self._outlives_us))

    def _until(self, name: str, holds: Callable[[], bool]) -> None:
        while not holds():
            for process in self.started:
                process.require_alive()
            if time.monotonic() > self._deadline:
                raise self._failed(name)
            time.sleep(0.05)

    def _failed(self, name: str) -> ProcessFailed:
        process = next(process for process in self.started if process.log.stem == name)
        return process.failed(f"was not ready {_START_SECONDS:.0f} s after the start")

    def _file(self, name: str, content: str) -> Path:
        (self.folder / name).write_text(content)
        return self.folder / name

    def _document(self, name: str, document: node_files.Document) -> Path:
        """JSON, unless Traefik reads it: that goes by the name's end and knows no JSON."""
        return self._file(name, yaml.safe_dump(document) if name.endswith(".yaml") else json.dumps(document, indent=1))


def start_part(
    folder: Path, name: str, command: list[str], environment: Mapping[str, str], outlives_us: bool
) -> processes.Process:
    """Start a process of a node and write it down, so that it is found again by whoever ends the node."""
    log = folder / "logs" / f"{name}.log"
    process = processes.start(command, log, outlives_us=outlives_us, environment=environment)
    leftovers.Started.of(process.pid, command, dict(environment)).write(folder / "pids" / f"{name}.json")
    return process


def kubelet_listens() -> bool:
    """Whether a kubelet serves: the last thing that it does when it starts."""
    return probes.accepts(ADDRESS, _KUBELET_PORT)
