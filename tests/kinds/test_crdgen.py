"""The CRDs are what the models say, and a schema with a smell never leaves the house."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml
from pydantic import Field

from kubeharness.kinds import crdgen
from kubeharness.kinds.agent import Agent
from kubeharness.kinds.common import Kind, Names, Part
from kubeharness.kinds.conditions import ConditionType, Reason

ROOT = Path(__file__).parents[2]
NAMES = Names(kind="Thing", plural="things", short="t", columns=())
Short = Annotated[str, Field(max_length=8)]


class Named(Part):
    """An entry."""

    name: Short = Field(description="Its name.")


class Optionally(Part):
    """An entry whose name may be missing."""

    name: Short | None = Field(None, description="Its name.")


class Recursive(Part):
    """Contains itself."""

    below: "Recursive | None" = Field(None, description="Another.")


def schema_of(annotation: Any, field: Any, doc: str = "A spec.") -> dict[str, Any]:
    """The structural schema of a kind whose spec has this one field."""
    spec = type("Spec", (Part,), {"__annotations__": {"it": annotation}, "it": field, "__doc__": doc})
    thing = type(
        "Thing",
        (Kind,),
        {
            "__annotations__": {"names": ClassVar[Names], "spec": spec, "status": Named},
            "names": NAMES,
            "spec": Field(description="Spec."),
            "status": Field(Named(name="x"), description="Status."),
            "__doc__": "A thing.",
        },
    )
    found: dict[str, Any] = crdgen.structural(thing)["properties"]["spec"]["properties"]["it"]
    return found


def described(default: Any = ..., **more: Any) -> Any:
    return Field(default, description="It.", **more)


SMELLS = [
    (str, described(), "a string without maxLength or enum"),
    (list[Short], described(), "a list without maxItems"),
    (list[str], described(max_length=3), "a string without maxLength or enum"),
    (list[Named], described(max_length=3), "a list of objects without a list type"),
    (
        list[Optionally],
        described(
            max_length=3,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
        "the list's key name is neither required nor defaulted",
    ),
    (dict[str, Any], described(), "a map without maxProperties"),
    (dict[str, Short], described(), "a map without maxProperties"),
    (Short, Field(), "no description"),
    (float, described(), "a number; use a decimal in a string"),
    (Short | bool, described(), "a union that no structural schema can say"),
    (Named | Optionally, described(), "a union that no structural schema can say"),
    (Any, described(), "no type"),
    (Recursive, described(), "Recursive contains itself"),
]


@pytest.mark.parametrize(("annotation", "field", "smell"), SMELLS)
def test_a_smell_fails_the_build_and_says_where(annotation: Any, field: Any, smell: str) -> None:
    with pytest.raises(crdgen.SmellError, match=r"^Thing\.spec\.it.*: ") as failed:
        schema_of(annotation, field)

    assert smell in str(failed.value)


FORMS: list[tuple[Any, Any, dict[str, Any]]] = [
    (Short | None, described(None), {"type": "string", "maxLength": 8}),
    (Annotated[int, Field(gt=0, lt=9)], described(), {"type": "integer", "minimum": 1, "maximum": 8}),
    (
        Annotated[int, Field(strict=True)] | Short,
        described(),
        {
            "maxLength": 8,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
        },
    ),
    (
        dict[str, Any],
        described(max_length=4),
        {"type": "object", "maxProperties": 4, "x-kubernetes-preserve-unknown-fields": True},
    ),
    (
        dict[str, Short],
        described(max_length=4),
        {"type": "object", "maxProperties": 4, "additionalProperties": {"type": "string", "maxLength": 8}},
    ),
    (
        Optionally | None,
        described(Optionally()),
        {
            "type": "object",
            "default": {},
            "properties": {"name": {"description": "Its name.", "maxLength": 8, "type": "string"}},
        },
    ),
]


@pytest.mark.parametrize(("annotation", "field", "expected"), FORMS)
def test_a_type_takes_the_form_that_a_server_accepts(annotation: Any, field: Any, expected: dict[str, Any]) -> None:
    assert schema_of(annotation, field) == {"description": "It.", **expected}


def test_the_root_keeps_metadata_bare() -> None:
    schema = crdgen.structural(Agent)

    assert schema["properties"]["metadata"] == {"type": "object"}
    assert schema["required"] == ["spec"]


def test_committed_crds_are_what_the_models_say() -> None:
    chart = ROOT / "charts" / "kubeharness-crds" / "templates"

    assert crdgen.main(["--check", "--out", str(ROOT / "crds"), "--chart", str(chart)]) == 0


@pytest.mark.parametrize("drifted", ["crds", "chart"])
def test_a_drift_a_stranger_and_a_missing_file_are_said_and_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drifted: str
) -> None:
    folders = ["--out", str(tmp_path / "crds"), "--chart", str(tmp_path / "chart")]
    assert crdgen.main(folders) == 0
    (tmp_path / drifted / "agents.kubeharness.dev.yaml").write_text("edited")
    (tmp_path / drifted / "toolservers.kubeharness.dev.yaml").unlink()
    (tmp_path / drifted / "strangers.kubeharness.dev.yaml").write_text("")

    assert crdgen.main(["--check", *folders]) == 1
    said = capsys.readouterr().err
    assert [line.split(" ")[0].split("/")[-1].split(".")[0] for line in said.splitlines()] == [
        "agents",
        "strangers",
        "toolservers",
    ]
    assert crdgen.main(folders) == 0
    assert crdgen.main(["--check", *folders]) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.name)
def test_every_crd_is_under_100_kb_and_served_as_agreed(path: Path) -> None:
    crd = yaml.safe_load(path.read_text())
    [version] = crd["spec"]["versions"]

    assert path.stat().st_size < 100_000
    assert crd["spec"]["names"]["categories"] == ["kubeharness"]
    assert crd["spec"]["names"]["shortNames"][0] in {"kha", "khm", "kht"}
    assert crd["spec"]["scope"] == "Namespaced"
    assert (version["served"], version["storage"], version["subresources"]) == (True, True, {"status": {}})


def test_an_agents_columns_are_those_of_the_design() -> None:
    columns = crdgen.crd(Agent)["spec"]["versions"][0]["additionalPrinterColumns"]

    assert [c["name"] for c in columns if "priority" not in c] == ["READY", "REASON", "AVAILABLE", "MODEL", "AGE"]
    assert [c["name"] for c in columns if "priority" in c] == ["REVISION", "MESSAGE"]


@pytest.mark.parametrize("constants", [ConditionType, Reason])
def test_every_condition_type_and_reason_is_documented(constants: type[ConditionType] | type[Reason]) -> None:
    for constant in constants:
        assert constant.value.isalnum()
        assert constant.value[0].isupper()
        assert constant.doc.endswith(".")
