"""Values that contradict each other, and values that no chart has: refused with a sentence, before anything is made."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from charts.rendering import HelmRefused, render
from kubeharness.api.paths import ROUTES, prefix_of

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"devPostgres": {"enabled": True}, "database": {"existingSecret": "mine"}},
        "devPostgres.enabled and database.existingSecret name two databases",
    ),
    ({"devPostgres": {"enabled": True}, "database": {"pooled": True}}, "database.pooled says that a pooler"),
    ({"auth": {"modes": ["none"]}}, "say auth.insecure=true if that is meant"),
    ({"auth": {"modes": ["none", "token"], "insecure": True}}, "none lets everybody in, so it stands alone"),
    ({"auth": {"insecure": True}}, "auth.insecure is true and auth.modes is not [none]"),
    ({"auth": {"audiences": ["kubeharness"]}}, "auth.audiences is about tokens of mode kubernetes"),
    ({"auth": {"modes": ["kubernetes"], "existingTokensSecret": "mine"}}, "auth.modes has no token"),
    ({"auth": {"modes": ["kubernetes"]}, "namespaces": ["team-a"]}, "say rbac.authDelegator=true"),
    ({"namespaces": ["team-a"], "rbac": {"secretNamespaces": ["team-a"]}}, "rbac.secretNamespaces is for cluster mode"),
    (
        {"worker": {"drainSeconds": 30.5}},
        "worker.terminationGracePeriodSeconds must be at least worker.drainSeconds + 10, which is 41",
    ),
    (
        {"gateway": {"preStopSleepSeconds": 15, "streamCloseSeconds": 5.5}},
        "must be at least preStopSleepSeconds + streamCloseSeconds + 10, which is 31",
    ),
    ({"httpRoute": {"enabled": True}}, "httpRoute.enabled needs httpRoute.parentRefs"),
    ({"httpRoute": {"stripPrefix": True}}, "httpRoute.stripPrefix takes pathPrefix off, and there is none"),
    ({"pathPrefix": "/agents/all"}, "pathPrefix: /agents is a route of the API"),
    (
        {"worker": {"extraEnv": [{"name": "KUBEHARNESS_WORKER_SLOTS", "value": "1"}]}},
        "worker.extraEnv: KUBEHARNESS_WORKER_SLOTS is set already",
    ),
    (
        {"gateway": {"extraEnv": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        "gateway.extraEnv: A is set already",
    ),
]

JUST_RIGHT: list[dict[str, Any]] = [
    {"auth": {"modes": ["none"], "insecure": True}},
    {"auth": {"modes": ["token", "kubernetes"]}},
    {"auth": {"modes": ["kubernetes"]}, "namespaces": ["team-a"], "rbac": {"authDelegator": True}},
    {"worker": {"drainSeconds": 30, "terminationGracePeriodSeconds": 40}},
    {"gateway": {"preStopSleepSeconds": 15}},
    {"gateway": {"preStopSleepSeconds": 0}},
    {"pathPrefix": "/my/agents"},
    {"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}},
]

MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"gatway": {}}, "gatway"),
    ({"gateway": {"replica": 1}}, "replica"),
    ({"database": {"keys": {"dsn": "url"}}}, "dsn"),
    ({"database": {"url": "postgresql://me:secret@there/db"}}, "url"),
    ({"devPostgres": {"persistence": {"class": "x"}}}, "class"),
    ({"networkPolicy": {"toolServers": [{"name": "x", "ports": [1]}]}}, "toolServers"),
    ({"networkPolicy": {"toolServers": [{"name": "x", "namespace": "a", "cidr": "1.2.3.4/32", "ports": [1]}]}}, "tool"),
    ({"auth": {"modes": []}}, "modes"),
    ({"auth": {"modes": ["oidc"]}}, "modes"),
    ({"pathPrefix": "harness"}, "pathPrefix"),
    ({"pathPrefix": "/harness/"}, "pathPrefix"),
    ({"pathPrefix": "/"}, "pathPrefix"),
    ({"image": {"digest": "sha256:short"}}, "digest"),
    ({"image": {"repository": "a@sha256:b"}}, "repository"),
    ({"gateway": {"replicas": "2"}}, "replicas"),
    ({"gateway": {"extraEnv": [{"name": "A"}]}}, "extraEnv"),
    ({"namespaces": ["Team"]}, "namespaces"),
    ({"namespaces": "team-a"}, "namespaces"),
    ({"devPostgres": {"password": "with:colon@host"}}, "password"),
    ({"service": {"port": 0}}, "port"),
    ({"httpRoute": {"parentRefs": [{"namespace": "edge"}]}}, "parentRefs"),
]


@pytest.mark.parametrize(("values", "sentence"), CONTRADICTIONS, ids=[item[1][:40] for item in CONTRADICTIONS])
def test_a_contradiction_is_refused_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        render(values)

    assert sentence in refused.value.said


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_no_prefix_begins_as_a_route_does(route: str) -> None:
    """The gateway would refuse to start, which is later than need be."""
    with pytest.raises(HelmRefused) as refused:
        render({"pathPrefix": f"/{route}/x"})

    assert f"pathPrefix: /{route} is a route of the API" in refused.value.said


@pytest.mark.parametrize("prefix", ["/harness", "/a.b/c~d", "/..", "/a/./b", "/.hidden", "/a//b", "/a/", "/ä"])
def test_the_chart_takes_the_prefixes_that_the_gateway_takes(prefix: str) -> None:
    def taken(by: Callable[[], object], refusal: type[Exception]) -> bool:
        try:
            by()
        except refusal:
            return False
        return True

    normal = prefix == prefix.rstrip("/")  # the gateway mends what the chart asks to be written well

    assert taken(lambda: render({"pathPrefix": prefix}), HelmRefused) == (
        normal and taken(lambda: prefix_of(prefix), ValueError)
    )


def test_all_contradictions_are_said_at_once() -> None:
    with pytest.raises(HelmRefused) as refused:
        render({"httpRoute": {"enabled": True}, "auth": {"modes": ["none"]}})

    assert "httpRoute.parentRefs" in refused.value.said
    assert "auth.insecure" in refused.value.said


@pytest.mark.parametrize("values", JUST_RIGHT, ids=json.dumps)
def test_what_only_looks_like_one_is_rendered(values: dict[str, Any]) -> None:
    assert render(values).of("Deployment")


@pytest.mark.parametrize(("values", "named"), MALFORMED, ids=[json.dumps(item[0])[:60] for item in MALFORMED])
def test_the_schema_names_what_is_unknown_or_malformed(values: dict[str, Any], named: str) -> None:
    with pytest.raises(HelmRefused) as refused:
        render(values)

    assert "values don't meet the specifications of the schema" in refused.value.said
    assert named in refused.value.said
