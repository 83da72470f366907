"""The three ServiceAccounts of the product and their rights, as the chart renders them in cluster mode."""

from charts.rendering import NAMESPACE, Document, render
from cluster.access import Cluster
from cluster.audit import service_account_user

SYSTEM_NAMESPACE = NAMESPACE
OPERATOR, GATEWAY, WORKER = "kubeharness-operator", "kubeharness-gateway", "kubeharness-worker"
USERS = tuple(service_account_user(SYSTEM_NAMESPACE, name) for name in (OPERATOR, GATEWAY, WORKER))

_RIGHTS = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def install_accounts(cluster: Cluster) -> None:
    """Apply the system namespace, the accounts and their roles. The worker may read no Secret yet."""
    system = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}}
    cluster.apply(system, *_rights())


def serve_namespace(cluster: Cluster, namespace: str) -> None:
    """Let the worker `get` the Secrets of this namespace."""
    cluster.apply(*(right for right in _rights(namespace) if right["metadata"].get("namespace") == namespace))


def _rights(*served: str) -> list[Document]:
    rendered = render({"rbac": {"secretNamespaces": list(served)}})
    return [document for document in rendered.objects if document["kind"] in _RIGHTS]
