"""The Scripted provider's script: rules, conditions and steps, read once from its JSON. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kubeharness.core.errors import (
    ProviderAuth,
    ProviderError,
    ProviderFatal,
    ProviderOverflow,
    ProviderTransient,
)
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import Usage

EndKind = Literal["Length", "Refusal", "Cut"]
_ENDS: tuple[EndKind, ...] = ("Length", "Refusal", "Cut")
_DEFAULT_CHUNK = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as a script sees it. `attempt` is `try`: 1 plus the failed tries of this turn."""

    input: str
    system: str
    tool: str
    after_tool: str | None
    turn: int
    attempt: int
    model: str
    calls: int


@dataclass(frozen=True, slots=True)
class Say:
    """Stream visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reason:
    """Stream reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """Ask for a tool. Arguments that are a string come raw, as a broken model would send them."""

    name: str
    arguments: JsonObject | str


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait in silence."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise this."""

    error: ProviderError


@dataclass(frozen=True, slots=True)
class End:
    """Stop here: by length, by refusal, or with no end at all."""

    kind: EndKind


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the call cost."""

    usage: Usage


Step = Say | Reason | Call | Delay | Fail | End | Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Conditions that must all hold; those left out hold always."""

    contains: str | None = None
    turn: int | None = None
    after_tool: str | None = None
    attempt: int | None = None
    model: str | None = None
    system_contains: str | None = None

    def holds(self, request: Request) -> bool:
        """Whether a request fits; texts are compared in any case."""
        return (
            (self.contains is None or self.contains.casefold() in request.input.casefold())
            and self.turn in (None, request.turn)
            and self.after_tool in (None, request.after_tool)
            and self.attempt in (None, request.attempt)
            and self.model in (None, request.model)
            and (self.system_contains is None or self.system_contains.casefold() in request.system.casefold())
        )


@dataclass(frozen=True, slots=True)
class Script:
    """Rules in order, and how fast they are spoken."""

    chunk_characters: int
    chunk_delay_ms: int
    rules: Sequence[tuple[When, Sequence[Step]]]

    def steps_for(self, request: Request) -> Sequence[Step]:
        """The steps of the first rule that fits, else the echo."""
        return next((steps for when, steps in self.rules if when.holds(request)), (Say("You said: {{input}}"),))


def parse_script(spec: JsonObject) -> Script:
    """Read the JSON of `spec.scripted`. Raises ProviderFatal naming the place that cannot be read."""
    rules = []
    for n, rule in enumerate(_array(spec.get("rules") or [], "rules")):
        place = f"rules[{n}]"
        fields = _object(rule, place)
        steps = _array(fields.get("steps") or [], f"{place}.steps")
        rules.append(
            (
                _when(_object(fields.get("when") or {}, f"{place}.when"), f"{place}.when"),
                tuple(
                    _step(_object(step, f"{place}.steps[{m}]"), f"{place}.steps[{m}]") for m, step in enumerate(steps)
                ),
            )
        )
    return Script(
        max(1, _number(spec.get("chunkCharacters", _DEFAULT_CHUNK), "chunkCharacters")),
        max(0, _number(spec.get("chunkDelayMilliseconds", 0), "chunkDelayMilliseconds")),
        tuple(rules),
    )


def _when(fields: JsonObject, place: str) -> When:
    known = {"contains", "turn", "afterTool", "try", "model", "systemContains"}
    for key in fields.keys() - known:
        raise _unreadable(f"{place}.{key}", f"no such condition; there are {', '.join(sorted(known))}")

    def text(key: str) -> str | None:
        return None if fields.get(key) is None else _text(fields[key], f"{place}.{key}")

    def number(key: str) -> int | None:
        return None if fields.get(key) is None else _number(fields[key], f"{place}.{key}")

    return When(
        contains=text("contains"),
        turn=number("turn"),
        after_tool=text("afterTool"),
        attempt=number("try"),
        model=text("model"),
        system_contains=text("systemContains"),
    )


def _step(fields: JsonObject, place: str) -> Step:
    given = [key for key, value in fields.items() if value is not None]
    if len(given) != 1:
        raise _unreadable(place, "give exactly one step")
    key = given[0]
    value, place = fields[key], f"{place}.{key}"
    match key:
        case "text":
            return Say(_text(value, place))
        case "reasoning":
            return Reason(_text(value, place))
        case "delayMilliseconds":
            return Delay(max(0, _number(value, place)))
        case "toolCall":
            call = _object(value, place)
            arguments = call.get("arguments")
            if not isinstance(arguments, str):
                arguments = _object(arguments or {}, f"{place}.arguments")
            return Call(_text(call.get("name"), f"{place}.name"), arguments)
        case "error":
            return Fail(_error(_object(value, place), place))
        case "end":
            for kind in _ENDS:
                if kind == value:
                    return End(kind)
            raise _unreadable(place, f"give one of {', '.join(_ENDS)}")
        case "usage":
            return Tokens(_usage(_object(value, place), place))
        case _:
            raise _unreadable(place, "no such step")


def _error(fields: JsonObject, place: str) -> ProviderError:
    kind = fields.get("kind", "Transient")
    message = _text(fields.get("message") or f"scripted {kind} error", f"{place}.message")
    match kind:
        case "Transient":
            after = fields.get("retryAfterSeconds")
            if isinstance(after, bool) or not isinstance(after, int | float | None):
                raise _unreadable(f"{place}.retryAfterSeconds", "give a number")
            return ProviderTransient(message, None if after is None else float(after))
        case "Overflow":
            return ProviderOverflow(message)
        case "Fatal":
            return ProviderFatal(message)
        case "Auth":
            return ProviderAuth(message)
        case _:
            raise _unreadable(f"{place}.kind", "give one of Transient, Overflow, Fatal, Auth")


def _usage(fields: JsonObject, place: str) -> Usage:
    def count(key: str) -> int | None:
        return None if fields.get(key) is None else _number(fields[key], f"{place}.{key}")

    return Usage(
        input=count("input"),
        output=count("output"),
        cache_read=count("cacheRead"),
        cache_write=count("cacheWrite"),
        reasoning=count("reasoning"),
    )


def _unreadable(place: str, remedy: str) -> ProviderFatal:
    return ProviderFatal(f"scripted.{place}: {remedy}")


def _object(value: Json, place: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _unreadable(place, "give an object")
    return value


def _array(value: Json, place: str) -> list[Json]:
    if not isinstance(value, list):
        raise _unreadable(place, "give a list")
    return value


def _text(value: Json, place: str) -> str:
    if not isinstance(value, str):
        raise _unreadable(place, "give a text")
    return value


def _number(value: Json, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _unreadable(place, "give a whole number")
    return value
