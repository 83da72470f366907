"""The model/tool exchange: the whole agent, without storage, clock or network.

    loop = AgentLoop(provider)
    async for event in loop.run(AgentLoopContext([ProviderMessage("user", "hello")]), tools):
        ...

Each event is yielded before the step after it begins, so a consumer that awaits something durable between two
events (the engine's recorder) holds the loop back by just that.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from kubeharness.core.events import (
    AgentCompleted,
    AgentError,
    AgentEvent,
    CompletionEnd,
    InputRequired,
    MaxStepsReached,
    ToolCallEnd,
    ToolCallStart,
)
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolResult
from kubeharness.core.ports import Provider, ToolRuntime

BatchRunner = Callable[[ToolRuntime, Sequence[ToolCall]], AsyncIterator[ToolCallStart | ToolCallEnd]]
"""Runs the calls of one turn; yields each start before the call begins and each end as it finishes.

An end names the very call that it was given, and each call has one.
"""

Seam = Callable[[], Awaitable[Sequence[ProviderMessage]]]
"""Asked after a tool batch and before the run would stop: what was said to the run meanwhile (steering)."""


_Event = TypeVar("_Event")


@dataclass(slots=True)
class AgentLoopContext:
    """What a run starts from. `pending_calls` are calls of the last assistant message that still need a result."""

    provider_messages: list[ProviderMessage] = field(default_factory=list)
    max_steps: int = 32
    pending_calls: Sequence[ToolCall] = ()


async def sequentially(tools: ToolRuntime, calls: Sequence[ToolCall]) -> AsyncIterator[ToolCallStart | ToolCallEnd]:
    """The default batch runner: one call after the other, errors as results."""
    for call in calls:
        yield ToolCallStart(call)
        try:
            result = await tools.execute(call)
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is feedback for the model
            result = ToolResult(str(error), is_error=True)
        yield ToolCallEnd(call, result)


async def nothing_said() -> Sequence[ProviderMessage]:
    """The default seam: nobody steers."""
    return ()


class AgentLoop:
    """Turns of model and tools until the model is done, a budget ends, or something fails."""

    def __init__(self, provider: Provider, *, batch: BatchRunner = sequentially, seam: Seam = nothing_said) -> None:
        self._provider = provider
        self._batch = batch
        self._seam = seam

    async def run(self, context: AgentLoopContext, tools: ToolRuntime) -> AsyncIterator[AgentEvent]:
        """Yield what happens, ending with one of AgentCompleted, InputRequired, MaxStepsReached, AgentError."""
        messages = context.provider_messages
        calls = tuple(context.pending_calls)
        for step in range(context.max_steps + 1):
            if calls:
                results: dict[int, ToolResult] = {}  # by the call itself: providers give one id to two calls (C26)
                asked: ToolCallEnd | None = None
                async with _closed_after(self._batch(tools, calls)) as batch:
                    async for event in batch:
                        yield event
                        if isinstance(event, ToolCallEnd):
                            results[id(event.call)] = event.result
                            if event.result.requires_input:
                                asked = event
                messages.extend(tool_message(call, results[id(call)]) for call in calls)  # in call order (C34)
                if asked is not None:
                    yield InputRequired(asked.call, asked.result)
                    return
                messages.extend(await self._seam())
            if step == context.max_steps:
                break

            assistant: ProviderMessage | None = None
            try:
                async with _closed_after(self._provider.stream(messages, tools.definitions())) as turn:
                    async for turn_event in turn:
                        yield turn_event
                        if isinstance(turn_event, CompletionEnd):
                            assistant = turn_event.message
            except Exception as error:  # noqa: BLE001 - typed by the provider; the consumer decides what it means
                if assistant is None:  # what breaks after the whole message changes nothing (C35)
                    yield AgentError(str(error), error)
                    return
            if assistant is None:
                yield AgentError("Provider ended without a complete message.")
                return

            messages.append(assistant)
            calls = assistant.tool_calls
            if not calls:
                said = await self._seam()
                if not said:
                    yield AgentCompleted(assistant)
                    return
                messages.extend(said)
        yield MaxStepsReached()


@asynccontextmanager
async def _closed_after(events: AsyncIterator[_Event]) -> AsyncIterator[AsyncIterator[_Event]]:
    """Whoever leaves the loop ends its tools and its model call now, not when the collector finds them."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def tool_message(call: ToolCall, result: ToolResult) -> ProviderMessage:
    """The return trip: a result, paired with its call."""
    return ProviderMessage(
        role="tool",
        content=f"{'error' if result.is_error else 'success'}: {result.content}",
        tool_call_id=call.id,
        image_data_urls=(result.image_data_url,) if result.image_data_url else (),
    )
