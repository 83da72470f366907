"""Which cluster a test gets: never one that the user did not name, and never none."""

import datetime

import pytest

from cluster.access import Cluster
from cluster.errors import NoAuditLog, NoCluster
from cluster.selection import is_given, open_cluster


def test_a_given_cluster_is_used_and_keeps_its_audit_log_to_itself(
    control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", "given")
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with open_cluster() as given:
        found = given.kubectl("get", "namespace", namespace, "-o", "name")

        assert found.strip() == f"namespace/{namespace}"
        assert (given.server, given.ca) == (control_plane.server, control_plane.ca)
        with pytest.raises(NoAuditLog, match="run this test without"):
            given.audit_writes(datetime.datetime.now(datetime.UTC))


def test_kubeconfig_alone_names_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somebody/elses/production")
    monkeypatch.delenv("KUBEHARNESS_TEST_CLUSTER", raising=False)

    assert not is_given()


@pytest.mark.parametrize(
    ("choice", "kubeconfig", "says"),
    [
        ("given", None, "KUBECONFIG must name"),
        ("given", "/nowhere/at/all", "cannot be used"),
        ("prod", None, "leave it unset"),
    ],
)
def test_a_cluster_that_cannot_be_had_is_an_error_not_a_skip(
    choice: str, kubeconfig: str | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", choice)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if kubeconfig:
        monkeypatch.setenv("KUBECONFIG", kubeconfig)

    with pytest.raises(NoCluster, match=says), open_cluster():
        pass
