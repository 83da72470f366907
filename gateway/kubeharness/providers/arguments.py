"""The arguments of a call: a JSON object that the log can hold, or the raw text (C31). Pure."""

import json

import orjson

from kubeharness.core.json import Json, JsonObject
from kubeharness.core.text import as_object, clean_json, clean_text


def parse_arguments(raw: str) -> tuple[JsonObject, str | None]:
    """(arguments, None), or ({}, the raw text) if it is no JSON object. Nothing at all means no arguments."""
    if not raw.strip():
        return {}, None
    found = _object(raw)
    return ({}, clean_text(raw)) if found is None else (found, None)


def is_object(raw: str) -> bool:
    """Whether a text is a whole JSON object."""
    return raw.rstrip().endswith("}") and _object(raw) is not None


def _object(raw: str) -> JsonObject | None:
    try:
        value = _loads(raw)
        orjson.dumps([[[[[[[[value]]]]]]]])  # nested so deep that no record could hold it
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return None
    return as_object(value)


def _loads(raw: str) -> Json:
    try:
        value: Json = orjson.loads(raw)
    except ValueError:
        value = json.loads(raw, parse_constant=_refuse, parse_int=_whole)  # lone surrogates: orjson takes none
    return clean_json(value)


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is no JSON")


def _whole(digits: str) -> int | float:
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else float(digits)
