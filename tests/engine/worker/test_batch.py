"""The batch runner: together, bounded, in order where asked, started durably, and gone when its consumer goes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core.events import ToolCallEnd, ToolCallStart
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult
from kubeharness.engine import batch as batches
from kubeharness.engine.batch import PARALLEL_CALLS, ParallelBatch, starts_at_once
from kubeharness.providers.scripted import ScriptedProvider
from support.properties import patient


class Bench:
    """Tools that note when they run: `slow` needs a while, `alone` is sequential, `never` does not end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.log: list[str] = []
        self.cancelled: list[str] = []
        self.let_go = asyncio.Event()

    def definitions(self) -> Sequence[ToolDefinition]:
        return ()

    async def execute(self, call: ToolCall) -> ToolResult:
        self.running.append(call.id)
        self.log.append(f"run {call.id}")
        self.most = max(self.most, len(self.running))
        try:
            match call.name:
                case "never":
                    await asyncio.sleep(60)
                case "breaks":
                    raise ValueError("broken")
                case "leaves":
                    raise SystemExit(1)
                case "gives-up":
                    raise asyncio.CancelledError
                case "tidies":
                    try:
                        await asyncio.sleep(60)
                    finally:
                        await asyncio.sleep(0.05)
                        self.log.append(f"tidied {call.id}")
                case "stubborn":
                    await self._ignoring()
                case _:
                    await asyncio.sleep(float(str(call.arguments.get("seconds", 0.02))))
        except asyncio.CancelledError:
            self.cancelled.append(call.id)
            raise
        finally:
            self.running.remove(call.id)
            self.log.append(f"end {call.id}")
        return ToolResult(f"{call.id} ok")

    async def _ignoring(self) -> None:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                pass


def calls(*names: str, seconds: Sequence[float] = ()) -> list[ToolCall]:
    waits = [*seconds, *[0.02] * len(names)]
    return [ToolCall(f"c{n}", name, {"seconds": waits[n]}) for n, name in enumerate(names)]


def alone(name: str) -> bool:
    return name == "alone"


def a_batch(tasks: asyncio.TaskGroup, bench: Bench, begun: Sequence[ToolCall]) -> ParallelBatch:
    """A batch whose ledger says that what starts at once has started."""
    at_once = starts_at_once(begun, sequential=alone)

    async def begin(call: ToolCall) -> None:
        bench.log.append(f"begin {call.id}")
        await asyncio.sleep(0)

    return ParallelBatch(tasks, begin=begin, started=lambda call: call.id in at_once, sequential=alone)


@asynccontextmanager
async def running(bench: Bench, wanted: Sequence[ToolCall]) -> AsyncIterator[AsyncIterator[Any]]:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        events = a_batch(tasks, bench, wanted)(bench, wanted)
        async with aclosing(events):  # type: ignore[type-var]  # a generator
            yield events


async def ran(bench: Bench, wanted: Sequence[ToolCall]) -> list[Any]:
    async with running(bench, wanted) as events:
        return [event async for event in events]


async def test_calls_run_together_and_end_as_they_end() -> None:
    bench = Bench()
    events = await ran(bench, calls("slow", "slow", "slow", seconds=[0.15, 0.1, 0.05]))

    assert [type(event) for event in events] == [ToolCallStart] * 3 + [ToolCallEnd] * 3
    assert [event.call.id for event in events] == ["c0", "c1", "c2", "c2", "c1", "c0"]
    assert events[3].result == ToolResult("c2 ok")
    assert bench.most == 3


async def test_no_more_than_the_bound_run_at_once_and_those_over_it_begin_before_they_run() -> None:
    bench = Bench()
    events = await ran(bench, calls(*["slow"] * (PARALLEL_CALLS + 3)))

    over = [f"c{PARALLEL_CALLS + n}" for n in range(3)]
    assert bench.most == PARALLEL_CALLS
    assert [e.call.id for e in events if isinstance(e, ToolCallStart)][-3:] == over
    assert [entry for entry in bench.log if entry.startswith("begin")] == [f"begin {call}" for call in over]
    assert all(bench.log.index(f"begin {call}") < bench.log.index(f"run {call}") for call in over)


async def test_sequential_tools_run_one_at_a_time_in_the_models_order() -> None:
    bench = Bench()
    await ran(bench, calls("alone", "slow", "alone", "slow", "alone"))

    log = [entry for entry in bench.log if entry.split()[1] in ("c0", "c2", "c4")]
    assert log == ["run c0", "end c0", "begin c2", "run c2", "end c2", "begin c4", "run c4", "end c4"]
    assert bench.most == 3


async def test_an_error_is_a_result_and_hurts_no_other() -> None:
    events = await ran(Bench(), calls("breaks", "slow", "gives-up", "leaves"))

    results = {event.call.id: event.result for event in events if isinstance(event, ToolCallEnd)}
    assert results["c0"] == ToolResult("ValueError: broken", is_error=True)
    assert results["c1"] == ToolResult("c1 ok")
    assert (results["c2"].is_error, results["c2"].cause) == (True, "cancelled")
    assert results["c3"] == ToolResult("SystemExit: 1", is_error=True)


async def test_what_keeps_a_call_from_beginning_comes_out_bare_and_stops_the_others() -> None:
    bench = Bench()

    async def refuses(call: ToolCall) -> None:
        raise KeyError(call.id)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        batch = ParallelBatch(tasks, begin=refuses, started=lambda call: call.id == "c0", sequential=alone)
        with pytest.raises(KeyError):
            [event async for event in batch(bench, calls("never", "slow"))]

    assert bench.cancelled == ["c0"]


async def test_closing_the_iterator_stops_what_still_runs_and_waits_until_it_has() -> None:
    bench = Bench()
    async with running(bench, calls("slow", "never", "tidies")) as events:
        async for event in events:
            if isinstance(event, ToolCallEnd):
                break
        await events.aclose()  # type: ignore[attr-defined]  # a generator

        assert sorted(bench.cancelled) == ["c1", "c2"]
        assert bench.running == []
        assert "tidied c2" in bench.log


async def test_one_that_ignores_its_cancel_is_left_to_the_task_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "CLOSE_SECONDS", 0.05)
    bench = Bench()
    async with running(bench, calls("slow", "stubborn")) as events:
        async for event in events:
            if isinstance(event, ToolCallEnd):
                break
        await events.aclose()  # type: ignore[attr-defined]  # a generator
        still = list(bench.running)
        bench.let_go.set()

    assert still == ["c1"]
    assert bench.running == []


async def test_cancelling_the_consumer_stops_what_still_runs() -> None:
    bench = Bench()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await ran(bench, calls("never", "never"))

    assert sorted(bench.cancelled) == ["c0", "c1"]
    assert bench.running == []


async def test_a_loop_that_is_left_takes_its_tools_with_it() -> None:
    bench = Bench()
    spec: Any = {"rules": [{"steps": [{"toolCall": {"name": "never"}}, {"toolCall": {"name": "slow"}}]}]}
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        batch = ParallelBatch(tasks, begin=_nothing, started=lambda call: True, sequential=alone)
        loop = AgentLoop(ScriptedProvider(spec, "m"), batch=batch)
        context = AgentLoopContext([ProviderMessage("user", "go")])
        async with aclosing(loop.run(context, bench)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ToolCallEnd):
                    break

        assert bench.cancelled == ["call_1"]


async def _nothing(call: ToolCall) -> None:
    pass


async def test_results_reach_the_model_in_call_order_c34() -> None:
    spec: Any = {
        "rules": [
            {
                "when": {"turn": 1},
                "steps": [{"toolCall": {"name": "slow", "arguments": {"seconds": s}}} for s in (0.1, 0.01)],
            },
            {"steps": [{"text": "{{tool}}"}]},
        ]
    }
    context = AgentLoopContext([ProviderMessage("user", "go")])
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        batch = ParallelBatch(tasks, begin=_nothing, started=lambda call: True, sequential=alone)
        events = [e async for e in AgentLoop(ScriptedProvider(spec, "m"), batch=batch).run(context, Bench())]

    assert [e.call.id for e in events if isinstance(e, ToolCallEnd)] == ["call_2", "call_1"]
    assert [m.tool_call_id for m in context.provider_messages if m.role == "tool"] == ["call_1", "call_2"]


@given(st.lists(st.sampled_from(["slow", "alone"]), max_size=20))
@patient
def test_what_starts_at_once_fills_the_bound_and_never_doubles_a_sequential_one(names: list[str]) -> None:
    wanted = calls(*names)
    found = starts_at_once(wanted, sequential=alone)

    started = [call for call in wanted if call.id in found]
    sequential = min(1, names.count("alone"))
    assert sum(call.name == "alone" for call in started) <= 1
    assert len(started) == min(PARALLEL_CALLS, names.count("slow") + sequential)
    if wanted:
        assert wanted[0].id in found
