"""The two things that the loop calls, and nothing more."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from kubeharness.core.events import ProviderEvent
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult


class Provider(Protocol):
    """Streams one model turn.

    Yields start, delta and end events; the last is a `CompletionEnd` with the whole message. A stream that ends
    without it is a dead try. Raises a `ProviderError` of the right kind for everything the wire does.
    """

    def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        """Start the turn."""
        ...


class ToolRuntime(Protocol):
    """Describes tools and runs calls."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """The tools that the model may call, in a stable order."""
        ...

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. What it raises becomes an error result."""
        ...
