"""Which cluster a test gets: never one that the user did not name, and never none."""

import datetime
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from cluster import kind, own_node, selection
from cluster.access import Cluster
from cluster.errors import NoAuditLog, NoCluster, NotOffered
from cluster.selection import is_given, open_cluster, open_node


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


@pytest.mark.parametrize(
    ("chosen", "user", "engine", "opened"),
    [
        ("", 0, True, "own"),
        ("", 1000, True, "kind"),
        ("", 1000, False, "own"),  # which then says that it takes root
        ("own", 1000, True, "own"),
        ("kind", 0, False, "kind"),  # which then says what is missing
    ],
)
def test_pods_run_on_a_node_of_our_own_where_that_can_be_had_else_on_kind(
    chosen: str, user: int, engine: bool, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", chosen)
    monkeypatch.setenv("KUBECONFIG", "/somebody/elses/production")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(kind, "is_possible", lambda: engine)
    monkeypatch.setattr(kind, "kind_cluster", lambda: nullcontext("kind"))
    monkeypatch.setattr(selection, "own_node", lambda: nullcontext("own"))

    with open_node() as got:
        assert str(got) == opened


def test_a_given_cluster_says_what_only_a_node_of_our_own_can_do(
    control_plane: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", "given")
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    with open_node() as given:
        assert given.server == control_plane.server
        with pytest.raises(NotOffered, match="a given cluster: run this test without"):
            given.import_image(tmp_path)
        with pytest.raises(NotOffered, match="killing the kubelet"):
            given.kill_kubelet()


def test_a_node_that_nobody_brought_up_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", "up")
    monkeypatch.setattr(own_node, "KEPT", "khn-nobody-brought-up")

    with pytest.raises(NoCluster, match="make cluster-up"), open_node():
        pass


def test_a_node_of_our_own_is_refused_to_who_is_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEHARNESS_TEST_CLUSTER", "own")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NoCluster, match="takes root"), open_node():
        pass
