"""A model without a model: a pure function of the request, so that a resumed attempt answers alike.

It ships as product (quickstart, demos, tests), keyless. `script.py` reads the rules; this file says them.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from kubeharness.core.events import (
    CompletionDelta,
    CompletionEnd,
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
    ToolDefinition,
    Usage,
    joined_text,
)
from kubeharness.core.text import clean_json, clean_text
from kubeharness.providers.script import (
    Call,
    Delay,
    End,
    Fail,
    Reason,
    Request,
    Say,
    Script,
    Step,
    Tokens,
    parse_script,
)

_PLACEHOLDER = re.compile(r"\{\{(input|tool|turn|system|model|call)\}\}")


class ScriptedProvider:
    """Answers with the steps of the first rule that fits, else `You said: {{input}}`.

    `failed_tries` is what the engine counts in the lane; a completed message sets it back, here as there.
    A script that cannot be read raises ProviderFatal when it is asked, naming the place.
    """

    def __init__(self, spec: JsonObject, model: str, failed_tries: int = 0) -> None:
        self._spec = spec
        self._model = model
        self._failed_tries = failed_tries

    async def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        """Say the answer in chunks. Raises the typed error of an `error` step; `end: Cut` just stops."""
        script = parse_script(self._spec)
        request = read_request(messages, model=self._model, failed_tries=self._failed_tries)
        answer = _Answer(request, script)
        for step in script.steps_for(request):
            if isinstance(step, Delay):
                await asyncio.sleep(step.milliseconds / 1000)
                answer.duration_ms += step.milliseconds
            elif isinstance(step, Fail):
                raise step.error
            elif isinstance(step, End) and step.kind == "Cut":
                return
            else:
                for event in answer.say(step):
                    yield event
                    if script.chunk_delay_ms and isinstance(event, CompletionDelta | ReasoningDelta):
                        await asyncio.sleep(script.chunk_delay_ms / 1000)
                        answer.duration_ms += script.chunk_delay_ms
            if isinstance(step, End):
                break
        for event in answer.finish():
            self._failed_tries = 0
            yield event


def read_request(messages: Sequence[ProviderMessage], *, model: str, failed_tries: int = 0) -> Request:
    """What conditions and placeholders look at, read from the messages alone."""
    said = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    answered = max((i for i, message in enumerate(messages) if message.role == "assistant"), default=-1)
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    outcomes = [(i, message) for i, message in enumerate(messages) if message.role == "tool"]
    after_tool, tool = None, ""
    if outcomes:
        place, last = outcomes[-1]
        tool = last.content.removeprefix("success: ").removeprefix("error: ")
        if place > answered:  # an outcome that the model has spoken about since is not what came last
            after_tool = names.get(last.tool_call_id or "")
    return Request(
        input=messages[said].content if said >= 0 else "",
        system="\n".join(message.content for message in messages if message.role == "system"),
        tool=tool,
        after_tool=after_tool,
        turn=sum(message.role == "assistant" for message in messages[said + 1 :]) + 1,
        attempt=failed_tries + 1,
        model=model,
        calls=sum(len(message.tool_calls) for message in messages),
    )


@dataclass(slots=True)
class _Answer:
    """The message as it grows. Durations are those the script asked for: equal requests give equal events."""

    request: Request
    script: Script
    started: bool = False
    parts: list[MessagePart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    usage: Usage | None = None
    stop: StopReason | None = None
    duration_ms: int = 0

    def say(self, step: Step) -> Iterator[ProviderEvent]:
        match step:
            case Tokens():
                self.usage = step.usage
            case End():
                self.stop = "length" if step.kind == "Length" else "refusal"
            case Say():
                yield from self._begin()
                text = self._fill(step.text)
                self.parts.append(TextPart(text))
                for chunk in self._chunks(text):
                    yield CompletionDelta(chunk)
            case Reason():
                yield from self._begin()
                text = self._fill(step.text)
                before = self.duration_ms
                yield ReasoningStart()
                for chunk in self._chunks(text):
                    yield ReasoningDelta(chunk)
                self.parts.append(ThinkingPart(text))
                yield ReasoningEnd(text, self.duration_ms - before)
            case Call():
                yield from self._begin()
                self.calls.append(self._call(step))
            case _:  # Delay and Fail are the stream's
                pass

    def finish(self) -> Iterator[ProviderEvent]:
        yield from self._begin()
        parts = tuple(self.parts)
        message = ProviderMessage(
            role="assistant",
            content=joined_text(parts),
            parts=parts,
            tool_calls=tuple(self.calls),
            stop_reason=self.stop or ("tool_calls" if self.calls else "stop"),
            model=self.request.model,
            usage=self.usage,
        )
        yield CompletionEnd(message, self.duration_ms)

    def _begin(self) -> Iterator[ProviderEvent]:
        if not self.started:
            self.started = True
            yield CompletionStart()

    def _chunks(self, text: str) -> Iterator[str]:
        size = self.script.chunk_characters
        return (text[at : at + size] for at in range(0, len(text), size))

    def _call(self, step: Call) -> ToolCall:
        call_id = f"call_{self._ordinal()}"
        if isinstance(step.arguments, str):  # what is no JSON object comes as a broken model would send it (C31)
            return ToolCall(call_id, step.name, provider_call_id=call_id, raw_arguments=self._fill(step.arguments))
        arguments = {key: self._fill_json(value) for key, value in step.arguments.items()}
        return ToolCall(call_id, step.name, arguments, provider_call_id=call_id)

    def _ordinal(self) -> int:
        return self.request.calls + len(self.calls) + 1

    def _fill(self, text: str) -> str:
        """Put the values in, in one pass: what a value holds is never read as a placeholder (C55)."""
        return clean_text(_PLACEHOLDER.sub(lambda match: self._value(match[1]), text))

    def _fill_json(self, value: Json) -> Json:
        match value:
            case str():
                return self._fill(value)
            case list():
                return [self._fill_json(item) for item in value]
            case dict():
                return {clean_text(key): self._fill_json(item) for key, item in value.items()}
            case _:
                return clean_json(value)

    def _value(self, name: str) -> str:
        request = self.request
        values = {
            "input": request.input,
            "tool": request.tool,
            "system": request.system,
            "model": request.model,
        }
        if name == "turn":
            return str(request.turn)
        return str(self._ordinal()) if name == "call" else values[name]
