"""A pod's own Events on a real API server, with an account that may create them and nothing else."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.config import kube_config

from cluster.access import Cluster
from kubeharness.kube import events as module
from kubeharness.kube.events import PodEvents

UID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def account(control_plane: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    control_plane.kubectl("create", "serviceaccount", "worker", "-n", namespace)
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "worker")
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))  # KUBECONFIG as it was at import
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(module, "SPACING_SECONDS", 0.2)
    return kubeconfig


def pod(namespace: str) -> PodEvents:
    return PodEvents(namespace=namespace, name="worker-0", uid=UID, component="kubeharness-worker")


def found(cluster: Cluster, namespace: str) -> list[Any]:
    """What `kubectl describe pod` would show."""
    text = cluster.kubectl("get", "events", "-n", namespace, "-o", "json", f"--field-selector=involvedObject.uid={UID}")
    items: list[Any] = json.loads(text)["items"]
    return items


async def test_what_lasts_is_told_and_that_it_is_over_and_a_blink_is_not(
    control_plane: Cluster, namespace: str, account: Path
) -> None:
    allow = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "worker"},
        "rules": [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}],
    }
    await asyncio.to_thread(control_plane.apply, allow, namespace=namespace)
    await asyncio.to_thread(
        control_plane.kubectl,
        *("create", "rolebinding", "worker", "--role=worker", f"--serviceaccount={namespace}:worker", "-n", namespace),
    )
    events = pod(namespace)
    async with events.telling():
        events.tell("a blink")
        await asyncio.sleep(0.1)
        events.tell("")
        await asyncio.sleep(2)
        blinked = await asyncio.to_thread(found, control_plane, namespace)
        events.tell("nothing listens at the host and port of the DSN")
        async with asyncio.timeout(20):
            while len(await asyncio.to_thread(found, control_plane, namespace)) < 1:
                await asyncio.sleep(0.2)
            events.tell("")
            while len(told := await asyncio.to_thread(found, control_plane, namespace)) < 2:
                await asyncio.sleep(0.2)

    assert blinked == []
    assert {(event["type"], event["reason"], event["message"]) for event in told} == {
        ("Warning", "NotReady", "nothing listens at the host and port of the DSN"),
        ("Normal", "Ready", "ready"),
    }


async def test_an_account_that_may_not_is_said_once_and_disturbs_nothing(
    control_plane: Cluster, namespace: str, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = pod(namespace)
    async with events.telling():
        events.tell("the database is away")
        async with asyncio.timeout(20):
            while "no Event says so" not in caplog.text:
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)

    assert caplog.text.count("no Event says so") == 1
    assert "it needs create on events" in caplog.text
    assert await asyncio.to_thread(found, control_plane, namespace) == []
