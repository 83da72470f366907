"""The JSON Schema checker: tool arguments, admission, structured results. The one door to a validator library.

Patterns are matched by a linear engine (C39) and nothing is ever fetched (C40): a reference that leaves the schema,
and a pattern that needs backtracking, make the schema itself wrong.
"""

from collections.abc import Sequence
from typing import Any

import jsonschema_rs

from kubeharness.core.json import Json, JsonObject
from kubeharness.core.text import clean_json, cut_text

MAX_CHARACTERS = 1_048_576
MAX_DEPTH = 128
_MAX_ERRORS = 8
_MAX_ERROR_BYTES = 400


def check_schema(schema: Json) -> None:
    """Raise ValueError naming the place if this is no schema that we can apply in bounded time."""
    Validator(schema)


class Validator:
    """A schema, compiled once. Raises ValueError naming the place that is wrong."""

    def __init__(self, schema: Json) -> None:
        self._compiled = _compile(_bounded(schema))

    def errors(self, value: Json) -> list[str]:
        """What is wrong with a value, each with its place, few and short; empty if it is valid."""
        found: list[str] = []
        for error in self._compiled.iter_errors(_plain(value)):
            place, message = _place(error.instance_path), cut_text(error.message, _MAX_ERROR_BYTES)[0]
            found.append(f"{place}: {message}")
            if len(found) == _MAX_ERRORS:
                break
        return found


def _bounded(schema: Json) -> JsonObject:
    if not isinstance(schema, dict):
        raise ValueError("$: a schema is a JSON object")
    budget = MAX_CHARACTERS
    level: list[Json] = [schema]
    for _ in range(MAX_DEPTH):
        below: list[Json] = []
        for value in level:
            match value:
                case dict():
                    budget -= sum(len(key) + 4 for key in value) + 2
                    below.extend(value.values())
                case list():
                    budget -= len(value) + 2
                    below.extend(value)
                case str():
                    budget -= len(value) + 2
                case _:
                    budget -= 8
        if budget < 0:
            raise ValueError(f"$: the schema is larger than {MAX_CHARACTERS} characters")
        if not below:
            return schema
        level = below
    raise ValueError(f"$: the schema is nested deeper than {MAX_DEPTH} levels")


def _compile(schema: JsonObject) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(_plain(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions())
    except jsonschema_rs.ValidationError as error:
        message = cut_text(error.message, _MAX_ERROR_BYTES)[0]
        raise ValueError(f"{_place(error.instance_path)}: {message}") from error
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(f"$: {cut_text(str(error), _MAX_ERROR_BYTES)[0]}") from error


def _plain(value: Json) -> Any:
    return clean_json(value)  # the library takes UTF-8 only, and says Any where we say Json


def _place(path: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
