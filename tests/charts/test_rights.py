"""What the chart's accounts and roles may do, asked of a real server with their own tokens, against rights.txt."""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from charts.rendering import Document, render
from cluster.access import Cluster, Rule

RIGHTS = (Path(__file__).parent / "rights.txt").read_text()
RBAC = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
KINDS = ("agents", "modelproviders", "toolservers")
ACCOUNTS = ("gateway", "worker", "operator", "migrate")
PLACES = ("RELEASE", "SERVED", "OTHER")
AGGREGATION_SECONDS = 20.0

Right = tuple[str, str, str, str, str]
"""(account, place, verb, resource, name)"""


def written(section: str, name: str) -> set[Right]:
    """A section of rights.txt, its shorthands written out."""
    [body] = re.findall(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", RIGHTS, re.MULTILINE | re.DOTALL)
    found: set[Right] = set()
    for line in body.splitlines():
        if not line.strip():
            continue
        account, place, verb, resource, *names = line.split()
        resources = [f"{kind}.kubeharness.dev" for kind in KINDS] if resource == "KINDS" else [resource]
        for where in PLACES if place == "*" else (place,):
            found |= {(account, where, verb, one, "".join(names).replace("NAME", name)) for one in resources}
    return found


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


@pytest.fixture(scope="module")
def cluster_mode(control_plane: Cluster) -> Iterator[Installed]:
    with installed(control_plane, {"auth": {"modes": ["token", "kubernetes"]}}) as release:
        yield release


@pytest.fixture(scope="module")
def namespaced_mode(control_plane: Cluster) -> Iterator[Installed]:
    values = {"auth": {"modes": ["token", "kubernetes"]}, "rbac": {"authDelegator": True}}
    with installed(control_plane, values, namespaced=True) as release:
        yield release


@pytest.mark.parametrize("mode", ["cluster", "namespaced"])
def test_each_account_may_do_what_is_written_and_no_more(mode: str, request: pytest.FixtureRequest) -> None:
    release: Installed = request.getfixturevalue(f"{mode}_mode")
    found: set[Right] = set()
    for account in ACCOUNTS:
        found |= release.rights(account, of=(release.places["RELEASE"], f"{release.name}-{account}"))

    assert found == written(mode, release.name)


def test_a_gateway_with_tokens_alone_may_do_nothing(control_plane: Cluster) -> None:
    with installed(control_plane, {}) as release:
        assert release.rights("gateway", of=(release.places["RELEASE"], f"{release.name}-gateway")) == set()


def test_people_may_do_what_their_role_says_and_no_more(cluster_mode: Installed) -> None:
    cluster, served = cluster_mode.cluster, cluster_mode.places["SERVED"]
    found: set[Right] = set()
    for role in ("viewer", "editor", "admin"):
        cluster.kubectl("create", "serviceaccount", role, "--namespace", served)
        cluster.kubectl(
            "create",
            "rolebinding",
            role,
            f"--clusterrole={cluster_mode.name}-{role}",
            f"--serviceaccount={served}:{role}",
            "--namespace",
            served,
        )
        found |= cluster_mode.rights(role, of=(served, role))

    assert found == written("people", cluster_mode.name)


@pytest.mark.parametrize(("role", "verb"), [("view", "read"), ("edit", "dispatch"), ("admin", "approve")])
def test_the_cluster_s_own_roles_take_ours_in(cluster_mode: Installed, role: str, verb: str) -> None:
    deadline = time.monotonic() + AGGREGATION_SECONDS
    while True:
        rules = cluster_mode.cluster.kubectl_json("get", "clusterrole", role)["rules"]
        if any(verb in rule["verbs"] and "agents" in rule["resources"] for rule in rules):
            break
        assert time.monotonic() < deadline, f"{role} never took {verb} in"
        time.sleep(0.2)
