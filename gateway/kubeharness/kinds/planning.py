"""What applying a set of manifests would change, agent by agent, by the very compile that the operator runs (pure).

Two sets are compiled: what would be there, and what is there. Secrets take no part.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kubeharness.core.codec import digest_of, to_json
from kubeharness.core.json import Json
from kubeharness.core.revision import AgentRevision
from kubeharness.kinds.common import Raw
from kubeharness.kinds.compiler import Compiled, compile_agent, compile_provider, compile_tool_server
from kubeharness.kinds.manifests import Loaded, Resource
from kubeharness.kinds.problems import Problems
from kubeharness.kinds.references import references_of

KINDS = ("Agent", "ModelProvider", "ToolServer", "ConfigMap")
"""What a revision is made of."""

Key = tuple[str, str, str]
"""Kind, namespace, name."""
Documents = Mapping[Key, Raw]


class Change(StrEnum):
    """What becomes of an agent."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One problem, with the field that it is about; who knows the files finds the line."""

    key: Key
    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """One agent before and after."""

    namespace: str
    name: str
    change: Change
    revision: str | None = None
    """What it would run on."""
    last_good: str | None = None
    """What it runs on."""
    diff: str = ""
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Base:
    """What is there."""

    documents: Documents = field(default_factory=dict)
    """What references lead to where the files do not say it; the objects of a cluster."""
    revisions: Mapping[tuple[str, str], Compiled | None] = field(default_factory=dict)
    """The last good of an agent, if it is known better than by compiling `documents`; None: there is none."""
    removes: bool = False
    """An agent that is only there goes: the files stand for the whole."""

    def last_good(self, namespace: str, name: str) -> tuple[Compiled | None, str]:
        """What is in force for an agent, and what is worth saying of it."""
        if (namespace, name) in self.revisions:
            return self.revisions[namespace, name], ""
        document = self.documents.get(("Agent", namespace, name))
        if document is None:
            return None, ""
        active = _active(document)
        found = _compiled(document, namespace, self.documents)
        if isinstance(found, Problems):
            serving = f"; it runs on {active}, which can be compared through DATABASE_URL alone" if active else ""
            return None, f"what is there now does not compile ({found.message()}){serving}"
        if active and active != found.stored.id:
            return found, f"what is there now compiles to {found.stored.id}, and {active} is still in force"
        return found, ""


def plan(loaded: Loaded, base: Base) -> tuple[list[AgentPlan], list[Trouble]]:
    """Each agent that the files change or hold, and what is wrong with the documents that are no agents.

    A document that is broken hides what is there under its name: it is what was meant to be applied.
    """
    broken = {problem.key for problem in loaded.problems if problem.key is not None}
    given = {resource.key: resource.document for resource in loaded.resources if resource.kind in KINDS}
    kept = {} if base.removes else {key: raw for key, raw in base.documents.items() if key not in broken}
    after = {**kept, **given}
    troubles = list(_of_sources(loaded.resources))
    plans = [
        _agent(namespace, name, after, given, base, broken)
        for kind, namespace, name in sorted(after)
        if kind == "Agent"
    ]
    if base.removes:
        there = {(key[1], key[2]) for key in {*after, *broken} if key[0] == "Agent"}
        plans += [
            _removed(*key[1:], base) for key in sorted(base.documents) if key[0] == "Agent" and key[1:] not in there
        ]
    # An agent of the cluster that these files neither hold nor change is nobody's concern here.
    return [one for one in plans if ("Agent", one.namespace, one.name) in given or _concerns(one)], troubles


def _concerns(one: AgentPlan) -> bool:
    return one.change not in (Change.UNCHANGED, Change.BROKEN) or bool(one.troubles)


def _of_sources(resources: Iterable[Resource]) -> Iterator[Trouble]:
    for resource in resources:
        if resource.kind not in ("ModelProvider", "ToolServer"):
            continue
        compiling = compile_provider if resource.kind == "ModelProvider" else compile_tool_server
        found = compiling(resource.document)
        if isinstance(found, Problems):
            for item in found:
                yield Trouble(key=resource.key, field=item.field, message=item.message)


def _agent(namespace: str, name: str, after: Documents, given: Documents, base: Base, broken: set[Key]) -> AgentPlan:
    document = after["Agent", namespace, name]
    before, note = base.last_good(namespace, name)
    found = _compiled(document, namespace, after)
    last_good = before.stored.id if before is not None else None
    if isinstance(found, Problems):
        key = ("Agent", namespace, name)
        troubles = tuple(_troubles(key, document, found, broken))
        if key not in given and isinstance(_compiled(document, namespace, base.documents), Problems):
            troubles = ()  # broken before, and not by these files
        if last_good is not None:
            note = "; ".join(part for part in (note, "the last good revision would go on") if part)
        return AgentPlan(
            namespace=namespace,
            name=name,
            change=Change.BROKEN,
            last_good=last_good,
            troubles=troubles,
            notes=(note,) if note else (),
        )
    there = before is not None or ("Agent", namespace, name) in base.documents
    same = last_good == found.stored.id
    return AgentPlan(
        namespace=namespace,
        name=name,
        change=Change.UNCHANGED if same else Change.CHANGED if there else Change.NEW,
        revision=found.stored.id,
        last_good=last_good,
        diff="" if same else diff(before.revision if before is not None else None, found.revision),
        notes=(note,) if note else (),
    )


def _removed(namespace: str, name: str, base: Base) -> AgentPlan:
    before, note = base.last_good(namespace, name)
    return AgentPlan(
        namespace=namespace,
        name=name,
        change=Change.REMOVED,
        last_good=before.stored.id if before is not None else None,
        diff=diff(before.revision, None) if before is not None else "",
        notes=(note,) if note else (),
    )


def _compiled(document: Raw, namespace: str, there: Documents) -> Compiled | Problems:
    def of(kind: str) -> dict[str, Raw]:
        return {key[2]: raw for key, raw in there.items() if key[:2] == (kind, namespace)}

    return compile_agent(
        document, providers=of("ModelProvider"), tool_servers=of("ToolServer"), config_maps=of("ConfigMap")
    )


def _troubles(key: Key, document: Raw, found: Problems, broken: set[Key]) -> Iterator[Trouble]:
    """The problems of an agent; what is missing because its document is broken is not said to be missing."""
    refs = {ref.field: (ref.kind, key[1], ref.name) for ref in references_of({**document, "kind": "Agent"})}
    for item in found:
        message = item.message
        if refs.get(item.field) in broken:
            kind, _, name = refs[item.field]
            message = f"{kind} {name} is broken in these files"
        yield Trouble(key=key, field=item.field, message=message)


def _active(document: Raw) -> str:
    status = document.get("status")
    found = status.get("activeRevision") if isinstance(status, dict) else None
    return found if isinstance(found, str) else ""


def diff(before: AgentRevision | None, after: AgentRevision | None) -> str:
    """What differs, line by line, as a unified diff of both in full."""
    lines = difflib.unified_diff(_lines(before), _lines(after), "last good", "planned", lineterm="", n=2)
    return "\n".join(lines)


def _lines(revision: AgentRevision | None) -> list[str]:
    """A revision as people read it: a field a line, long texts by their own lines, headers without values."""
    return [] if revision is None else list(_said(to_json(_without_values(revision)), 0))


def _without_values(revision: AgentRevision) -> AgentRevision:
    """A header that is written out may be a key, and logs are read by many: enough to see that it changed."""
    tools = []
    for grant in revision.tools:
        if grant.server is not None:
            headers = tuple(
                header
                if header.value is None
                else replace(header, value=f"(hidden, {digest_of(header.value.encode())[7:11]})")
                for header in grant.server.headers
            )
            grant = replace(grant, server=replace(grant.server, headers=headers))
        tools.append(grant)
    return replace(revision, tools=tuple(tools))


def _said(value: Json, depth: int, name: str = "") -> Iterator[str]:
    pad = "  " * depth
    head = f"{pad}{name}:" if name else pad.rstrip()
    match value:
        case dict():
            if name:
                yield head
            for key in sorted(value):
                yield from _said(value[key], depth + bool(name), key)
        case list():
            yield head
            for item in value:
                inner = list(_said(item, 0)) if isinstance(item, dict) else [json.dumps(item, ensure_ascii=False)]
                yield f"{pad}- {inner[0] if inner else ''}"
                yield from (f"{pad}  {line}" for line in inner[1:])
        case str() if "\n" in value:
            yield f"{head} |"
            yield from (f"{pad}  {line}" for line in value.split("\n"))
        case _:
            yield f"{head} {json.dumps(value, ensure_ascii=False)}"


def needed_config_maps(documents: Sequence[Raw], namespace: str) -> set[str]:
    """The ConfigMaps of a namespace that these Agents name."""
    return {
        ref.name
        for document in documents
        if (document.get("metadata") or {}).get("namespace") == namespace
        for ref in references_of({**document, "kind": "Agent"})
        if ref.kind == "ConfigMap"
    }
