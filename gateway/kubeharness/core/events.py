"""What the loop yields while it runs. Ephemeral: what must last becomes a record (`records`)."""

from dataclasses import dataclass

from kubeharness.core.messages import ProviderMessage, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class CompletionStart:
    """The model began to answer."""


@dataclass(frozen=True, slots=True)
class CompletionDelta:
    """A fragment of visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class CompletionEnd:
    """The whole answer. A stream without this event is a dead try."""

    message: ProviderMessage
    duration_ms: int


@dataclass(frozen=True, slots=True)
class ReasoningStart:
    """The model began to reason."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A fragment of reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEnd:
    """The whole of one stretch of reasoning."""

    reasoning: str
    duration_ms: int


ProviderEvent = CompletionStart | CompletionDelta | CompletionEnd | ReasoningStart | ReasoningDelta | ReasoningEnd


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call is about to run."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call has its result."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class AgentCompleted:
    """The model answered without calls, and nobody has more to say."""

    message: ProviderMessage


@dataclass(frozen=True, slots=True)
class InputRequired:
    """A tool needs a person. Its call and question are named."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class MaxStepsReached:
    """The step budget is used up, with the model still asking."""


@dataclass(frozen=True, slots=True)
class AgentError:
    """The model call failed. `error` is what the provider raised, None if its stream just ended."""

    message: str
    error: Exception | None = None


AgentEvent = ProviderEvent | ToolCallStart | ToolCallEnd | AgentCompleted | InputRequired | MaxStepsReached | AgentError
