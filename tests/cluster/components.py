"""The command lines of etcd, kube-apiserver and kube-controller-manager, wherever a control plane listens.

Pure but for the key files that they name: nothing is started here. Tier one puts them on loopback, the node tier
adds what a kubelet needs.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cluster import audit, kubeconfig, pki

ISSUER = "https://kubernetes.default.svc.cluster.local"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"

Flags = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where one control plane keeps its files and listens."""

    folder: Path
    authority: pki.Authority
    address: str
    port: int
    etcd_port: int
    peer_port: int

    @property
    def endpoint(self) -> kubeconfig.Endpoint:
        """Where its API server answers."""
        return kubeconfig.Endpoint(
            server=f"https://{self.address}:{self.port}", ca=self.authority.pair.certificate.read_bytes()
        )

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes, one JSON event a line."""
        return self.folder / "audit.log"

    @property
    def etcd_url(self) -> str:
        """Where etcd answers: always on loopback."""
        return f"http://127.0.0.1:{self.etcd_port}"

    def client(self, name: str, *, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Make the kubeconfig of a component that shows a certificate of this user."""
        pair = self.authority.client(name, user=user, groups=groups)
        return kubeconfig.with_certificate(self.folder / f"{name}.kubeconfig", self.endpoint, pair)


def etcd_flags(layout: Layout) -> Flags:
    """Debian's etcd, one member, on loopback."""
    peer = f"http://127.0.0.1:{layout.peer_port}"
    return {
        "name": "kubeharness-test",
        "data-dir": layout.folder / "etcd",
        "unsafe-no-fsync": "true",  # nothing here outlives the process
        "listen-client-urls": layout.etcd_url,
        "advertise-client-urls": layout.etcd_url,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"kubeharness-test={peer}",
        "logger": "zap",
    }


def apiserver_flags(layout: Layout, *, signing: Path, verifying: Path) -> Flags:
    """The API server with RBAC, the audit log, and ServiceAccount tokens signed by that key."""
    serving = layout.authority.server(
        "kube-apiserver",
        dns=["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
        addresses=[*{"127.0.0.1", layout.address}, SERVICE_ADDRESS],
    )
    policy = layout.folder / "audit-policy.json"
    policy.write_text(json.dumps(audit.POLICY))
    return {
        "etcd-servers": layout.etcd_url,
        "bind-address": layout.address,
        "advertise-address": layout.address,
        "secure-port": layout.port,
        "tls-cert-file": serving.certificate,
        "tls-private-key-file": serving.key,
        "client-ca-file": layout.authority.pair.certificate,
        "authorization-mode": "RBAC",
        "service-account-issuer": ISSUER,
        "service-account-signing-key-file": signing,
        "service-account-key-file": verifying,
        "service-cluster-ip-range": SERVICE_RANGE,
        "allow-privileged": "true",
        "audit-policy-file": policy,
        "audit-log-path": layout.audit_log,
        "audit-log-maxsize": 4096,  # MB: a rotated log would be an incomplete one
        "profiling": "false",
    }


def kubelet_access_flags(layout: Layout) -> Flags:
    """What an API server needs beside that to reach kubelets and to pass requests on to other API servers."""
    kubelet = layout.authority.client("kubelet-client", user="kube-apiserver", groups=["system:masters"])
    proxy = layout.authority.client("front-proxy", user="front-proxy")
    return {
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "kubelet-client-certificate": kubelet.certificate,
        "kubelet-client-key": kubelet.key,
        "kubelet-certificate-authority": layout.authority.pair.certificate,
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": layout.authority.pair.certificate,
        "requestheader-allowed-names": "front-proxy",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": proxy.certificate,
        "proxy-client-key-file": proxy.key,
    }


def controller_manager_flags(layout: Layout, *, signing: Path) -> Flags:
    """All controllers, each under its own account."""
    return {
        "kubeconfig": layout.client("controller-manager", user="system:kube-controller-manager"),
        "secure-port": 0,  # nobody asks for its health: what it does is waited for
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": signing,
        "root-ca-file": layout.authority.pair.certificate,
        "cluster-signing-cert-file": layout.authority.pair.certificate,
        "cluster-signing-key-file": layout.authority.pair.key,
        "service-cluster-ip-range": SERVICE_RANGE,
        "kube-api-qps": 500,  # the default of 20 holds its start back for five seconds
        "kube-api-burst": 1000,
        "profiling": "false",
    }


def command(executable: Path, flags: Flags) -> list[str]:
    """The command line of these flags."""
    return [str(executable), *(f"--{name}={value}" for name, value in flags.items())]
