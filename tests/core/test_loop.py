"""The loop alone: turns, tools, errors as feedback, its two seams, its ends."""

import contextlib
import io
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kubeharness.core.events import (
    AgentCompleted,
    AgentError,
    AgentEvent,
    CompletionDelta,
    CompletionEnd,
    InputRequired,
    MaxStepsReached,
    ProviderEvent,
    ToolCallEnd,
    ToolCallStart,
)
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult
from kubeharness.core.ports import ToolRuntime

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "core-loop.md"


class Script:
    """Plays prepared messages, one a turn, and keeps what it was asked."""

    def __init__(self, *turns: ProviderMessage | Exception | None) -> None:
        self._turns = list(turns)
        self.asked: list[list[ProviderMessage]] = []

    async def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        self.asked.append(list(messages))
        turn = self._turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        yield CompletionDelta("…")
        if turn is not None:
            yield CompletionEnd(turn, 1)


class Tools:
    """Answers a call with its name; `fail` raises, `ask` needs a person."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def definitions(self) -> Sequence[ToolDefinition]:
        return [ToolDefinition("echo", "says it again", {"type": "object"})]

    async def execute(self, call: ToolCall) -> ToolResult:
        self.ran.append(call.id)
        if call.name == "fail":
            raise ValueError("broken")
        return ToolResult(call.name, requires_input=call.name == "ask")


def said(text: str = "", *calls: ToolCall) -> ProviderMessage:
    """An assistant's message."""
    return ProviderMessage("assistant", text, tool_calls=calls)


def user(text: str) -> ProviderMessage:
    """A person's message."""
    return ProviderMessage("user", text)


async def events_of(loop: AgentLoop, context: AgentLoopContext, tools: ToolRuntime) -> list[AgentEvent]:
    """All events of a run."""
    return [event async for event in loop.run(context, tools)]


async def test_an_answer_without_calls_completes_the_run() -> None:
    script = Script(said("Hi."))

    events = await events_of(AgentLoop(script), AgentLoopContext([user("hello")]), Tools())

    assert events[-1] == AgentCompleted(said("Hi."))
    assert script.asked == [[user("hello")]]


async def test_results_go_back_paired_with_their_calls_and_errors_are_feedback() -> None:
    script = Script(said("", ToolCall("1", "echo"), ToolCall("2", "fail")), said("Done."))

    events = await events_of(AgentLoop(script), AgentLoopContext([user("go")]), Tools())

    assert [type(e) for e in events if isinstance(e, ToolCallStart | ToolCallEnd)] == [
        ToolCallStart,
        ToolCallEnd,
        ToolCallStart,
        ToolCallEnd,
    ]
    assert [(m.tool_call_id, m.content) for m in script.asked[1] if m.role == "tool"] == [
        ("1", "success: echo"),
        ("2", "error: broken"),
    ]
    assert isinstance(events[-1], AgentCompleted)


async def test_a_batch_runner_may_finish_in_any_order_and_results_stand_in_call_order_c34() -> None:
    async def backwards(tools: ToolRuntime, calls: Sequence[ToolCall]) -> AsyncIterator[ToolCallStart | ToolCallEnd]:
        for call in reversed(calls):
            yield ToolCallStart(call)
            yield ToolCallEnd(call, await tools.execute(call))

    script = Script(said("", ToolCall("1", "a"), ToolCall("2", "b"), ToolCall("3", "c")), said("Done."))
    tools = Tools()

    await events_of(AgentLoop(script, batch=backwards), AgentLoopContext([user("go")]), tools)

    assert tools.ran == ["3", "2", "1"]
    assert [m.tool_call_id for m in script.asked[1] if m.role == "tool"] == ["1", "2", "3"]


async def test_what_is_said_at_a_seam_is_in_the_next_request_and_holds_the_end_back() -> None:
    waiting = [[user("after the batch")], [user("before the end")], []]

    async def seam() -> Sequence[ProviderMessage]:
        return waiting.pop(0)

    script = Script(said("", ToolCall("1", "echo")), said("One."), said("Two."))

    events = await events_of(AgentLoop(script, seam=seam), AgentLoopContext([user("go")]), Tools())

    assert script.asked[1][-1] == user("after the batch")
    assert script.asked[2][-1] == user("before the end")
    assert events[-1] == AgentCompleted(said("Two."))
    assert len([e for e in events if isinstance(e, AgentCompleted)]) == 1


async def test_pending_calls_are_run_before_the_model_is_asked() -> None:
    call = ToolCall("1", "echo")
    script = Script(said("Done."))
    context = AgentLoopContext([user("go"), said("", call)], pending_calls=[call])

    events = await events_of(AgentLoop(script), context, Tools())

    assert isinstance(events[0], ToolCallStart)
    assert [m.role for m in script.asked[0]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_the_step_budget_bounds_model_turns_and_the_last_batch_still_runs(steps: int) -> None:
    script = Script(*(said("", ToolCall(str(n), "echo")) for n in range(9)))
    tools = Tools()

    events = await events_of(AgentLoop(script), AgentLoopContext([user("go")], max_steps=steps), tools)

    assert events[-1] == MaxStepsReached()
    assert len(script.asked) == steps
    assert len(tools.ran) == steps


async def test_a_tool_that_needs_a_person_ends_the_run_with_its_question() -> None:
    script = Script(said("", ToolCall("1", "ask"), ToolCall("2", "echo")))

    events = await events_of(AgentLoop(script), AgentLoopContext([user("go")]), Tools())

    assert isinstance(events[-1], InputRequired)
    assert events[-1].call.id == "1"


async def test_a_provider_that_raises_ends_the_run_with_its_error() -> None:
    error = RuntimeError("down")

    events = await events_of(AgentLoop(Script(error)), AgentLoopContext([user("go")]), Tools())

    assert events == [AgentError("down", error)]


async def test_a_stream_without_an_end_is_an_error_and_its_message_is_not_context() -> None:
    context = AgentLoopContext([user("go")])

    events = await events_of(AgentLoop(Script(None)), context, Tools())

    assert events[-1] == AgentError("Provider ended without a complete message.")
    assert context.provider_messages == [user("go")]


async def test_what_breaks_after_the_whole_message_changes_nothing_c35() -> None:
    class Breaks(Script):
        async def stream(
            self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
        ) -> AsyncIterator[ProviderEvent]:
            async for event in super().stream(messages, tools):
                yield event
            raise RuntimeError("closed in the middle of the last frame")

    script = Breaks(said("", ToolCall("1", "echo")), said("Done."))

    events = await events_of(AgentLoop(script), AgentLoopContext([user("go")]), Tools())

    assert events[-1] == AgentCompleted(said("Done."))
    assert len(script.asked) == 2


async def test_two_calls_under_one_id_keep_their_own_results_c26() -> None:
    calls = [ToolCall("1", "a"), ToolCall("1", "b")]

    class Named(Tools):
        async def execute(self, call: ToolCall) -> ToolResult:
            return ToolResult(call.name)

    script = Script(said("", *calls), said("Done."))

    await events_of(AgentLoop(script), AgentLoopContext([user("go")]), Named())

    assert [m.content for m in script.asked[1] if m.role == "tool"] == ["success: a", "success: b"]


async def test_nothing_begins_before_its_consumer_took_the_event_before() -> None:
    tools = Tools()
    loop = AgentLoop(Script(said("", ToolCall("1", "echo")), said("Done.")))

    async for event in loop.run(AgentLoopContext([user("go")]), tools):
        if isinstance(event, CompletionEnd) and event.message.tool_calls:
            assert tools.ran == []


def test_the_tutorials_ten_lines_run_as_printed() -> None:
    [code] = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    out = io.StringIO()

    with contextlib.redirect_stdout(out):
        exec(compile(code, str(TUTORIAL), "exec"), {"__name__": "tutorial"})

    assert "It is twelve o'clock." in out.getvalue()
    assert "AgentCompleted" in out.getvalue().splitlines()[-1]
