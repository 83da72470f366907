"""The CRDs on a real API server: what it takes, what it refuses by name, what it fills in."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.access import Cluster
from cluster.errors import KubectlFailed
from kinds import samples
from kubeharness.kinds.compiler import Problems, compile_agent, compile_provider, compile_tool_server
from kubeharness.kinds.crdgen import KINDS
from kubeharness.kinds.manifests import load
from kubeharness.kinds.problems import Problem

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]

pytestmark = pytest.mark.timeout(180)  # the first test waits for a control plane


@pytest.fixture(scope="module")
def served(control_plane: Cluster) -> Cluster:
    """The cluster with our CRDs in it, applied as a user does: client-side, which keeps an annotation."""
    control_plane.kubectl("apply", "-f", str(ROOT / "crds"))
    names = [f"crd/{model.names.crd}" for model in KINDS]
    control_plane.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s")
    deadline = time.monotonic() + 30
    while len(control_plane.kubectl("api-resources", "--api-group=kubeharness.dev", "-o=name").split()) < len(KINDS):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return control_plane


class Room:
    """A namespace of the test's own."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    def kubectl(self, *args: str, input: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.namespace, *args, input=input)

    def apply(self, document: Json) -> None:
        self.kubectl("apply", "-f", "-", input=self._text(document))

    def refused(self, document: Json) -> str:
        """What the server says to a document that it must not take."""
        with pytest.raises(KubectlFailed) as failed:
            self.kubectl("create", "--dry-run=server", "-f", "-", input=self._text(document))
        return str(failed.value)

    def get(self, kind: str, name: str) -> Json:
        found: Json = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def _text(self, document: Json) -> str:
        return json.dumps({**document, "metadata": {**document["metadata"], "namespace": self.namespace}})


@pytest.fixture
def room(served: Cluster, namespace: str) -> Room:
    return Room(served, namespace)


def test_no_crd_has_a_rule_that_the_server_warns_of_or_a_schema_that_is_not_structural(served: Cluster) -> None:
    for model in KINDS:
        crd = served.kubectl_json("get", "crd", model.names.crd)
        conditions = {item["type"]: item["status"] for item in crd["status"]["conditions"]}

        assert conditions.get("NonStructuralSchema", "False") == "False"
        assert conditions["NamesAccepted"] == "True"


@pytest.mark.parametrize(
    "document",
    [
        samples.agent(),
        samples.full_agent(),
        samples.provider(),
        samples.scripted(),
        samples.full_scripted(),
        samples.tool_server(),
        samples.full_tool_server(),
        samples.provider(baseURL="http://127.0.0.1:8080/v1", insecure="Allow", apiKeySecretRef=None),
        samples.provider(baseURL="http://models.ai.svc.cluster.local:8080/v1"),
        samples.agent(systemPrompt="x" * 32_768),
        samples.agent(systemPrompt=""),
    ],
    ids=range(11),
)
def test_a_sound_object_is_taken_and_compiles_as_it_comes_back(room: Room, document: Json) -> None:
    room.apply(document)
    back = room.get(document["kind"].lower(), document["metadata"]["name"])
    before, after = compiled({**document, "metadata": back["metadata"]}), compiled(back)

    assert not isinstance(after, Problems), list(after)
    assert after == before


def compiled(document: Json) -> Any:
    match document["kind"]:
        case "Agent":
            there = {"demo": samples.scripted()}, {"everything": samples.tool_server()}
            maps = {"prompts": samples.config_map()}
            return compile_agent(document, providers=there[0], tool_servers=there[1], config_maps=maps)
        case "ModelProvider":
            return compile_provider(document)
        case _:
            return compile_tool_server(document)


def test_the_basic_example_is_taken(room: Room) -> None:
    room.kubectl("apply", "-f", str(ROOT / "docs" / "examples" / "basic"))

    assert room.get("kha", "assistant")["kind"] == "Agent"


def model(**changes: Any) -> Json:
    whole = {"providerRef": {"name": "demo"}, "name": "small", "contextWindow": 8_000, **changes}
    return samples.agent(model={key: value for key, value in whole.items() if value is not None})


def tool(**changes: Any) -> Json:
    return samples.agent(tools=[{"name": "a", **changes}])


def step(value: Json) -> Json:
    return samples.scripted(rules=[{"steps": [value]}])


def header(**changes: Any) -> Json:
    return samples.tool_server(headers=[{"name": "X-A", **changes}])


CLOCK = {"name": "clock"}
STEP = "spec.scripted.rules[0].steps[0]"

REFUSED: list[tuple[Json, str]] = [
    (samples.agent(name="a.b"), "metadata.name must be a DNS label"),
    (samples.provider(name="a.b"), "metadata.name must be a DNS label"),
    (samples.tool_server(name="a.b"), "metadata.name must be a DNS label"),
    (samples.agent(description="x" * 1_025), "spec.description"),
    (samples.agent(model=None), "spec.model"),
    (model(providerRef={"name": "a/b/c"}), "spec.model.providerRef.name"),
    (model(providerRef={}), "spec.model.providerRef.name"),
    (model(name=""), "spec.model.name"),
    (model(contextWindow=None), "spec.model.contextWindow"),
    (model(contextWindow=-1), "spec.model.contextWindow"),
    (model(contextWindow=1_023), "spec.model.contextWindow"),
    (model(contextWindow=10_000_001), "spec.model.contextWindow"),
    (model(contextWindow="big"), "spec.model.contextWindow"),
    (model(maxTokens=8_000), "spec.model.maxTokens"),
    (model(maxTokens=0), "spec.model.maxTokens"),
    (model(temperature="2.01"), "spec.model.temperature"),
    (model(temperature=0.5), "spec.model.temperature"),
    (model(topP="-1"), "spec.model.topP"),
    (model(reasoningEffort="Extreme"), "spec.model.reasoningEffort"),
    (samples.agent(systemPrompt=None), "set exactly one of systemPrompt, systemPromptFrom"),
    (
        samples.agent(systemPromptFrom={"configMapKeyRef": {"name": "a", "key": "b"}}),
        "set exactly one of systemPrompt, systemPromptFrom",
    ),
    (samples.agent(systemPrompt="x" * 32_769), "spec.systemPrompt"),
    (
        samples.agent(systemPrompt=None, systemPromptFrom={"configMapKeyRef": {"name": "A", "key": "b"}}),
        "spec.systemPromptFrom.configMapKeyRef.name",
    ),
    (
        samples.agent(systemPrompt=None, systemPromptFrom={"configMapKeyRef": {"name": "a", "key": "b/c"}}),
        "spec.systemPromptFrom.configMapKeyRef.key",
    ),
    (tool(), "spec.tools[0]: Invalid value"),
    (tool(builtin=CLOCK, toolServer={"ref": {"name": "b"}}), "set exactly one of toolServer, builtin"),
    (tool(builtin={"name": "bash"}), "spec.tools[0].builtin.name"),
    (tool(toolServer={"ref": {"name": "B"}}), "spec.tools[0].toolServer.ref.name"),
    (tool(toolServer={"ref": {"name": "b"}, "include": ["x", "x"]}), "spec.tools[0].toolServer.include[1]"),
    (
        tool(toolServer={"ref": {"name": "b"}, "include": [f"t{n}" for n in range(65)]}),
        "spec.tools[0].toolServer.include",
    ),
    (samples.agent(tools=[{"name": "a", "builtin": CLOCK}] * 2), "spec.tools[1]"),
    (samples.agent(tools=[{"name": f"a{n}", "builtin": CLOCK} for n in range(65)]), "spec.tools"),
    (samples.agent(tools=[{"builtin": CLOCK}]), "spec.tools[0].name"),
    (samples.agent(durability={"maxAttempts": 101}), "spec.durability.maxAttempts"),
    (samples.agent(durability={"submissionTimeoutSeconds": 0}), "spec.durability.submissionTimeoutSeconds"),
    (samples.agent(durability={"maxTurns": 0}), "spec.durability.maxTurns"),
    (samples.agent(modell={}), 'unknown field "spec.modell"'),
    (samples.provider(type="OpenAI"), "spec.type"),
    (samples.provider(type=None), "spec.type"),
    (samples.provider(baseURL=None), "spec.baseURL"),
    (samples.provider(baseURL="http://models.example/v1"), "spec.baseURL"),
    (samples.provider(baseURL="http://a.b.svc.evil.example/v1"), "spec.baseURL"),
    (samples.provider(baseURL="https://user@models.example"), "spec.baseURL"),
    (samples.provider(baseURL="ftp://models.example", insecure="Allow"), "spec.baseURL"),
    (samples.provider(insecure="Yes"), "spec.insecure"),
    (samples.provider(apiKeySecretRef={"name": "a"}), "spec.apiKeySecretRef.key"),
    (samples.provider(apiKeySecretRef={"name": "A b", "key": "k"}), "spec.apiKeySecretRef.name"),
    (samples.provider(scripted={}), "spec.scripted"),
    (samples.provider(type="Scripted", baseURL=None, apiKeySecretRef=None), "spec.scripted"),
    (samples.provider(type="Scripted", baseURL=None, scripted={}), "spec.apiKeySecretRef"),
    (samples.provider(type="Scripted", apiKeySecretRef=None, scripted={}), "spec.baseURL"),
    (samples.scripted(chunkCharacters=0), "spec.scripted.chunkCharacters"),
    (samples.scripted(chunkDelayMilliseconds=-1), "spec.scripted.chunkDelayMilliseconds"),
    (samples.scripted(rules=[{"steps": []}]), "spec.scripted.rules[0].steps"),
    (samples.scripted(rules=[{"steps": [{"text": "a"}]}] * 65), "spec.scripted.rules"),
    (samples.scripted(rules=[{"steps": [{"text": "a"}] * 33}]), "spec.scripted.rules[0].steps"),
    (samples.scripted(rules=[{"when": {"turn": 0}, "steps": [{"text": "a"}]}]), "spec.scripted.rules[0].when.turn"),
    (samples.scripted(rules=[{"when": {"try": 0}, "steps": [{"text": "a"}]}]), "spec.scripted.rules[0].when.try"),
    (samples.scripted(rules=[{"when": {"contains": ""}, "steps": [{"text": "a"}]}]), "rules[0].when.contains"),
    (step({}), STEP),
    (step({"text": "a", "reasoning": "b"}), "set exactly one of reasoning, text"),
    (step({"text": "x" * 8_193}), f"{STEP}.text"),
    (step({"delayMilliseconds": 600_001}), f"{STEP}.delayMilliseconds"),
    (step({"toolCall": {"name": "a b"}}), f"{STEP}.toolCall.name"),
    (step({"toolCall": {"name": "a", "arguments": [1]}}), f"{STEP}.toolCall.arguments"),
    (step({"error": {"kind": "Odd"}}), f"{STEP}.error.kind"),
    (step({"error": {"kind": "Fatal", "retryAfterSeconds": -1}}), f"{STEP}.error.retryAfterSeconds"),
    (step({"end": "Odd"}), f"{STEP}.end"),
    (step({"usage": {"input": -1}}), f"{STEP}.usage.input"),
    (samples.tool_server(type="HTTP"), "spec.type"),
    (samples.tool_server(url=None), "set exactly one of url, serviceRef"),
    (samples.tool_server(serviceRef={"name": "a", "port": 1}), "set exactly one of url, serviceRef"),
    (samples.tool_server(url="http://tools.example"), "spec.url"),
    (samples.tool_server(url=None, serviceRef={"name": "a", "port": 0}), "spec.serviceRef.port"),
    (samples.tool_server(url=None, serviceRef={"name": "a", "port": 1, "path": "x"}), "spec.serviceRef.path"),
    (samples.tool_server(transport="SSE"), "spec.transport"),
    (samples.tool_server(discovery={"intervalSeconds": 9}), "spec.discovery.intervalSeconds"),
    (samples.tool_server(discovery={"mode": "Maybe"}), "spec.discovery.mode"),
    (samples.tool_server(tools=[{"name": "a"}, {"name": "a"}]), "spec.tools[1]"),
    (samples.tool_server(tools=[{"name": "a", "timeoutSeconds": 0}]), "spec.tools[0].timeoutSeconds"),
    (samples.tool_server(tools=[{"name": "a", "idempotent": "yes"}]), "spec.tools[0].idempotent"),
    (header(), "set exactly one of value, secretKeyRef"),
    (header(value="a", secretKeyRef={"name": "a", "key": "b"}), "set exactly one of value, secretKeyRef"),
    (header(value="a\r\nB: c"), "spec.headers[0].value"),
    (header(name="Host", value="a"), "spec.headers[0].name"),
    (header(name="a b", value="a"), "spec.headers[0].name"),
]


@pytest.mark.parametrize(("document", "named"), REFUSED, ids=range(len(REFUSED)))
def test_what_breaks_a_rule_is_refused_by_name_here_and_there(
    served: Cluster, tmp_path: Path, document: Json, named: str
) -> None:
    (tmp_path / "it.yaml").write_text(yaml.safe_dump(document))

    assert named in Room(served, "default").refused(document)
    assert load([tmp_path]).problems


def test_every_rule_of_the_models_is_broken_by_some_document_above() -> None:
    messages = {rule["message"] for model in KINDS for rule in rules_in(model.model_json_schema(by_alias=True))}
    broken = {item.message for document, _ in REFUSED for item in problems_of(document)}
    broken |= {f"{item.field} {item.message}" for document, _ in REFUSED for item in problems_of(document)}

    assert messages - broken == {"type cannot be changed; create another object"}  # it takes two documents


def rules_in(schema: Any) -> Iterator[Json]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for value in schema.values():
            yield from rules_in(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from rules_in(value)


def problems_of(document: Json) -> list[Problem]:
    found = compiled(document)
    return list(found) if isinstance(found, Problems) else []


@pytest.mark.parametrize(
    ("document", "field"),
    [(samples.provider(), "type"), (samples.scripted(), "type")],
)
def test_a_providers_type_cannot_be_changed(room: Room, document: Json, field: str) -> None:
    room.apply(document)
    other = samples.scripted() if document["spec"]["type"] != "Scripted" else samples.provider()
    with pytest.raises(KubectlFailed, match=rf"spec\.{field}: Invalid value.*type cannot be changed"):
        room.kubectl("replace", "-f", "-", input=json.dumps(other | {"metadata": {"name": "demo"}}))


def test_an_unchanged_type_lets_the_rest_change(room: Room) -> None:
    room.apply(samples.provider())
    room.apply(samples.provider(baseURL="https://other.example/v1"))

    assert room.get("khm", "demo")["spec"]["baseURL"] == "https://other.example/v1"


@pytest.mark.parametrize("document", [samples.agent(), samples.provider(), samples.tool_server()])
def test_an_object_that_no_operator_saw_is_pending(room: Room, document: Json) -> None:
    room.apply(document)
    [condition] = room.get(document["kind"].lower(), document["metadata"]["name"])["status"]["conditions"]

    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "Unknown", "Pending")
    name = f"{document['kind'].lower()}/{document['metadata']['name']}"
    with pytest.raises(KubectlFailed, match="timed out"):
        room.kubectl("wait", "--for=condition=Ready", name, "--timeout=1s")


def test_what_is_left_out_is_filled_in(room: Room) -> None:
    room.apply(samples.agent())
    room.apply(samples.tool_server())

    durability = room.get("kha", "assistant")["spec"]["durability"]
    server = room.get("kht", "everything")["spec"]
    assert durability == {"maxAttempts": 10, "submissionTimeoutSeconds": 3600, "maxTurns": 32}
    assert (server["insecure"], server["transport"]) == ("Deny", "StreamableHTTP")
    assert server["discovery"] == {"intervalSeconds": 300, "mode": "Required"}


STATUS: Json = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Ready",
            "message": "in force",
        },
        {
            "type": "Available",
            "status": "True",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "Available",
            "message": "",
        },
    ],
    "desiredRevision": "sha256:aa",
    "activeRevision": "sha256:bb",
    "tools": {"resolved": 1, "total": 2},
}


def test_a_status_takes_every_field_by_server_side_apply_and_shows_in_the_columns(room: Room) -> None:
    room.apply(samples.agent())
    status = {**samples.agent(), "metadata": {"name": "assistant"}, "status": STATUS}
    del status["spec"]
    args = ("apply", "--server-side", "--subresource=status", "--field-manager=kubeharness-operator", "-f", "-")
    room.kubectl(*args, input=json.dumps(status))
    head, row = room.kubectl("get", "kha", "-o", "wide").splitlines()
    kept = room.get("kha", "assistant")["status"]

    assert sorted(kept.pop("conditions"), key=lambda item: item["type"]) == sorted(
        STATUS["conditions"], key=lambda item: item["type"]
    )
    assert kept == {key: value for key, value in STATUS.items() if key != "conditions"}
    assert head.split() == ["NAME", "READY", "REASON", "AVAILABLE", "MODEL", "REVISION", "MESSAGE", "AGE"]
    assert row.split()[1:6] == ["True", "Ready", "True", "small", "sha256:bb"]


@pytest.mark.parametrize("document", [samples.provider(), samples.tool_server()])
def test_the_status_of_providers_and_tool_servers_takes_every_field(room: Room, document: Json) -> None:
    room.apply(document)
    name = document["metadata"]["name"]
    status = {key: STATUS[key] for key in ("observedGeneration", "conditions")}
    written = {"apiVersion": samples.API, "kind": document["kind"], "metadata": {"name": name}, "status": status}
    args = ("apply", "--server-side", "--subresource=status", "--field-manager=kubeharness-operator", "-f", "-")
    room.kubectl(*args, input=json.dumps(written))
    kept = room.get(document["kind"].lower(), name)["status"]

    assert kept["observedGeneration"] == 1
    assert all(condition in kept["conditions"] for condition in STATUS["conditions"])


def test_a_status_without_its_bounds_is_refused(room: Room) -> None:
    room.apply(samples.agent())
    status: Json = {**samples.agent(), "metadata": {"name": "assistant"}}
    status["status"] = {**STATUS, "conditions": [{**STATUS["conditions"][0], "message": "x" * 4_097}]}
    args = ("apply", "--server-side", "--subresource=status", "--field-manager=kubeharness-operator", "-f", "-")

    with pytest.raises(KubectlFailed, match=r"status\.conditions\[0\]\.message"):
        room.kubectl(*args, input=json.dumps(status))


def test_short_names_and_the_category_reach_all_kinds(room: Room) -> None:
    for document in (samples.agent(), samples.scripted(), samples.tool_server()):
        room.apply(document)

    listed = room.kubectl("get", "kubeharness", "-o", "name").split()
    assert listed == [
        "agent.kubeharness.dev/assistant",
        "modelprovider.kubeharness.dev/demo",
        "toolserver.kubeharness.dev/everything",
    ]


@pytest.mark.parametrize("path", ["agent.spec.model.contextWindow", "khm.spec.scripted.rules.steps", "kht.status"])
def test_fields_explain_themselves(served: Cluster, path: str) -> None:
    assert "DESCRIPTION:" in served.kubectl("explain", path)
