"""The chunks of an OpenAI-compatible stream, put together into events and one message. Pure.

It trusts no wire's tidiness: calls may share an index or have none (C27), ids may repeat or be missing (C26),
arguments may be no JSON (C31), a character may be split over two chunks (C30).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

from kubeharness.core.events import (
    CompletionDelta,
    CompletionStart,
    ProviderEvent,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
)
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import (
    MessagePart,
    ProviderMessage,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCall,
    Usage,
    joined_text,
)
from kubeharness.core.text import as_object, clean_text
from kubeharness.providers.arguments import is_object, parse_arguments

_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "refusal": "refusal",
}


class ChatAnswer:
    """Takes chunks, gives events. `finished` says whether the wire told why it stopped."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._started = False
        self._speech = _Speech()
        self._calls = _Calls()
        self._finish: str | None = None
        self._refused = False
        self._usage: Usage | None = None
        self.progress = 0
        """Grows with every chunk that says anything: the idle deadline looks at it."""

    @property
    def finished(self) -> bool:
        """Without a finish reason a stream is a dead try, whatever it said (C35)."""
        return self._finish is not None

    @property
    def complete(self) -> bool:
        """Finished, and the usage has come: nothing more is worth waiting for."""
        return self.finished and self._usage is not None

    def take(self, chunk: JsonObject, elapsed_ms: int) -> Iterator[ProviderEvent]:
        """Read one chunk."""
        if not self._started:
            self._started = True
            self.progress += 1
            yield CompletionStart()
        usage = _usage(chunk.get("usage"))
        if usage is not None:
            self._usage = usage
            self.progress += self.finished
        choices = chunk.get("choices")
        choice = as_object(choices[0]) if isinstance(choices, list) and choices else None
        if choice is None:
            return
        delta = as_object(choice.get("delta")) or as_object(choice.get("message")) or {}
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        refusal = _text(delta.get("refusal"))
        self._refused = self._refused or bool(refusal)
        yield from self._speech.say("thinking", reasoning, elapsed_ms)
        yield from self._speech.say("text", _text(delta.get("content")) + refusal, elapsed_ms)
        calls = delta.get("tool_calls")
        fragments = calls if isinstance(calls, list) else []
        for call in fragments:
            self._calls.take(as_object(call) or {})
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self._finish = reason
        said = reasoning or refusal or delta.get("content") or fragments or reason
        self.progress += bool(said)

    def end(self, elapsed_ms: int) -> Iterator[ProviderEvent]:
        """Close what is open; ask only when finished."""
        yield from self._speech.close(elapsed_ms)

    def message(self) -> ProviderMessage:
        """The whole answer."""
        parts, calls = tuple(self._speech.parts), self._calls.whole()
        return ProviderMessage(
            role="assistant",
            content=joined_text(parts),
            parts=parts,
            tool_calls=calls,
            stop_reason=self._stop_reason(bool(calls)),
            model=self._model,
            usage=self._usage,
        )

    def _stop_reason(self, called: bool) -> StopReason:
        stop = _STOPS.get(self._finish or "", "other")
        if self._refused and stop == "stop":
            return "refusal"
        if stop in ("stop", "tool_calls"):  # wires disagree on which of the two they say
            return "tool_calls" if called else "stop"
        return stop


@dataclass(slots=True)
class _Speech:
    """Text and reasoning in the order they come, whole characters only."""

    parts: list[MessagePart] = field(default_factory=list)
    kind: Literal["text", "thinking"] | None = None
    pieces: list[str] = field(default_factory=list)
    held: str = ""
    since_ms: int = 0

    def say(self, kind: Literal["text", "thinking"], text: str, elapsed_ms: int) -> Iterator[ProviderEvent]:
        if not text:
            return
        if kind != self.kind:
            yield from self.close(elapsed_ms)
            self.kind, self.since_ms = kind, elapsed_ms
            if kind == "thinking":
                yield ReasoningStart()
        text = self.held + text
        self.held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""  # half a pair waits for the other
        yield from self._emit(text[: len(text) - len(self.held)])

    def close(self, elapsed_ms: int) -> Iterator[ProviderEvent]:
        held, self.held = self.held, ""
        yield from self._emit(held)
        whole = "".join(self.pieces)
        if self.kind == "thinking":
            self.parts.append(ThinkingPart(whole))
            yield ReasoningEnd(whole, elapsed_ms - self.since_ms)
        elif self.kind == "text":
            self.parts.append(TextPart(whole))
        self.kind, self.pieces = None, []

    def _emit(self, text: str) -> Iterator[ProviderEvent]:
        if not text:
            return
        # pairs that came as two escapes become one character, what is left alone U+FFFD
        text = clean_text(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
        self.pieces.append(text)
        yield ReasoningDelta(text) if self.kind == "thinking" else CompletionDelta(text)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: str = ""
    signature: str | None = None


class _Calls:
    """Fragments of calls, told apart by index, id and name, whichever the wire sends (C27)."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def take(self, delta: JsonObject) -> None:
        function = as_object(delta.get("function")) or {}
        call_id, name, index = _text(delta.get("id")), _text(function.get("name")), delta.get("index")
        call = self._continued(index, call_id, name)
        if call is None:
            call = _Call(call_id, name)
            self._calls.append(call)
        else:
            call.id, call.name = call.id or call_id, call.name or name
        if isinstance(index, int):
            self._by_index[index] = call
        arguments = function.get("arguments")
        call.arguments += _text(arguments) if not isinstance(arguments, dict) else json.dumps(arguments)
        google = as_object((as_object(delta.get("extra_content")) or {}).get("google")) or {}
        call.signature = _text(google.get("thought_signature")) or call.signature

    def whole(self) -> tuple[ToolCall, ...]:
        """The calls in order, under ids that are distinct within the message (C26)."""
        found: list[ToolCall] = []
        used: set[str] = set()
        for n, call in enumerate(self._calls):
            arguments, raw = parse_arguments(call.arguments)
            own = clean_text(call.id)
            distinct = own if own.strip() and own not in used else f"call_{n + 1}"
            while distinct in used:
                distinct += "_"
            used.add(distinct)
            found.append(
                ToolCall(
                    id=distinct,
                    name=clean_text(call.name),
                    arguments=arguments,
                    provider_call_id=own or None,
                    raw_arguments=raw,
                    thought_signature=call.signature,
                )
            )
        return tuple(found)

    def _continued(self, index: Json, call_id: str, name: str) -> _Call | None:
        """The call that a fragment goes on with; None if it opens one."""
        if not self._calls:
            return None
        last = self._by_index.get(index) if isinstance(index, int) else self._calls[-1]
        if last is None:  # an index not seen yet
            return None if call_id or name else self._calls[-1]
        if call_id and last.id and call_id != last.id:
            return None
        if name and last.name and (name != last.name or is_object(last.arguments)):
            return None  # the name again, after whole arguments
        return last


def _usage(value: Json) -> Usage | None:
    given = as_object(value)
    if given is None:
        return None
    sent = as_object(given.get("prompt_tokens_details")) or {}
    said = as_object(given.get("completion_tokens_details")) or {}
    return Usage(
        input=_count(given.get("prompt_tokens")),
        output=_count(given.get("completion_tokens")),
        cache_read=_count(sent.get("cached_tokens")),
        cache_write=_count(sent.get("cache_write_tokens")),
        reasoning=_count(said.get("reasoning_tokens")),
    )


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _text(value: Json) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [as_object(part) or {} for part in value]
        return "".join(cast("str", part["text"]) for part in parts if isinstance(part.get("text"), str))
    return ""
