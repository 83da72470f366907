"""What a model reads and says. Shapes only; how they got here is `projection`, how they are sent is a provider's."""

from dataclasses import dataclass, field
from typing import Literal

from kubeharness.core.json import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one model call or the sum of several; None where the provider says nothing."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    def __add__(self, other: "Usage") -> "Usage":
        def total(mine: int | None, theirs: int | None) -> int | None:
            return None if mine is None and theirs is None else (mine or 0) + (theirs or 0)

        return Usage(
            input=total(self.input, other.input),
            output=total(self.output, other.output),
            cache_read=total(self.cache_read, other.cache_read),
            cache_write=total(self.cache_write, other.cache_write),
            reasoning=total(self.reasoning, other.reasoning),
        )


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model is told of it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One request of the model to run a tool.

    `id` is ours once the engine recorded it. `raw_arguments` is set only if what came was no JSON object;
    such a call is never run (C31).
    """

    id: str
    name: str
    arguments: JsonObject = field(default_factory=dict)
    provider_call_id: str | None = None
    raw_arguments: str | None = None
    thought_signature: str | None = None
    """base64, opaque, replayed with the call to the same provider."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a call. An error is feedback for the model, never an exception of the run."""

    content: str
    is_error: bool = False
    requires_input: bool = False
    image_data_url: str | None = None
    data: JsonObject | None = None
    cause: str | None = None
    """A value of `records.OutcomeCause` if the tool did not answer by itself."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """Visible text of an assistant message."""

    text: str
    type: Literal["text"] = "text"


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """Reasoning, with the provider's signature if it gave one: bytes are kept as received (I15)."""

    text: str
    signature: str | None = None
    type: Literal["thinking"] = "thinking"


@dataclass(frozen=True, slots=True)
class OpaquePart:
    """Provider data that we carry and do not read; dropped when the provider changes."""

    provider: str
    data: str
    type: Literal["opaque"] = "opaque"


MessagePart = TextPart | ThinkingPart | OpaquePart

StopReason = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "other"]


@dataclass(frozen=True, slots=True)
class ProviderMessage:
    """One message of the exchange, in no provider's own form."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    image_data_urls: tuple[str, ...] = ()
    parts: tuple[MessagePart, ...] = ()
    """Assistant only: the ordered parts; `content` is the joined text of them."""
    stop_reason: StopReason | None = None
    model: str | None = None
    usage: Usage | None = None


def joined_text(parts: tuple[MessagePart, ...]) -> str:
    """The visible text of an assistant message."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))
