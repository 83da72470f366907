"""What the server's CRDs lack of what this operator reads and writes: they are older than it is. Pure."""

from collections.abc import Iterator, Mapping
from functools import cache

from kubeharness.core.json import JsonObject
from kubeharness.kinds.common import GROUP
from kubeharness.kinds.crdgen import KINDS, structural

MOST_NAMES = 8
"""In a sentence; the first ones say which release the CRDs are of."""


@cache
def _ours() -> Mapping[str, JsonObject]:
    """The schemas that this release was made with, by plural."""
    return {model.names.plural: structural(model) for model in KINDS}


def lacking(served: Mapping[str, JsonObject]) -> str:
    """Which fields the served schemas lack, by CRD, and what to do; empty if they have all.

    A schema that keeps unknown fields lacks none. What a server does not serve at all is no matter of fields.
    """
    found = []
    for plural, ours in _ours().items():
        if plural not in served:
            continue
        missing = sorted(_missing(ours, served[plural], ""))
        if missing:
            more = f" and {len(missing) - MOST_NAMES} more" if len(missing) > MOST_NAMES else ""
            found.append(f"CRD {plural}.{GROUP} lacks {', '.join(missing[:MOST_NAMES])}{more}")
    if not found:
        return ""
    return f"{'; '.join(found)}: older than this operator, upgrade the CRDs (chart kubeharness-crds)"


def _missing(ours: JsonObject, served: object, at: str) -> Iterator[str]:
    if not isinstance(served, dict) or served.get("x-kubernetes-preserve-unknown-fields"):
        return
    properties, theirs = ours.get("properties"), served.get("properties")
    if isinstance(properties, dict):
        known = theirs if isinstance(theirs, dict) else {}
        for name, child in properties.items():
            if not at and name not in ("spec", "status"):
                continue
            path = f"{at}.{name}" if at else name
            if name not in known:
                yield path
            elif isinstance(child, dict):
                yield from _missing(child, known[name], path)
    for part, mark in (("items", "[]"), ("additionalProperties", ".*")):
        child = ours.get(part)
        if isinstance(child, dict):
            yield from _missing(child, served.get(part), at + mark)
