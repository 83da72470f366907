"""The JSON Schema checker: nothing fetched, nothing that backtracks, errors that name the place."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.engine.schemas import MAX_CHARACTERS, MAX_DEPTH, Validator, check_schema
from support.properties import patient
from support.rawwire import Answer, raw_wire


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({}, id="empty"),
        pytest.param(
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}, id="local $ref"
        ),
        pytest.param({"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{}]}, id="2020-12"),
        pytest.param({"$schema": "http://json-schema.org/draft-07/schema#"}, id="draft 7"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}, id="draft 4"
        ),
        pytest.param({"$id": "http://127.0.0.1:9/x.json", "properties": {"a": {"$ref": "#"}}}, id="harmless $id"),
        pytest.param({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, id="anyOf at the top"),
        pytest.param(nested(30), id="30 nested anyOf"),
        pytest.param({"enum": list(range(50_000))}, id="an enum of 50,000"),
        pytest.param({"properties": {"x": {"pattern": "^(a+)+$"}}}, id="a pattern that backtracks elsewhere"),
    ],
)
def test_a_schema_that_can_be_applied_is_taken_c40_c42(schema: Any) -> None:
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        pytest.param("x", r"\$: a schema is a JSON object", id="text"),
        pytest.param([], r"\$: a schema is a JSON object", id="list"),
        pytest.param(True, r"\$: a schema is a JSON object", id="true"),
        pytest.param({"type": "objekt"}, r"\$\.type: ", id="no such type"),
        pytest.param({"properties": {"a": {"type": 3}}}, r"\$\.properties\.a\.type: ", id="in a property"),
        pytest.param({"pattern": "("}, r"\$\.pattern: ", id="broken pattern"),
        pytest.param({"anyOf": [{}, {"pattern": "(?=a)b"}]}, r"\$\.anyOf\[1\]\.pattern: ", id="look-ahead"),
        pytest.param({"patternProperties": {"(a)\\1": {}}}, r"\$\.patternProperties\.", id="back reference"),
        pytest.param({"$ref": "http://127.0.0.1:9/x.json"}, r"127\.0\.0\.1", id="remote $ref"),
        pytest.param({"$ref": "file:///etc/hostname"}, "etc/hostname", id="file $ref"),
        pytest.param({"$ref": "#/$defs/nope"}, "nope", id="dangling $ref"),
        pytest.param({"$schema": "http://example.invalid/own"}, r"example\.invalid", id="unknown draft"),
        pytest.param(nested(MAX_DEPTH), "nested deeper", id="too deep"),
        pytest.param({"description": "x" * MAX_CHARACTERS}, "larger than", id="too large"),
        pytest.param({"enum": ["x" * 100] * 20_000}, "larger than", id="2 MB of enum"),
    ],
)
def test_a_schema_that_cannot_is_refused_with_its_place_c39_c40_c42(schema: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        check_schema(schema)


async def test_no_reference_is_ever_fetched_c40() -> None:
    async with raw_wire([Answer([b"{}"], content_type="application/json")]) as wire:
        address = f"http://127.0.0.1:{wire.port}/x.json"
        for schema in ({"$ref": address}, {"properties": {"a": {"$ref": f"{address}#/a"}}}, {"$schema": address}):
            with pytest.raises(ValueError, match="127"):
                check_schema(schema)  # type: ignore[arg-type]  # a dict of Json, by parts
        check_schema({"$id": address, "type": "object"})

    assert wire.requests == []


def test_a_hostile_pattern_costs_no_time_c39() -> None:
    validator = Validator({"properties": {"x": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}})
    began = time.monotonic()

    (error,) = validator.errors({"x": "a" * 5_000 + "!", "b" * 5_000 + "!": 1})
    assert error.startswith("$.x: ")
    assert time.monotonic() - began < 1


def test_errors_name_their_places_and_are_bounded() -> None:
    validator = Validator(
        {
            "type": "object",
            "properties": {"a": {"items": {"type": "integer"}}, "s": {"maxLength": 1}},
            "required": ["b"],
        }
    )

    assert validator.errors({"a": [1], "b": 1}) == []
    assert validator.errors({"a": [1, "x"]}) == [
        '$: "b" is a required property',
        '$.a[1]: "x" is not of type "integer"',
    ]
    many = validator.errors({"a": ["x"] * 100, "s": "y" * 100_000})
    assert len(many) == 8
    assert all(len(error) < 600 for error in many)


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(codec=None)), st.lists)
)
@patient
def test_any_value_is_judged_c13(value: Any) -> None:
    errors = Validator({"type": "string"}).errors(value)

    assert (errors == []) == isinstance(value, str)
