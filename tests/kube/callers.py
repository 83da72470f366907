"""ServiceAccounts of a cluster, what RBAC grants them, and their tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.access import Cluster
from cluster.audit import service_account_user

GROUP = "kubeharness.dev"
RBAC = "rbac.authorization.k8s.io"
VIEW = ("get", "list", "watch", "read")
EDIT = (*VIEW, "dispatch", "steer", "cancel")


@dataclass(frozen=True, slots=True)
class Callers:
    """Makes callers in one namespace, which is also where a gateway's account stands."""

    cluster: Cluster
    namespace: str

    def account(self, name: str) -> str:
        """A ServiceAccount without rights; returns its user name."""
        self.cluster.kubectl("create", "serviceaccount", name, "--namespace", self.namespace)
        return service_account_user(self.namespace, name)

    def token(self, name: str, *, audience: str = "") -> str:
        """A token of it, made by the TokenRequest API."""
        more = ("--audience", audience) if audience else ()
        return self.cluster.kubectl("create", "token", name, "--namespace", self.namespace, *more).strip()

    def bearer(self, name: str) -> dict[str, str]:
        """The header that a caller sends."""
        return {"authorization": f"Bearer {self.token(name)}"}

    def grant(self, name: str, *verbs: str, where: str = "", agents: tuple[str, ...] = ()) -> None:
        """Let the account do this with agents of a namespace, its own if none is named."""
        rule: dict[str, Any] = {"apiGroups": [GROUP], "resources": ["agents"], "verbs": list(verbs)}
        if agents:
            rule["resourceNames"] = list(agents)
        where = where or self.namespace
        role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule]}
        self.cluster.apply(role, self._binding(name, "Role", "RoleBinding", name), namespace=where)

    def revoke(self, name: str) -> None:
        """Take it back."""
        self.cluster.kubectl("delete", "rolebinding", name, "--namespace", self.namespace)

    def reviewer(self, name: str = "gateway") -> Path:
        """A kubeconfig of an account that may create reviews and nothing else, as the chart's gateway."""
        self.account(name)
        own = f"{self.namespace}-{name}"
        rules = [
            {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
            {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        ]
        role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": own}, "rules": rules}
        self.cluster.apply(role, self._binding(own, "ClusterRole", "ClusterRoleBinding", name))
        return self.cluster.service_account_kubeconfig(self.namespace, name)

    def forget(self) -> None:
        """Delete what stands outside of the namespace."""
        for kind in ("clusterrolebinding", "clusterrole"):
            self.cluster.kubectl("delete", kind, f"{self.namespace}-gateway", "--ignore-not-found")

    def _binding(self, role: str, of: str, kind: str, account: str) -> dict[str, Any]:
        return {
            "apiVersion": f"{RBAC}/v1",
            "kind": kind,
            "metadata": {"name": role},
            "roleRef": {"apiGroup": RBAC, "kind": of, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
        }
