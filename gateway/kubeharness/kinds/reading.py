"""A document against a model: every violation at once, each with its field and remedy, never an exception.

The same reading serves documents on disk (unknown fields are violations, as in `kubectl apply`) and objects from
an API server, whose CRD may be looser or newer than we are (unknown fields are left out).
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from kubeharness.core.text import clean_text
from kubeharness.kinds.common import Part, Raw

P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Violation:
    """A field that breaks a rule, and what to do about it."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def read(of: type[P], raw: object, *, at: str, strict: bool) -> P | list[Violation]:
    """The document as a model, or every violation in it, in the order of the document."""
    if raw is None:
        return [Violation(at, "is required")]
    if not isinstance(raw, dict):
        return [Violation(at, f"must be an object, not {_kind_of(raw)}")]
    found: list[Violation] = []
    cleaned = _Walk(strict, found).part(of, raw, at)
    try:
        model = of.model_validate(cleaned)
    except ValidationError as error:
        found.extend(_violation(item, at) for item in error.errors(include_url=False, include_context=True))
    else:
        if not found:
            return model
    return list(dict.fromkeys(found))


class _Walk:
    """Goes once through a document beside its model, for what the model alone does not see."""

    def __init__(self, strict: bool, found: list[Violation]) -> None:
        self._strict = strict
        self._found = found

    def part(self, of: type[Part], raw: Raw, at: str) -> Raw:
        """The part without nulls and, unless strict, without unknown fields."""
        fields = {field.alias or name: field for name, field in of.model_fields.items()}
        cleaned: Raw = {}
        for key, value in raw.items():
            field = fields.get(key)
            if field is None:
                if self._strict:
                    self._found.append(Violation(f"{at}.{key}", _unknown(key, fields)))
            elif value is not None:  # the API server prunes nulls too
                cleaned[key] = self._value(field, value, f"{at}.{key}")
        for rule in of.RULES:
            if rule.holds is not None and not rule.holds(cleaned):
                self._found.append(Violation(f"{at}.{rule.field}" if rule.field else at, rule.message))
        return cleaned

    def _value(self, field: FieldInfo, value: object, at: str) -> object:
        below = _part_of(field.annotation)
        if below is None:
            self._found.extend(_unstorable(value, at))
            if isinstance(value, list):
                self._unique(field, value, at)
            return value
        if isinstance(value, dict):
            return self.part(below, value, at)
        if isinstance(value, list):
            self._unique(field, value, at)
            return [
                self.part(below, item, f"{at}[{index}]") if isinstance(item, dict) else item
                for index, item in enumerate(value)
            ]
        return value

    def _unique(self, field: FieldInfo, items: list[Any], at: str) -> None:
        """Entries of a set or list-map are told apart by themselves or by their keys."""
        extra = cast("Raw", field.json_schema_extra or {})
        key = next(iter(extra.get("x-kubernetes-list-map-keys", ())), None)
        if key is None and extra.get("x-kubernetes-list-type") != "set":
            return
        first: dict[str, int] = {}
        for index, item in enumerate(items):
            name = item if key is None else item.get(key) if isinstance(item, dict) else None
            if isinstance(name, str) and first.setdefault(name, index) != index:
                place = f"{at}[{index}]" if key is None else f"{at}[{index}].{key}"
                self._found.append(Violation(place, f"{name!r} stands in entry {first[name]} already"))


def _part_of(annotation: object) -> type[Part] | None:
    """The model in `Model`, `Model | None` or `list[Model]`."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    for argument in get_args(annotation):
        below = _part_of(argument)
        if below is not None:
            return below
    return None


def _unstorable(value: object, at: str) -> Iterator[Violation]:
    """Text that no database keeps (I15)."""
    match value:
        case str():
            if clean_text(value) != value:
                yield Violation(at, "holds a NUL or an unpaired surrogate; remove it")
        case list():
            for index, item in enumerate(value):
                yield from _unstorable(item, f"{at}[{index}]")
        case dict():
            for key, item in value.items():
                yield from _unstorable(key, at)
                yield from _unstorable(item, f"{at}.{key}")
        case _:
            pass


def _unknown(key: str, fields: dict[str, FieldInfo]) -> str:
    near = difflib.get_close_matches(key, fields, n=1)
    if near:
        return f"is no field here; did you mean {near[0]}?"
    return f"is no field here; the fields are {', '.join(fields)}"


def _kind_of(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "null"


def _violation(error: Any, at: str) -> Violation:
    """Pydantic's finding as field and remedy; what was written is not repeated, it may be long or secret."""
    path = at
    for step in error["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return Violation(path, _remedy(error["type"], error.get("ctx", {}), error.get("input"), error["msg"]))


def _remedy(kind: str, facts: Raw, written: object, otherwise: str) -> str:
    match kind:
        case "missing":
            return "is required"
        case "string_type" if isinstance(written, (int, float)):
            return f"must be a string, not {_kind_of(written)}; write the value in quotes"
        case "string_type":
            return f"must be a string, not {_kind_of(written)}"
        case "int_type" | "int_from_float" if isinstance(written, str):
            return "must be an integer, not a string; write the value without quotes"
        case "int_type" | "int_from_float":
            return f"must be an integer, not {_kind_of(written)}"
        case "bool_type":
            return f"must be true or false, not {_kind_of(written)}"
        case "list_type":
            return f"must be a list, not {_kind_of(written)}"
        case "model_type" | "dict_type" | "model_attributes_type":
            return f"must be an object, not {_kind_of(written)}"
        case "string_too_short" | "string_too_long" if isinstance(written, str):
            return f"has {len(written)} characters; {_bounds(facts)} are allowed"
        case "too_short" | "too_long":
            return f"has {facts['actual_length']} entries; {_bounds(facts)} are allowed"
        case "greater_than_equal":
            return f"must be at least {facts['ge']}"
        case "less_than_equal":
            return f"must be at most {facts['le']}"
        case "literal_error":
            return f"must be {facts['expected']}"
        case "string_pattern_mismatch":
            return f"must match {facts['pattern']}"
        case _:
            return otherwise


def _bounds(facts: Raw) -> str:
    if "max_length" in facts:
        return f"at most {facts['max_length']}"
    return f"at least {facts['min_length']}"
