"""The three ServiceAccounts of the product and their rights, from the manifests in `rbac/`.

The chart's render takes the manifests' place later; the names stay.
"""

from pathlib import Path

from cluster.access import Cluster
from cluster.audit import service_account_user

SYSTEM_NAMESPACE = "kubeharness-system"
OPERATOR, GATEWAY, WORKER = "kubeharness-operator", "kubeharness-gateway", "kubeharness-worker"
USERS = tuple(service_account_user(SYSTEM_NAMESPACE, name) for name in (OPERATOR, GATEWAY, WORKER))

_MANIFESTS = Path(__file__).parent / "rbac"


def install_accounts(cluster: Cluster) -> None:
    """Apply the system namespace, the accounts and their roles. The worker may read no Secret yet."""
    _apply(cluster, "namespace.yaml")
    for name in ("operator.yaml", "gateway.yaml", "worker.yaml"):
        _apply(cluster, name)


def serve_namespace(cluster: Cluster, namespace: str) -> None:
    """Let the worker `get` the Secrets of this namespace."""
    _apply(cluster, "served-namespace.yaml", "--namespace", namespace)


def _apply(cluster: Cluster, name: str, *options: str) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(_MANIFESTS / name), *options)
