"""What no schema sees: sizes of free-form parts, names that clash once they are read, an object's own name (pure)."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from kubeharness.core.codec import dumps
from kubeharness.core.ids import DNS_LABEL
from kubeharness.core.json import JsonObject
from kubeharness.kinds.agent import AgentSpec
from kubeharness.kinds.common import Part, Raw
from kubeharness.kinds.modelprovider import ModelProviderSpec, Script
from kubeharness.kinds.reading import Violation, read
from kubeharness.kinds.toolserver import ToolServerSpec

SCRIPT_LIMIT = 131_072
"""Bytes of a script: the bounds of its parts do not sum, so the whole has one."""

ARGUMENTS_LIMIT = 16_384
"""Bytes of one scripted call's arguments."""

S = TypeVar("S", bound=Part)


def name_violations(document: Raw) -> list[Violation]:
    """An object of ours has a DNS label for a name."""
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if isinstance(name, str) and DNS_LABEL.match(name):
        return []
    return [Violation("metadata.name", "must be a DNS label: 1-63 of a-z, 0-9 and '-', no '-' at either end")]


def violations_of(document: Raw) -> list[Violation]:
    """What no schema sees in a sound spec of ours: sums, and names that clash once they are resolved."""
    match document.get("kind"):
        case "Agent":
            return _beyond(document, AgentSpec, agent_violations)
        case "ModelProvider":
            return _beyond(document, ModelProviderSpec, script_violations)
        case "ToolServer":
            return _beyond(document, ToolServerSpec, header_violations)
        case _:
            return []


def _beyond(document: Raw, of: type[S], more: Callable[[S], list[Violation]]) -> list[Violation]:
    spec = read(of, document.get("spec"), at="spec", strict=False)
    return [] if isinstance(spec, list) else more(spec)


def agent_violations(spec: AgentSpec) -> list[Violation]:
    """Each source of tools is granted once, so that no tool has two entries that speak of it."""
    first: dict[str, int] = {}
    found: list[Violation] = []
    for index, tool in enumerate(spec.tools):
        if tool.builtin:
            source, at = f"built-in {tool.builtin.name}", "builtin.name"
        elif tool.tool_server:
            source, at = f"ToolServer {tool.tool_server.ref.name}", "toolServer.ref.name"
        else:
            continue
        if first.setdefault(source, index) != index:
            message = f"{source} is granted in entry {first[source]} already; keep one of the two"
            found.append(Violation(f"spec.tools[{index}].{at}", message))
    return found


def script_violations(spec: ModelProviderSpec) -> list[Violation]:
    """A script is JSON of a bounded size."""
    if spec.scripted is None:
        return []
    found: list[Violation] = []
    for number, rule in enumerate(spec.scripted.rules):
        for index, step in enumerate(rule.steps):
            if step.tool_call is None:
                continue
            at = f"spec.scripted.rules[{number}].steps[{index}].toolCall.arguments"
            size = _size(step.tool_call.arguments)
            if size is None:
                found.append(Violation(at, "must be a JSON object"))
            elif size > ARGUMENTS_LIMIT:
                found.append(Violation(at, f"has {size} bytes; at most {ARGUMENTS_LIMIT} are allowed"))
    if not found:
        whole = _size(script_json(spec.scripted)) or 0
        if whole > SCRIPT_LIMIT:
            found.append(Violation("spec.scripted", f"has {whole} bytes; at most {SCRIPT_LIMIT} are allowed"))
    return found


def header_violations(spec: ToolServerSpec) -> list[Violation]:
    """Header names are told apart in any case."""
    first: dict[str, int] = {}
    return [
        Violation(f"spec.headers[{index}].name", f"is the header of entry {first[name]} in another case")
        for index, header in enumerate(spec.headers)
        if first.setdefault(name := header.name.lower(), index) != index
    ]


def _size(value: Any) -> int | None:
    """Bytes of JSON; None if it is none."""
    try:
        return len(dumps(value))
    except (TypeError, ValueError, RecursionError):
        return None


def script_json(script: Script) -> JsonObject:
    """The script as the Scripted provider reads it: CRD names, defaults filled in, no nulls but in arguments."""
    return cast("JsonObject", script.model_dump(by_alias=True, exclude_none=True))
