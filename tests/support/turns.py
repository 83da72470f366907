"""Run one model turn and look at it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kubeharness.core.events import CompletionDelta, CompletionEnd, ProviderEvent, ReasoningDelta
from kubeharness.core.messages import ProviderMessage, ToolDefinition
from kubeharness.core.ports import Provider


@dataclass(frozen=True)
class Turn:
    """The events of a turn."""

    events: tuple[ProviderEvent, ...]

    @property
    def message(self) -> ProviderMessage:
        """The whole answer; it is the last event."""
        end = self.events[-1]
        assert isinstance(end, CompletionEnd), f"the turn has no end: {self.events}"
        return end.message

    @property
    def deltas(self) -> list[str]:
        """The fragments of visible text."""
        return [event.text for event in self.events if isinstance(event, CompletionDelta)]

    @property
    def reasoning(self) -> str:
        """The fragments of reasoning, joined."""
        return "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))


async def turn_of(
    provider: Provider, messages: Sequence[ProviderMessage] | str, tools: Sequence[ToolDefinition] = ()
) -> Turn:
    """All events of one turn, within ten seconds."""
    if isinstance(messages, str):
        messages = [ProviderMessage(role="user", content=messages)]
    async with asyncio.timeout(10):
        return Turn(tuple([event async for event in provider.stream(messages, tools)]))
