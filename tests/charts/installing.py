"""A release's accounts and rights on a real server, and nothing else of it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from charts.rendering import Document, render
from cluster.access import Cluster, Rule

RBAC = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
PLACES = ("RELEASE", "SERVED", "OTHER")
"""The release's namespace, one that is served, one that is not (or whose Secrets are nobody's)."""

Right = tuple[str, str, str, str, str]
"""(account, place, verb, resource, name)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A release's accounts and rights on the server, and three namespaces."""

    cluster: Cluster
    name: str
    places: dict[str, str]

    def rights(self, account: str, *, of: tuple[str, str]) -> set[Right]:
        """What that ServiceAccount, (namespace, name), may do in each place, beyond what every account may."""
        config = self.cluster.service_account_kubeconfig(*of)
        anybody = self.cluster.service_account_kubeconfig(self.places["OTHER"], "anybody")
        found: set[Right] = set()
        for place, namespace in self.places.items():
            common = _flat(self.cluster.can_i_list(namespace=namespace, kubeconfig=anybody))
            own = _flat(self.cluster.can_i_list(namespace=namespace, kubeconfig=config))
            found |= {(account, place, *right) for right in own - common}
        return found


def _flat(rules: list[Rule]) -> set[tuple[str, str, str]]:
    return {
        (verb, f"{resource}.{group}".rstrip("."), name)
        for rule in rules
        for verb in rule.verbs
        for group in rule.groups
        for resource in rule.resources
        for name in rule.names or ("",)
    }


@contextmanager
def installed(cluster: Cluster, values: Document, *, namespaced: bool = False) -> Iterator[Installed]:
    """Apply what a render has of accounts and rights; all of it is gone at the end."""
    tag = secrets.token_hex(3)
    places = {place: f"charts-{place.lower()}-{tag}" for place in PLACES}
    for namespace in places.values():
        cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("create", "serviceaccount", "anybody", "--namespace", places["OTHER"])
    where = {"namespaces": [places["SERVED"]]} if namespaced else {"rbac": {"secretNamespaces": [places["SERVED"]]}}
    rendered = render({**values, **where}, release=f"r{tag}", namespace=places["RELEASE"])
    wanted = [document for document in rendered.objects if document["kind"] in RBAC]
    try:
        cluster.apply(*wanted)
        yield Installed(cluster=cluster, name=f"r{tag}-kubeharness", places=places)
    finally:
        for document in wanted:
            if document["kind"].startswith("Cluster"):
                cluster.kubectl("delete", document["kind"], document["metadata"]["name"], "--wait=false")
        cluster.kubectl("delete", "namespace", *places.values(), "--wait=false")
