"""The installation lives on: edits, rotation, pods that go, restarts, a drained node, a dead kubelet."""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator

import pytest

from cluster.errors import KubectlFailed
from cluster.node import NodeCluster
from e2e import manifests
from e2e.wires import Wire
from e2e_cluster.callers import Door, Json, Load, Reader
from e2e_cluster.conftest import Figures, serving_wire
from e2e_cluster.release import COMPONENTS, INGRESS_HOST, NAME, ROUTE_HOST, Release, until
from support.site import of_kind

pytestmark = pytest.mark.timeout(900)

EDITS = 50
RESTARTS = 3


@pytest.fixture
def whole(installed: Release) -> Iterator[Release]:
    """The installation with all pods ready, before and after; its database sound."""
    installed.whole()
    yield installed
    installed.whole()
    installed.verify()


def sound(load: Load, door: Door, readers: list[Reader], *, failures: int = 0) -> None:
    """No request failed, each dispatch ended once and well, and readers saw the log's own bytes."""
    assert load.failed == []
    assert load.sent
    assert {one.status for one in load.sent} == {"succeeded"}
    logs = {instance: door.records(instance) for instance in load.instances()}
    for instance, records in logs.items():
        ended = [record["submissionId"] for record in of_kind(records, "submission_settled")]
        mine = [one.submission for one in load.sent if one.instance == instance]
        assert sorted(ended) == sorted(mine), f"{instance}: not one settlement each"
        assert len(of_kind(records, "user_message")) == len(mine), f"{instance}: not one message each"
        assert [r["payload"]["failures"] for r in of_kind(records, "submission_settled")] == [failures] * len(mine)
    for reader in readers:
        same_bytes(reader, door, logs[reader.instance])


def same_bytes(reader: Reader, door: Door, log: list[Json]) -> None:
    """A reader that was cut off again and again has what one that comes now gets, and that is the log."""
    assert reader.refused == []
    until(lambda: len(reader.frames) >= len(log), lambda: len(reader.frames), within=30)
    assert [frame.record for frame in reader.frames] == log
    with Reader(door, reader.instance) as fresh:
        until(lambda: len(fresh.frames) >= len(log), lambda: fresh.refused, within=30)
    assert [frame.data for frame in fresh.frames] == [frame.data for frame in reader.frames]


def test_an_edit_and_a_rotated_secret_need_no_restart(whole: Release, node: NodeCluster, figures: Figures) -> None:
    first, second = (f"sk-{secrets.token_hex(8)}" for _ in range(2))
    before = whole.identities()
    wire = Wire(first)
    with serving_wire(node.address, wire.answer) as base_url:
        documents = [
            manifests.secret("wire-key", first),
            manifests.provider("wire", base_url=base_url, secret="wire-key"),
            manifests.agent("wired", provider="wire", prompt="Old."),
        ]
        for document in documents:
            whole.api.apply("default", document)
        refused = whole.reaches("Ready", "False", "wired", reason="SecretForbidden")  # it says what to do about it
        command = refused["message"][refused["message"].index("kubectl create rolebinding") :]
        whole.cluster.kubectl(*command.split()[1:])
        whole.reaches("Ready", "True", "wired")
        door = whole.door()
        assert ask(door, "wired", "before")["status"] == "succeeded"
        assert wire.shown[-1] == (first, "Old.")

        wire.keys = [second]
        whole.api.apply("default", manifests.secret("wire-key", second))
        assert ask(door, "wired", "rotated")["status"] == "succeeded"
        assert wire.shown[-1] == (second, "Old.")

        took, prompt = [], ""
        for number in range(EDITS):
            prompt = f"New {number} {secrets.token_hex(4)}."
            began = time.monotonic()
            generation = whole.edit({"systemPrompt": prompt}, "wired")
            whole.reaches("Programmed", "True", "wired", generation=generation)
            took.append(time.monotonic() - began)
        assert ask(door, "wired", "edited")["status"] == "succeeded"
        assert wire.shown[-1] == (second, prompt)
    took.sort()
    figures.say(f"apply to Programmed over {EDITS} edits: p50 {took[EDITS // 2]:.2f} s, p95 {took[-EDITS // 20]:.2f} s")
    assert whole.identities() == before, "a pod was replaced or restarted"
    for kind, name in (
        ("kha", "wired"),
        ("khm", "wire"),
        ("secret", "wire-key"),
        ("rolebinding", f"{NAME}-worker-secrets"),
    ):
        whole.kubectl("delete", kind, name, namespace="default")


def ask(door: Door, agent: str, instance: str, body: str = "quick") -> dict[str, object]:
    """Dispatch and wait."""
    with door.client() as client:
        answer = client.post(f"/agents/{agent}/{instance}?wait=true", json={"kind": "user", "body": body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_worker_pod_that_is_deleted_in_the_middle_of_a_run_hands_it_over(whole: Release, figures: Figures) -> None:
    door = whole.door()
    instance = f"deleted-{secrets.token_hex(3)}"
    with Reader(door, instance) as reader, door.client() as client:
        sent = client.post(f"/agents/assistant/{instance}", json={"kind": "user", "body": "tell me a story"})
        assert sent.status_code == 202
        until(lambda: "assistant_thinking_delta" in reader.kinds(), reader.kinds, pause=0.02)
        for pod in whole.pods("worker"):
            whole.kubectl("delete", "pod", pod.name, "--wait=false")
        began = time.monotonic()
        until(reader.settled, reader.kinds)
        figures.say(f"a run whose worker pods were deleted in its middle ended {time.monotonic() - began:.1f} s later")
    records = door.records(instance)
    [settled] = of_kind(records, "submission_settled")
    assert settled["payload"]["status"] == "succeeded"
    assert settled["payload"]["failures"] == 0
    assert len(of_kind(records, "user_message")) == 1


@pytest.mark.parametrize("component", COMPONENTS)
def test_rollouts_under_load_lose_nothing(whole: Release, figures: Figures, component: str) -> None:
    door = whole.door()
    took = []
    load = Load(door)
    with load.running():
        until(lambda: len(load.sent) > 10, load.said)
        readers = [Reader(whole.door(host), load.instances()[n]) for n, host in enumerate((INGRESS_HOST, ROUTE_HOST))]
        for reader in readers:
            reader.__enter__()
        took += [whole.restart(component) for _ in range(RESTARTS)]
    figures.say(f"{component} restarted {RESTARTS} times under load, {max(took):.0f} s at most: {load.said()}")
    try:
        sound(load, door, readers)
    finally:
        for reader in readers:
            reader.__exit__()
    if component == "gateway":
        assert all(reader.reconnects for reader in readers), "no stream was ever closed: nothing was shown"


def test_a_drained_node_and_back(whole: Release, node: NodeCluster, figures: Figures) -> None:
    door = whole.door()
    load = Load(door, rate=2)
    with load.running():
        until(lambda: load.sent, load.said)
        began = time.monotonic()
        drained = threading.Thread(target=drain, args=(whole,))
        drained.start()
        time.sleep(15)  # one node: what a budget allows goes and cannot come back
        whole.kubectl("uncordon", node.name)
        drained.join(200)
        whole.whole()
        figures.say(f"drain under load, uncordoned after 15 s: whole again after {time.monotonic() - began:.1f} s")
    sound(load, door, [])


def drain(release: Release) -> None:
    """As an administrator does it; it gives up where budgets hold it back for longer."""
    selector = f"app.kubernetes.io/instance={NAME}"
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s", "--pod-selector", selector)
    with contextlib.suppress(KubectlFailed):  # the budgets' refusals, once the time is over
        release.kubectl("drain", release.cluster.name, *options, timeout=90)


def test_a_killed_kubelet_stops_no_run(whole: Release, node: NodeCluster) -> None:
    before = whole.identities()
    door = whole.door()
    load = Load(door, rate=5)
    with load.running():
        until(lambda: load.sent, load.said)
        node.kill_kubelet()
        time.sleep(5)
        node.start_kubelet()
        time.sleep(5)
    sound(load, door, [])
    whole.whole()
    assert whole.identities() == before
