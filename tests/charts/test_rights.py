"""What the chart's accounts and roles may do, asked of a real server with their own tokens, against rights.txt."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from charts.installing import PLACES, Installed, Right, installed
from cluster.access import Cluster

RIGHTS = (Path(__file__).parent / "rights.txt").read_text()
KINDS = ("agents", "modelproviders", "toolservers")
ACCOUNTS = ("gateway", "worker", "operator", "migrate")
AGGREGATION_SECONDS = 20.0


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
