"""The chart's face: each value has a comment, stands in the schema and does something; each setting is a value."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from charts.rendering import CHART, PROFILES, Document, HelmRefused, Rendered, render
from kubeharness.settings import Settings
from kubeharness_operator.settings import OperatorSettings

Path = tuple[str, ...]

SCHEMA: Document = json.loads((CHART / "values.schema.json").read_text())
VALUES = (CHART / "values.yaml").read_text()
HELMS_OWN = {"global"}

NO_VALUES = {
    "hints": "for tests: the safety poll alone",
    "crash_point": "for tests: where a worker kills itself",
    "idempotency_seconds": "nothing reads it yet",
    "pool": "the chart's workers are the shared pool",
}
"""Settings that no value stands for, and why."""


def schema_at(path: Path) -> Document:
    """The schema of a value."""
    node = SCHEMA
    for name in path:
        node = node["properties"][name]
    return node


def declared(node: yaml.MappingNode, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """Each value of values.yaml with its line, down to where the schema says that it is whole."""
    for key, value in node.value:
        here = (*path, key.value)
        yield here, key.start_mark.line
        if "properties" in schema_at(here) and isinstance(value, yaml.MappingNode):
            yield from declared(value, here)


def in_schema(node: Document, path: Path = ()) -> Iterator[Path]:
    """Each value that the schema knows."""
    for name, below in node["properties"].items():
        if (*path, name) != ("global",):
            yield (*path, name)
            if "properties" in below:
                yield from in_schema(below, (*path, name))


def leaves() -> list[Path]:
    """Each value that holds no others."""
    return [path for path in in_schema(SCHEMA) if "properties" not in schema_at(path)]


def objects(node: Any) -> Iterator[Document]:
    """Each part of the schema that speaks of an object."""
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield node
        for value in node.values():
            yield from objects(value)
    elif isinstance(node, list):
        for value in node:
            yield from objects(value)


def test_each_value_has_a_comment_above_it() -> None:
    lines = VALUES.splitlines()
    root = yaml.compose(VALUES)
    assert isinstance(root, yaml.MappingNode)
    bare = [".".join(path) for path, line in declared(root) if not lines[line - 1].strip().startswith("# ")]

    assert bare == []


def test_values_and_schema_name_the_same() -> None:
    root = yaml.compose(VALUES)
    assert isinstance(root, yaml.MappingNode)

    assert sorted(path for path, _ in declared(root)) == sorted(in_schema(SCHEMA))


def test_no_object_of_the_schema_is_open_but_the_structures_of_kubernetes() -> None:
    open_ones = [node for node in objects(SCHEMA) if "additionalProperties" not in node]

    assert open_ones == [SCHEMA["properties"]["global"], SCHEMA["$defs"]["foreign"]]


# --- each value does something ------------------------------------------------------------------------------------

MANY: Document = {
    "pathPrefix": "/p",
    "auth": {"modes": ["token", "kubernetes"]},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    "ingress": {"enabled": True, "hosts": ["a.test"]},
}
DEV: Document = {"devPostgres": {"enabled": True, "persistence": {"size": "1Gi"}}}
NAMESPACED: Document = {"namespaces": ["team-a"], "auth": {"modes": ["kubernetes"]}, "rbac": {"authDelegator": True}}

ALONE: dict[str, tuple[Document, Any]] = {
    "fullnameOverride": ({}, "renamed"),
    "namespaces": ({}, ["renamed"]),
    "pathPrefix": (MANY, "/renamed"),
    "image.digest": ({}, "sha256:" + "ab" * 32),
    "auth.modes": ({}, ["kubernetes"]),
    "auth.insecure": ({"auth": {"modes": ["none"], "insecure": True}}, False),
    "devPostgres.enabled": ({}, True),
    "devPostgres.persistence.size": (DEV, "7Gi"),
    "gateway.preStopSleepSeconds": ({}, 7),
    "operator.watchSilenceSeconds": ({}, 99),
    "httpRoute.enabled": ({"httpRoute": {"parentRefs": [{"name": "public"}]}}, True),
    "httpRoute.parentRefs": (MANY, [{"name": "renamed"}]),
    "httpRoute.requestTimeout": (MANY, "10m"),
    "ingress.enabled": ({}, True),
    "ingress.tls": (MANY, [{"secretName": "renamed"}]),
    "networkPolicy.postgres.cidrs": ({}, ["1.2.3.4/32"]),
    "networkPolicy.postgres.ports": ({}, [7777]),
    "networkPolicy.apiServer.cidrs": ({}, ["1.2.3.4/32"]),
    "networkPolicy.apiServer.ports": ({}, [7777]),
    "networkPolicy.publicHttps.except": ({}, ["1.2.3.4/32"]),
    "networkPolicy.toolServers": ({}, [{"name": "x", "cidr": "1.2.3.4/32", "ports": [7777]}]),
    "rbac.authDelegator": (NAMESPACED, False),
}
"""Values that need others beside them or have a shape of their own: (what stands beside, the change)."""

SECONDS = {"waitSeconds": 41.5, "streamCloseSeconds": 4.5, "leaseSeconds": 31.5, "drainSeconds": 24.5}
ENUMS = {
    "pullPolicy": "Never",
    "format": "text",
    "level": "debug",
    "type": "NodePort",
    "whenUnsatisfiable": "DoNotSchedule",
}


def told_apart(path: Path, number: int) -> tuple[Any, str] | None:
    """A legal value that no other is, and the text by which it is found; None for what has few values."""
    schema = schema_at(path)
    name = f"renamed-{number}"
    match schema.get("type") or schema["$ref"].rsplit("/", 1)[1]:
        case "string" if "enum" not in schema:
            return name, name
        case "integer" | ["integer", "null"]:
            return 4000 + number, str(4000 + number)
        case "number":
            seconds = SECONDS.get(path[-1], 4000.5 + number)
            return seconds, f'"{seconds}"'
        case "array" if schema["items"].get("$ref", "").endswith("/env"):
            return [{"name": name, "value": "x"}], name
        case "array" if "enum" not in schema["items"]:
            return [{name: "x"}] if "$ref" in schema["items"] else [name], name
        case "resources":
            return {"limits": {"cpu": f"{4000 + number}m"}}, f"{4000 + number}m"
        case "strings" | "foreign":
            return {name: "x"}, name
    return None


def over(values: Document, path: Path, value: Any) -> Document:
    """These values with one of them set."""
    name, *rest = path
    return {**values, name: over(values.get(name, {}), tuple(rest), value) if rest else value}


def text_of(values: Document) -> str:
    """The render, or why there is none: a refusal is an effect too."""
    try:
        return render(values).text
    except HelmRefused as refused:
        return refused.said


LEAVES = {path: number for number, path in enumerate(leaves())}
TOGETHER = {
    path: told
    for path, number in LEAVES.items()
    if ".".join(path) not in ALONE and (told := told_apart(path, number)) is not None
}


@pytest.fixture(scope="module")
def together() -> dict[bool, tuple[str, str]]:
    """Renders before and after all that can be set at once was set: without, and with, the dev Postgres."""
    found = {}
    for dev, beside in ((False, MANY), (True, DEV)):
        values = beside
        for path, (value, _) in TOGETHER.items():
            if (path[0] == "devPostgres") == dev:
                values = over(values, path, value)
        found[dev] = (render(beside).text, render(values).text)
    return found


@pytest.mark.parametrize("path", TOGETHER, ids=".".join)
def test_each_value_is_used_by_some_template(path: Path, together: dict[bool, tuple[str, str]]) -> None:
    before, after = together[path[0] == "devPostgres"]
    _, text = TOGETHER[path]

    assert text not in before
    assert text in after


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in TOGETHER], ids=".".join)
def test_each_value_that_needs_others_is_used_too(path: Path) -> None:
    default = default_of(path)
    context = {"httpRoute": MANY, "ingress": MANY, "devPostgres": DEV}.get(path[0], {})
    beside, value = ALONE.get(".".join(path)) or (context, ENUMS.get(path[-1], not default))
    before, after = text_of(beside), text_of(over(beside, path, value))

    assert "Deployment" in before, before
    assert "specifications of the schema" not in after, after
    assert after != before


def default_of(path: Path) -> Any:
    """The default of a value."""
    default = yaml.safe_load(VALUES)
    for name in path:
        default = default[name]
    return default


# --- each setting is a value --------------------------------------------------------------------------------------


def variables(rendered: Rendered) -> dict[str, dict[str, str | None]]:
    """What each process of ours is told: component → variable → its text, None if it comes from a Secret."""
    found: dict[str, dict[str, str | None]] = {}
    for pod in rendered.pods().values():
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for container in pod["spec"]["containers"]:
            found[component] = {item["name"]: item.get("value") for item in container.get("env", ())}
    return found


def test_each_setting_is_rendered_or_said_not_to_be_a_value() -> None:
    values = {"auth": {"modes": ["token", "kubernetes"], "audiences": ["kubeharness"]}, "database": {"appRole": "app"}}
    told = variables(render(values))
    insecure = variables(render({"auth": {"modes": ["none"], "insecure": True}}))
    ours = {*insecure["gateway"], *told["gateway"], *told["worker"], *told["migrate"]}
    settings = {f"KUBEHARNESS_{name.upper()}" for name in Settings.model_fields if name not in NO_VALUES}
    operators = {f"KUBEHARNESS_{name.upper()}" for name in OperatorSettings.model_fields}

    assert ours == settings
    assert set(told["operator"]) == operators


@pytest.mark.parametrize("profile", sorted(path.stem for path in PROFILES.glob("*.yaml")))
def test_each_process_takes_what_it_is_told(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no setting has would be ignored in silence, and a value that none takes would end the process."""
    for component, told in variables(render(profile=profile)).items():
        if component not in ("gateway", "worker", "operator", "migrate"):
            continue
        model = OperatorSettings if component == "operator" else Settings
        for name, value in told.items():
            if name.startswith("KUBEHARNESS_"):
                monkeypatch.setenv(name, "postgresql://somewhere/db" if value is None else value)
                assert name.removeprefix("KUBEHARNESS_").lower() in model.model_fields
        model()
