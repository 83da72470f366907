"""The promises of tier one: a real API server, a working controller-manager, nothing left behind."""

import datetime
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.access import Cluster
from cluster.binaries import KUBERNETES_VERSION
from cluster.control_plane import ControlPlane
from cluster.errors import KubectlFailed, ProcessFailed

GROUP = "test.kubeharness.dev"
WIDGETS = f"widgets.{GROUP}"

CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": WIDGETS},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.low <= self.high", "message": "low must not be above high"}
                                ],
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def widgets(control_plane: Cluster) -> Iterator[Cluster]:
    control_plane.apply(CRD)
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{WIDGETS}", "--timeout=20s")
    yield control_plane
    control_plane.kubectl("delete", "crd", WIDGETS, "--wait=false")


def widget(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "one"}, **fields}


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_cel_rule_of_a_crd_refuses_an_object(widgets: Cluster, namespace: str) -> None:
    with pytest.raises(KubectlFailed) as refusal:
        widgets.apply(widget(spec={"low": 2, "high": 1}), namespace=namespace)

    assert "low must not be above high" in refusal.value.stderr


def test_status_is_applied_server_side_under_its_own_manager(widgets: Cluster, namespace: str) -> None:
    widgets.apply(widget(spec={"low": 1, "high": 2}), namespace=namespace)
    widgets.kubectl(
        *("apply", "--server-side", "--subresource=status", "--field-manager=tester", "-f", "-"),
        *("--namespace", namespace),
        input=json.dumps(widget(status={"phase": "Good"})),
    )
    found = widgets.kubectl_json("get", WIDGETS, "one", "--show-managed-fields", "--namespace", namespace)

    assert found["status"] == {"phase": "Good"}
    assert found["spec"] == {"low": 1, "high": 2}
    owners = [entry["manager"] for entry in found["metadata"]["managedFields"] if entry.get("subresource")]
    assert owners == ["tester"]


def test_the_garbage_collector_removes_what_a_deleted_object_owned(control_plane: Cluster, namespace: str) -> None:
    control_plane.apply(config_map("owner"), namespace=namespace)
    uid = control_plane.kubectl_json("get", "configmap", "owner", "-n", namespace)["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    control_plane.apply(config_map("owned", ownerReferences=[owner]), namespace=namespace)
    control_plane.kubectl("delete", "configmap", "owner", "--namespace", namespace)

    assert eventually(lambda: "owned" not in control_plane.kubectl("get", "cm", "-o", "name", "-n", namespace))


def test_the_audit_log_names_the_account_that_wrote_and_nobody_when_all_rest(
    control_plane: Cluster, namespace: str
) -> None:
    user = f"system:serviceaccount:{namespace}:writer"
    control_plane.kubectl("create", "serviceaccount", "writer", "--namespace", namespace)
    control_plane.kubectl(
        *("create", "rolebinding", "writer", "--clusterrole=edit", f"--serviceaccount={namespace}:writer"),
        *("--namespace", namespace),
    )
    writer = control_plane.service_account_kubeconfig(namespace, "writer")
    began = datetime.datetime.now(datetime.UTC)
    control_plane.kubectl("create", "configmap", "written", kubeconfig=writer)

    assert eventually(lambda: bool(control_plane.audit_writes(began, [user])))
    [write] = control_plane.audit_writes(began, [user])
    assert (write.verb, write.resource, write.namespace, write.name, write.code) == (
        *("create", "configmaps", namespace, "written"),
        201,
    )

    rested = datetime.datetime.now(datetime.UTC)
    control_plane.kubectl("get", "configmaps", kubeconfig=writer)
    time.sleep(0.5)

    assert control_plane.audit_writes(rested, [user]) == []


def test_a_refused_write_is_in_the_audit_log_too(control_plane: Cluster, namespace: str) -> None:
    control_plane.kubectl("create", "serviceaccount", "nobody", "--namespace", namespace)
    nobody = control_plane.service_account_kubeconfig(namespace, "nobody")
    began = datetime.datetime.now(datetime.UTC)
    with pytest.raises(KubectlFailed, match="forbidden"):
        control_plane.kubectl("create", "configmap", "refused", kubeconfig=nobody)

    users = [f"system:serviceaccount:{namespace}:nobody"]
    assert eventually(lambda: [write.code for write in control_plane.audit_writes(began, users)] == [403])


def test_a_start_that_fails_shows_the_log_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd = tmp_path / "etcd"
    etcd.write_text("#!/bin/sh\necho the disk is made of cheese\nexit 3\n")
    etcd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with (
        pytest.raises(ProcessFailed, match=r"(?s)etcd ended with status 3.*made of cheese") as failure,
        ControlPlane(),
    ):
        pass

    folder = failure.value.log.parent
    assert processes_naming(folder) == []
    shutil.rmtree(folder)


def test_a_control_plane_of_the_pinned_version_runs_as_long_as_its_block_and_leaves_nothing() -> None:
    with ControlPlane() as cluster:
        version = cluster.kubectl_json("version")["serverVersion"]["gitVersion"]
        started = processes_naming(cluster.folder)

    assert version == KUBERNETES_VERSION
    assert len(started) == 3
    assert processes_naming(cluster.folder) == []
    assert not cluster.folder.exists()


def processes_naming(folder: Path) -> list[str]:
    """The command lines, of whatever process, in which the folder occurs."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text())
        except OSError:
            continue  # ended meanwhile
    return [line for line in lines if str(folder) in line]
