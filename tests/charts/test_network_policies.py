"""The policies, evaluated: who reaches whom. Nothing here enforces them (docs/howto/install.md says so)."""

import pytest

from charts.policies import Peer, Policies
from charts.rendering import NAMESPACE, Rendered, render

PUBLIC, PUBLIC_SIX = "203.0.113.7", "2001:db8::7"
PRIVATE = ("10.1.2.3", "172.16.9.9", "192.168.1.1", "100.64.0.1", "fd00::1", "fe80::1", "::1")
METADATA = "169.254.169.254"
OURS = ("gateway", "worker", "operator", "migrate")


def pod(component: str, rendered: Rendered) -> Peer:
    """A pod of ours, with the labels that its template has."""
    [labels] = [
        made["metadata"]["labels"]
        for made in rendered.pods().values()
        if made["metadata"]["labels"]["app.kubernetes.io/component"] == component
    ]
    return Peer(namespace=NAMESPACE, labels=labels)


def elsewhere(namespace: str = "elsewhere", **labels: str) -> Peer:
    return Peer(namespace=namespace, labels=labels)


@pytest.fixture(scope="module")
def default() -> Rendered:
    return render(profile="default")


@pytest.fixture(scope="module")
def external() -> Rendered:
    return render(profile="external-dsn")


@pytest.fixture(scope="module")
def dev() -> Rendered:
    return render(profile="dev-postgres")


def policies(rendered: Rendered) -> Policies:
    return Policies(rendered.of("NetworkPolicy"))


def test_every_pod_of_ours_is_under_a_policy_both_ways(dev: Rendered) -> None:
    stranger = Peer(address=PUBLIC)
    for component in (*OURS, "postgres"):
        ours = pod(component, dev)

        assert not policies(dev).allow(ours, stranger, 81), component
        assert not policies(dev).allow(stranger, ours, 81), component


def test_only_the_api_port_is_reached_from_outside(default: Rendered) -> None:
    found = {
        (component, port)
        for component in OURS
        for port in (8484, 8481, 22)
        if policies(default).allow(elsewhere(), pod(component, default), port)
    }

    assert found == {("gateway", 8484)}


def test_the_named_peers_and_no_others_reach_api_and_metrics(external: Rendered) -> None:
    rules = policies(external)
    gateway, worker = pod("gateway", external), pod("worker", external)

    assert rules.allow(elsewhere("edge"), gateway, 8484)
    assert not rules.allow(elsewhere(), gateway, 8484)
    for ours in (gateway, worker, pod("operator", external)):
        assert rules.allow(elsewhere("monitoring"), ours, 8481)
        assert not rules.allow(elsewhere("edge"), ours, 8481)
    assert not rules.allow(elsewhere("monitoring"), worker, 8484)


@pytest.mark.parametrize("component", OURS)
def test_every_process_resolves_names_and_reaches_postgres(default: Rendered, component: str) -> None:
    ours = pod(component, default)

    assert policies(default).allow(ours, Peer(address="10.96.0.10"), 53, "UDP")
    assert policies(default).allow(ours, Peer(address="10.96.0.10"), 53, "TCP")
    assert policies(default).allow(ours, Peer(address=PUBLIC), 5432)


@pytest.mark.parametrize("component", OURS)
def test_postgres_is_only_where_it_was_said_to_be(external: Rendered, component: str) -> None:
    ours = pod(component, external)

    assert policies(external).allow(ours, Peer(address="10.7.0.9"), 6432)
    assert not policies(external).allow(ours, Peer(address="10.7.1.9"), 6432)


@pytest.mark.parametrize("component", OURS)
def test_the_dev_postgres_is_reached_by_our_pods_alone(dev: Rendered, component: str) -> None:
    postgres = pod("postgres", dev)

    assert policies(dev).allow(pod(component, dev), postgres, 5432)
    assert not policies(dev).allow(pod(component, dev), Peer(address=PUBLIC), 5432)
    assert not policies(dev).allow(elsewhere(**pod(component, dev).labels), postgres, 5432)
    assert not policies(dev).allow(postgres, Peer(address=PUBLIC), 443)


def test_workers_reach_public_https_and_nothing_private(default: Rendered) -> None:
    rules, worker = policies(default), pod("worker", default)

    assert rules.allow(worker, Peer(address=PUBLIC), 443)
    assert rules.allow(worker, Peer(address=PUBLIC_SIX), 443)
    assert not rules.allow(worker, Peer(address=PUBLIC), 80)
    for address in (*PRIVATE, METADATA):
        assert not rules.allow(worker, Peer(address=address), 443), address
        assert not rules.allow(worker, Peer(address=address), 80), address


@pytest.mark.parametrize("component", ["gateway", "operator", "migrate"])
def test_nobody_but_workers_reaches_the_internet(external: Rendered, component: str) -> None:
    assert not policies(external).allow(pod(component, external), Peer(address=PUBLIC), 443)


def test_workers_reach_the_tool_servers_that_are_named(external: Rendered) -> None:
    rules, worker = policies(external), pod("worker", external)

    assert rules.allow(worker, elsewhere("tools", app="search"), 8080)
    assert not rules.allow(worker, elsewhere("tools", app="search"), 8081)
    assert not rules.allow(worker, elsewhere("tools", app="other"), 8080)
    assert not rules.allow(worker, elsewhere("elsewhere", app="search"), 8080)
    assert rules.allow(worker, Peer(address="10.9.3.3"), 8000)
    assert not rules.allow(pod("gateway", external), Peer(address="10.9.3.3"), 8000)


def test_the_api_server_is_reached_by_those_who_ask_it_something() -> None:
    rendered = render({"networkPolicy": {"apiServer": {"cidrs": ["10.1.2.3/32"]}}})
    asking = render({"auth": {"modes": ["kubernetes"]}})
    server, other = Peer(address="10.1.2.3"), Peer(address="10.1.2.4")

    for component in ("worker", "operator", "migrate"):
        assert policies(rendered).allow(pod(component, rendered), server, 6443), component
        assert not policies(rendered).allow(pod(component, rendered), other, 6443), component
    assert not policies(rendered).allow(pod("gateway", rendered), server, 6443)
    assert policies(asking).allow(pod("gateway", asking), server, 6443)
    assert not policies(asking).allow(pod("migrate", asking), server, 6443)  # no token to ensure


def test_without_policies_nothing_is_forbidden() -> None:
    rendered = render({"networkPolicy": {"enabled": False}})

    assert rendered.of("NetworkPolicy") == []
