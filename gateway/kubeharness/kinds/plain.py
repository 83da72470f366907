"""What a ConfigMap and a Secret on disk may hold. No message repeats a value."""

import base64
import binascii
import re

from kubeharness.core.text import clean_text
from kubeharness.kinds.common import Raw
from kubeharness.kinds.reading import Violation

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}\Z")
_FIELDS = {
    "ConfigMap": {"data": False, "binaryData": True},
    "Secret": {"data": True, "stringData": False},
}
"""Kind → the maps that it holds, and whether their values are base64."""
_ALSO = {"apiVersion", "kind", "metadata", "immutable"}


def plain_violations(kind: str, raw: Raw) -> list[Violation]:
    """Everything that an API server would refuse in a ConfigMap or Secret."""
    maps = _FIELDS[kind]
    known = {*_ALSO, *maps, *(("type",) if kind == "Secret" else ())}
    found = [
        Violation(key, f"is no field of a {kind}; its maps are {' and '.join(maps)}") for key in raw.keys() - known
    ]
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not (isinstance(name, str) and _NAME.match(name)):
        found.append(Violation("metadata.name", "must be a DNS name: 1-253 of a-z, 0-9, '-' and '.'"))
    for field, encoded in maps.items():
        values = raw.get(field)
        if values is None:
            continue
        if not isinstance(values, dict):
            found.append(Violation(field, "must be an object"))
            continue
        for key, value in values.items():
            found += _value_violations(f"{field}.{key}", key, value, encoded=encoded)
    return found


def _value_violations(at: str, key: str, value: object, *, encoded: bool) -> list[Violation]:
    if not _KEY.match(key):
        return [Violation(at, "the key must be 1-253 of a-z, A-Z, 0-9, '-', '_' and '.'")]
    if not isinstance(value, str):
        return [Violation(at, "must be a string; write the value in quotes")]
    if encoded and not _is_base64(value):
        return [Violation(at, "must be base64; plain text of a Secret belongs under stringData")]
    if clean_text(value) != value:
        return [Violation(at, "holds a NUL or an unpaired surrogate; remove it")]
    return []


def _is_base64(text: str) -> bool:
    """As an API server decodes it: line breaks are passed over."""
    try:
        base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return False
    return True
