"""What an object refers to, read from any document, sound or not (pure)."""

from dataclasses import dataclass
from typing import Any

from kubeharness.kinds.common import Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A field that names another object, and maybe a key in it."""

    field: str
    kind: str
    """ModelProvider, ToolServer, ConfigMap or Secret"""
    name: str
    key: str = ""


def references_of(document: Raw) -> tuple[Reference, ...]:
    """The references of a document in the order of its fields; what cannot be read as one is left out."""
    spec = _get(document, "spec")
    match document.get("kind"):
        case "Agent":
            return tuple(_of_agent(spec))
        case "ModelProvider":
            return tuple(_keyed(_get(spec, "apiKeySecretRef"), "spec.apiKeySecretRef", "Secret"))
        case "ToolServer":
            found: list[Reference] = []
            for index, header in enumerate(_list(spec, "headers")):
                at = f"spec.headers[{index}].secretKeyRef"
                found.extend(_keyed(_get(header, "secretKeyRef"), at, "Secret"))
            return tuple(found)
        case _:
            return ()


def _of_agent(spec: object) -> list[Reference]:
    found = _named(_get(_get(spec, "model"), "providerRef"), "spec.model.providerRef", "ModelProvider")
    at = "spec.systemPromptFrom.configMapKeyRef"
    found += _keyed(_get(_get(spec, "systemPromptFrom"), "configMapKeyRef"), at, "ConfigMap")
    for index, tool in enumerate(_list(spec, "tools")):
        found += _named(_get(_get(tool, "toolServer"), "ref"), f"spec.tools[{index}].toolServer.ref", "ToolServer")
    return found


def _named(ref: object, at: str, kind: str) -> list[Reference]:
    name = _get(ref, "name")
    return [Reference(field=f"{at}.name", kind=kind, name=name)] if isinstance(name, str) and name else []


def _keyed(ref: object, at: str, kind: str) -> list[Reference]:
    name, key = _get(ref, "name"), _get(ref, "key")
    if isinstance(name, str) and name and isinstance(key, str) and key:
        return [Reference(field=at, kind=kind, name=name, key=key)]
    return []


def _get(value: object, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _list(value: object, key: str) -> list[Any]:
    found = _get(value, key)
    return found if isinstance(found, list) else []
