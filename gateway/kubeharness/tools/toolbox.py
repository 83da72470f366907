"""The tools of one attempt behind `core.ports.ToolRuntime`: lookup, argument check, timeout, errors as results.

A turn's calls are run together by `engine.batch`; where tools come from is `resolve.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import orjson

from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ToolCall, ToolDefinition, ToolResult
from kubeharness.core.records import OutcomeCause
from kubeharness.core.text import as_object, clean_json, clean_text, cut_text
from kubeharness.engine.schemas import Validator
from kubeharness.tools.names import Origin, aliases, shown_names

DEFAULT_TIMEOUT_SECONDS = 60.0
_QUOTED_BYTES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool. `definition.name` is the original; `server` is empty for a built-in.

    `run` gets checked arguments and the idempotency key of the call; what it raises becomes an error result.
    """

    definition: ToolDefinition
    run: Callable[[JsonObject, str], Awaitable[ToolResult]]
    server: str = ""
    idempotent: bool = False
    sequential: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    @property
    def origin(self) -> Origin:
        """Server and name there."""
        return self.server, self.definition.name


class Toolbox:
    """Built-ins first, then servers' tools by name, under the names that the model sees (C38).

    A tool whose schema we cannot apply, or whose name is truly taken, is left out and said in `warnings`;
    it never costs another.
    """

    def __init__(self, tools: Sequence[Tool], warnings: Sequence[str] = ()) -> None:
        self.warnings = list(warnings)
        self._submission = ""
        self._tools: dict[Origin, tuple[Tool, Validator]] = {}
        for tool in sorted(tools, key=lambda tool: tool.origin):
            if tool.origin in self._tools:
                self.warnings.append(f"{_said(tool.origin)} is offered twice; the first is used")
                continue
            try:
                orjson.dumps(tool.definition.parameters)  # numbers beyond 64 bits fit into no request
                self._tools[tool.origin] = tool, Validator(tool.definition.parameters)
            except (ValueError, orjson.JSONEncodeError) as error:
                self.warnings.append(f"{_said(tool.origin)} is left out, its schema is unusable: {error}")
        names, dropped = shown_names(self._tools)
        for origin in dropped:
            del self._tools[origin]
            self.warnings.append(f"{_said(origin)} is left out, its name is another tool's")
        self._names = aliases(names)
        self._definitions = tuple(
            replace(tool.definition, name=names[origin]) for origin, (tool, _) in self._tools.items()
        )

    def definitions(self) -> Sequence[ToolDefinition]:
        """The tools as the model is told of them, in a stable order."""
        return self._definitions

    def policy(self, name: str) -> tuple[bool, bool]:
        """(idempotent, sequential) of a tool by its shown name; an unknown one is (False, False)."""
        found = self._find(name)
        return (found[0].idempotent, found[0].sequential) if found else (False, False)

    def keyed(self, submission: str) -> None:
        """Name the submission: the idempotency key of a call is submission id + call id (I9)."""
        self._submission = submission

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. Raises nothing but CancelledError; text and data come out clean (I15)."""
        found = self._find(call.name)
        if found is None:
            known = ", ".join(definition.name for definition in self._definitions) or "none"
            return _refused(OutcomeCause.UNKNOWN_TOOL, f"there is no tool {call.name!r}; there are: {_quoted(known)}")
        tool, validator = found
        problem = _problem(call, validator)
        if problem:
            schema = orjson.dumps(clean_json(tool.definition.parameters)).decode()
            return _refused(OutcomeCause.INVALID_ARGUMENTS, f"{_quoted(problem)}\nThe schema is: {_quoted(schema)}")
        return _clean(await self._run(tool, call))

    async def _run(self, tool: Tool, call: ToolCall) -> ToolResult:
        limit = asyncio.timeout(tool.timeout_seconds)
        try:
            async with limit:
                return await tool.run(call.arguments, f"{self._submission}:{call.id}")
        except TimeoutError as error:
            if not limit.expired():  # the tool's own
                return _failed(error)
            return _refused(OutcomeCause.TIMEOUT, f"no answer within {tool.timeout_seconds:g} s")
        except Exception as error:  # noqa: BLE001  whatever a tool raises is feedback for the model
            return _failed(error)

    def _find(self, name: str) -> tuple[Tool, Validator] | None:
        origin = self._names.get(name)
        return None if origin is None else self._tools[origin]


def _problem(call: ToolCall, validator: Validator) -> str | None:
    if call.raw_arguments is not None:
        return f"the arguments are not a JSON object: {_parse_error(call.raw_arguments)}"
    errors = validator.errors(call.arguments)
    return "the arguments do not fit the schema:\n" + "\n".join(errors) if errors else None


def _parse_error(raw: str) -> str:
    try:
        value = orjson.loads(clean_text(raw))
    except orjson.JSONDecodeError as error:
        return f"{error} in {_quoted(raw)}"
    return f"got {type(value).__name__}" if as_object(value) is None else "given as text"


def _said(origin: Origin) -> str:
    server, name = origin
    return f"tool {name!r} of server {server!r}" if server else f"tool {name!r}"


def _quoted(text: str) -> str:
    return cut_text(clean_text(text), _QUOTED_BYTES)[0]


def _refused(cause: OutcomeCause, why: str) -> ToolResult:
    return ToolResult(why, is_error=True, cause=cause.value)


def _failed(error: BaseException) -> ToolResult:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return ToolResult(_quoted(f"{type(error).__name__}: {error}"), is_error=True)


def _clean(result: ToolResult) -> ToolResult:
    return replace(
        result,
        content=clean_text(result.content),
        data=None if result.data is None else as_object(clean_json(result.data)),
    )
