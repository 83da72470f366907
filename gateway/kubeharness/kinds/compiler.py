"""From an Agent to the revision that a run needs, or every problem found (pure).

Objects come as the documents that a server or a disk gave, so that one that no schema ever checked is a list of
problems like any other. Names are resolved in the Agent's own namespace: the caller passes that namespace's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kubeharness.core import revision as core
from kubeharness.core.codec import store_revision
from kubeharness.core.text import clean_text
from kubeharness.kinds.agent import PROMPT_LIMIT, AgentSpec, Tool
from kubeharness.kinds.common import Raw
from kubeharness.kinds.conditions import Reason
from kubeharness.kinds.limits import agent_violations
from kubeharness.kinds.problems import Problem, ProblemKind, Problems
from kubeharness.kinds.references import Reference, references_of
from kubeharness.kinds.sources import compile_provider, compile_tool_server, read_spec

__all__ = ["Compiled", "Problems", "compile_agent", "compile_provider", "compile_tool_server"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What an Agent compiled to, as it is kept and as it is run."""

    stored: core.StoredRevision
    revision: core.AgentRevision


def compile_agent(
    agent: Raw,
    *,
    providers: Mapping[str, Raw],
    tool_servers: Mapping[str, Raw],
    config_maps: Mapping[str, Raw],
) -> Compiled | Problems:
    """The revision of an Agent, or every problem found at once. The same input gives the same id.

    The mappings hold the documents of the Agent's namespace by name; it reads only those that it names.
    """
    spec, problems = read_spec(agent, AgentSpec, agent_violations)
    found = _References(agent, providers, tool_servers, config_maps)
    problems += found.problems
    if problems:
        return Problems(tuple(problems))
    if spec is None or found.provider is None:
        raise AssertionError("a spec without problems names a provider, and one that is missing is a problem")
    prompt = spec.system_prompt if spec.system_prompt is not None else found.prompt
    revision = core.AgentRevision(
        agent=str(agent["metadata"]["name"]),
        description=spec.description or "",
        provider=found.provider,
        model=core.ModelSettings(
            name=spec.model.name,
            context_window=spec.model.context_window,
            max_tokens=spec.model.max_tokens,
            temperature=_decimal(spec.model.temperature),
            top_p=_decimal(spec.model.top_p),
            reasoning_effort=spec.model.reasoning_effort and spec.model.reasoning_effort.lower(),
        ),
        system_prompt=prompt,
        tools=tuple(_grant(tool, found.servers) for tool in spec.tools),
        durability=core.Durability(
            max_attempts=spec.durability.max_attempts,
            submission_timeout_seconds=spec.durability.submission_timeout_seconds,
            max_turns=spec.durability.max_turns,
        ),
    )
    return Compiled(store_revision(revision), revision)


class _References:
    """What the references of an Agent lead to, and what is wrong with them."""

    def __init__(
        self,
        agent: Raw,
        providers: Mapping[str, Raw],
        tool_servers: Mapping[str, Raw],
        config_maps: Mapping[str, Raw],
    ) -> None:
        metadata = agent.get("metadata")
        self._namespace = (isinstance(metadata, dict) and metadata.get("namespace")) or "default"
        self.problems: list[Problem] = []
        self.provider: core.ProviderSpec | None = None
        self.servers: dict[str, core.ToolServerSpec] = {}
        self.prompt = ""
        for ref in references_of({**agent, "kind": "Agent"}):
            match ref.kind:
                case "ModelProvider":
                    self.provider = self._compiled(
                        ref,
                        providers,
                        compile_provider,
                        Reason.PROVIDER_NOT_FOUND,
                        Reason.PROVIDER_NOT_ACCEPTED,
                    )
                case "ToolServer":
                    server = self._compiled(
                        ref,
                        tool_servers,
                        compile_tool_server,
                        Reason.TOOL_SERVER_NOT_FOUND,
                        Reason.TOOL_SERVER_NOT_ACCEPTED,
                    )
                    if server:
                        self.servers[ref.name] = server
                case _:
                    self.prompt = self._text(ref, config_maps)

    def _compiled(
        self,
        ref: Reference,
        there: Mapping[str, Raw],
        compiling: Callable[[Raw], T | Problems],
        not_found: Reason,
        not_accepted: Reason,
    ) -> T | None:
        document = there.get(ref.name)
        if document is None:
            self._problem(ref, not_found, f"{ref.kind} {ref.name} does not exist in namespace {self._namespace}")
            return None
        compiled = compiling(document)
        if isinstance(compiled, Problems):
            self._problem(ref, not_accepted, f"{ref.kind} {ref.name} is not accepted: {compiled.message()}")
            return None
        return compiled

    def _text(self, ref: Reference, config_maps: Mapping[str, Raw]) -> str:
        document = config_maps.get(ref.name)
        if document is None:
            self._problem(
                ref, Reason.CONFIG_MAP_NOT_FOUND, f"ConfigMap {ref.name} does not exist in namespace {self._namespace}"
            )
            return ""
        where = f"ConfigMap {ref.name} key {ref.key!r}"
        if ref.key in _data(document, "binaryData"):
            self._problem(ref, Reason.CONFIG_MAP_VALUE_INVALID, f"{where} is binary; put text under data")
            return ""
        text = _data(document, "data").get(ref.key)
        if text is None:
            self._problem(ref, Reason.CONFIG_MAP_KEY_NOT_FOUND, f"ConfigMap {ref.name} has no key {ref.key!r}")
        elif not isinstance(text, str):
            self._problem(ref, Reason.CONFIG_MAP_VALUE_INVALID, f"{where} is no text")
        elif len(text) > PROMPT_LIMIT:
            remedy = f"has {len(text)} characters; at most {PROMPT_LIMIT} are allowed"
            self._problem(ref, Reason.CONFIG_MAP_VALUE_INVALID, f"{where} {remedy}")
        elif clean_text(text) != text:
            remedy = "holds a NUL or an unpaired surrogate; remove it"
            self._problem(ref, Reason.CONFIG_MAP_VALUE_INVALID, f"{where} {remedy}")
        else:
            return text
        return ""

    def _problem(self, ref: Reference, reason: Reason, message: str) -> None:
        self.problems.append(Problem(kind=ProblemKind.UNRESOLVED, reason=reason, field=ref.field, message=message))


def _grant(tool: Tool, servers: Mapping[str, core.ToolServerSpec]) -> core.ToolGrant:
    if tool.builtin:
        return core.ToolGrant(name=tool.name, builtin=tool.builtin.name)
    source = tool.tool_server
    if source is None:
        raise AssertionError("the union was checked: one of the two is set")
    return core.ToolGrant(name=tool.name, server=servers[source.ref.name], include=tuple(sorted(source.include)))


def _decimal(text: str | None) -> float | None:
    return None if text is None else float(text)


def _data(config_map: Raw, field: str) -> Raw:
    found = config_map.get(field)
    return found if isinstance(found, dict) else {}
