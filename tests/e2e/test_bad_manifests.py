"""One bad object is its own trouble: refused by name, or a condition; nobody else notices."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.access import Cluster
from cluster.errors import KubectlFailed
from e2e import manifests
from e2e.installation import ROOT
from e2e.rooms import Room, conditions_of, until

pytestmark = pytest.mark.timeout(180)

Json = dict[str, Any]

CRD = ROOT / "crds" / "agents.kubeharness.dev.yaml"
TWICE = [{"name": name, "toolServer": {"ref": {"name": "everything"}}} for name in ("one", "two")]


def model(**change: Any) -> Json:
    return {"providerRef": {"name": "script"}, "name": "test-model", "contextWindow": 100_000, **change}


def raw(name: str, spec: Any) -> Json:
    return {**manifests.agent(name), "spec": spec}


# What the server refuses, by the field that it must name.
REFUSED: dict[str, Json] = {
    "spec.model": raw("empty", {}),
    "spec: Required value": raw("null", None),
    "spec.model.providerRef.name": manifests.agent("slashes", model=model(providerRef={"name": "a/b/c/d"})),
    "spec.model.contextWindow in body should be greater": manifests.agent("negative", model=model(contextWindow=-1)),
    "spec.model.contextWindow in body must be of type": manifests.agent("word", model=model(contextWindow="big")),
    "spec.tools[1]": raw("duplicate", {**manifests.agent()["spec"], "tools": [TWICE[0], TWICE[0]]}),
    "spec.systemPrompt": manifests.agent("huge", prompt="x" * 1_400_000),
    "set exactly one of systemPrompt, systemPromptFrom": manifests.agent(
        "both", systemPromptFrom={"configMapKeyRef": {"name": "prompts", "key": "p"}}
    ),
    "spec.baseURL": manifests.provider("plain", base_url="http://models.example.com/v1"),
    "metadata.name": manifests.agent("dotted.name"),
}
REFUSED["spec.baseURL"]["spec"]["insecure"] = "Deny"


def test_the_server_refuses_what_breaks_a_rule_names_the_field_and_takes_the_rest(room: Room) -> None:
    good = [manifests.scripted(), manifests.agent(provider="script")]
    listed = {"apiVersion": "v1", "kind": "List", "items": [*REFUSED.values(), *good]}

    with pytest.raises(KubectlFailed) as failed:
        room.kubectl("apply", "--validate=false", "-f", "-", input=json.dumps(listed))

    said = str(failed.value)
    for field, document in REFUSED.items():
        kind, name = document["kind"], document["metadata"]["name"]
        about = [line for line in said.splitlines() if f'{kind}.kubeharness.dev "{name}" is invalid' in line]
        assert about, f"{name} was not refused: {said[:4000]}"
        assert field in about[0], about[0]
        assert room.installation.api.find(room.namespace, kind, name) is None
    room.ready()
    room.succeeds("hello")


def test_what_the_server_lets_through_is_a_condition_of_its_own_and_stops_nothing_else(room: Room) -> None:
    room.apply(
        manifests.scripted(),
        room.tools(),
        manifests.agent(provider="script"),
        manifests.config_map(long="x" * 32_769),
        manifests.secret("binary", b"\xff\xfe\x00"),
        manifests.secret("odd"),
        room.wire("binary-key", secret="binary"),
        room.wire("no-such-key"),
    )
    room.edit("no-such-key", kind="ModelProvider", apiKeySecretRef={"name": "odd", "key": "missing"})
    prompt = {"configMapKeyRef": {"name": "prompts", "key": "long"}}
    nowhere = {"configMapKeyRef": {"name": "nowhere", "key": "p"}}
    room.apply(
        {**manifests.agent("twice", provider="script"), "spec": {**manifests.agent()["spec"], "tools": TWICE}},
        manifests.agent("long-prompt", provider="script", prompt=None, systemPromptFrom=prompt),
        manifests.agent("no-prompt", provider="script", prompt=None, systemPromptFrom=nowhere),
        manifests.agent("binary", provider="binary-key"),
        manifests.agent("no-key", provider="no-such-key"),
    )

    room.ready()
    room.succeeds("hello")
    wanted = {
        "twice": ("InvalidSpec", "spec.tools[1].toolServer.ref.name"),
        "long-prompt": ("ConfigMapValueInvalid", "ConfigMap prompts key 'long'"),
        "no-prompt": ("ConfigMapNotFound", "ConfigMap nowhere"),
        "no-key": ("SecretKeyNotFound", f"Secret {room.namespace}/odd key 'missing'"),
        "binary": ("SecretValueInvalid", f"Secret {room.namespace}/binary key 'apiKey'"),
    }
    for name, (reason, named) in wanted.items():
        found = room.reaches("Ready", "False", name, reason=reason)
        assert named in found["Ready"]["message"], found["Ready"]
        assert found["Ready"]["observedGeneration"] == 1
    assert room.conditions("twice")["Stalled"]["status"] == "True"
    assert room.conditions("twice")["Accepted"]["status"] == "False"
    assert "Stalled" not in room.conditions("no-prompt"), "a reference may come any time"
    for name in ("twice", "long-prompt", "no-prompt"):
        answer = room.dispatch("hello", agent=name)
        assert (answer.status_code, answer.json()["code"]) == (503, "agent_not_ready"), answer.text
        assert wanted[name][1] in answer.json()["error"]
        assert "Retry-After" in answer.headers


@pytest.fixture
def loose(room: Room) -> Iterator[Room]:
    """The same namespace on a server with an Agent CRD that checks nothing of a spec, as an older one might."""
    cluster = room.installation.cluster
    crd = yaml.safe_load(CRD.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "nullable": True}
    schema["required"] = []
    schema.pop("x-kubernetes-validations", None)
    try:
        serve(cluster, json.dumps(crd))
        until(lambda: takes(room, raw("probe", {})), lambda: "the server keeps to the strict schema", pause=0.2)
        yield room
        room.kubectl("delete", "kha", "--all", "--wait=true")
    finally:
        serve(cluster, CRD.read_text())
        until(lambda: not takes(room, raw("probe", {})), lambda: "the server keeps to the loose schema", pause=0.2)


def serve(cluster: Cluster, crd: str) -> None:
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=crd)


def takes(room: Room, document: Json) -> bool:
    try:
        room.kubectl("create", "--dry-run=server", "--validate=false", "-f", "-", input=json.dumps(document))
    except KubectlFailed:
        return False
    return True


def test_objects_that_no_schema_ever_saw_stop_no_process_and_no_other_agent_c48(loose: Room) -> None:
    room, installation = loose, loose.installation
    room.apply(manifests.scripted(), room.tools(), manifests.agent(provider="script"))
    room.ready()
    bad = [document for document in REFUSED.values() if document["kind"] == "Agent"]
    bad = [document for document in bad if document["metadata"]["name"] not in ("huge", "dotted.name")]
    bad += [raw("list", {"model": [], "tools": {"a": 1}, "systemPrompt": {"b": None}})]
    bad += [raw("prompt", {**manifests.agent()["spec"], "systemPrompt": "x" * 1_400_000})]
    listed = {"apiVersion": "v1", "kind": "List", "items": bad}
    room.kubectl("create", "--validate=false", "-f", "-", input=json.dumps(listed))
    names = [document["metadata"]["name"] for document in bad]
    for name in names:
        room.reaches("Ready", "False", name)
    room.succeeds("hello", to="before")

    for process in installation.running():
        process.popen.terminate()
    for process in installation.running():
        assert process.stop() is not None
    installation.complete()

    pids = installation.pids()
    room.succeeds("hello", to="after")
    generation = room.edit(systemPrompt="Another.")
    room.reaches("Ready", "True", generation=generation)
    for name in names:
        found = conditions_of(room.get(name))
        assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "InvalidSpec"), (name, found)
        assert "spec" in found["Ready"]["message"]
        answer = room.dispatch("hello", agent=name)
        assert (answer.status_code, answer.json()["code"]) == (503, "agent_not_ready"), answer.text
    assert installation.pids() == pids
    assert "Traceback" not in installation.operator.said(), installation.operator.said()[-4000:]
