"""The batch runner: together, bounded, in order where asked, and gone when its consumer goes."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core.events import ToolCallEnd, ToolCallStart
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult
from kubeharness.providers.scripted import ScriptedProvider
from kubeharness.tools.parallel import parallel, startable
from support.properties import patient


class Bench:
    """Tools that note when they run: `slow` needs a while, `alone` is sequential, `never` does not end."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.log: list[str] = []
        self.cancelled: list[str] = []

    def definitions(self) -> Sequence[ToolDefinition]:
        return ()

    def policy(self, name: str) -> tuple[bool, bool]:
        return False, name == "alone"

    async def execute(self, call: ToolCall) -> ToolResult:
        self.running.append(call.id)
        self.log.append(f"begin {call.id}")
        self.most = max(self.most, len(self.running))
        try:
            match call.name:
                case "never":
                    await asyncio.sleep(60)
                case "breaks":
                    raise ValueError("broken")
                case "gives-up":
                    raise asyncio.CancelledError
                case _:
                    await asyncio.sleep(float(str(call.arguments.get("seconds", 0.02))))
        except asyncio.CancelledError:
            self.cancelled.append(call.id)
            raise
        finally:
            self.running.remove(call.id)
            self.log.append(f"end {call.id}")
        return ToolResult(f"{call.id} ok")


def calls(*names: str, seconds: Sequence[float] = ()) -> list[ToolCall]:
    waits = [*seconds, *[0.02] * len(names)]
    return [ToolCall(f"c{n}", name, {"seconds": waits[n]}) for n, name in enumerate(names)]


async def ran(bench: Bench, batch: Sequence[ToolCall], limit: int = 8) -> list[Any]:
    async with asyncio.timeout(10):
        return [event async for event in parallel(limit)(bench, batch)]


async def test_calls_run_together_and_end_as_they_end() -> None:
    bench = Bench()
    events = await ran(bench, calls("slow", "slow", "slow", seconds=[0.15, 0.1, 0.05]))

    assert [type(event) for event in events] == [ToolCallStart] * 3 + [ToolCallEnd] * 3
    assert [event.call.id for event in events] == ["c0", "c1", "c2", "c2", "c1", "c0"]
    assert events[3].result == ToolResult("c2 ok")
    assert bench.most == 3


async def test_no_more_than_the_limit_run_at_once() -> None:
    bench = Bench()
    events = await ran(bench, calls(*["slow"] * 9), limit=3)

    assert bench.most == 3
    assert len(events) == 18
    assert [event.call.id for event in events if isinstance(event, ToolCallStart)] == [f"c{n}" for n in range(9)]


async def test_sequential_tools_run_one_at_a_time_in_the_models_order() -> None:
    bench = Bench()
    await ran(bench, calls("alone", "slow", "alone", "slow", "alone"))

    alone = [entry for entry in bench.log if entry.split()[1] in ("c0", "c2", "c4")]
    assert alone == [f"{what} {call}" for call in ("c0", "c2", "c4") for what in ("begin", "end")]
    assert bench.most == 3


async def test_a_call_begins_only_after_its_start_was_taken() -> None:
    bench = Bench()
    async with aclosing(parallel()(bench, calls("slow", "slow"))) as events:  # type: ignore[type-var]  # a generator
        first = await anext(events)
        await asyncio.sleep(0.05)

        assert first == ToolCallStart(calls("slow")[0])
        assert bench.log == []


async def test_an_error_is_a_result_and_hurts_no_other() -> None:
    events = await ran(Bench(), calls("breaks", "slow", "gives-up"))

    results = {event.call.id: event.result for event in events if isinstance(event, ToolCallEnd)}
    assert results["c0"] == ToolResult("ValueError: broken", is_error=True)
    assert results["c1"] == ToolResult("c1 ok")
    assert (results["c2"].is_error, results["c2"].cause) == (True, "cancelled")


async def test_closing_the_iterator_stops_what_still_runs() -> None:
    bench = Bench()
    async with asyncio.timeout(5):
        async with aclosing(parallel()(bench, calls("slow", "never", "never"))) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ToolCallEnd):
                    break

        assert sorted(bench.cancelled) == ["c1", "c2"]
        assert bench.running == []


async def test_cancelling_the_consumer_stops_what_still_runs() -> None:
    bench = Bench()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await ran(bench, calls("never", "never"))

    assert sorted(bench.cancelled) == ["c0", "c1"]
    assert bench.running == []


async def test_an_exception_in_the_consumer_goes_out_bare() -> None:
    bench = Bench()

    async def consume() -> None:
        async with aclosing(parallel()(bench, calls("slow", "never"))) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ToolCallEnd):
                    raise KeyError("mine")

    with pytest.raises(KeyError):
        await consume()
    assert bench.cancelled == ["c1"]


async def test_a_loop_that_is_left_takes_its_tools_with_it() -> None:
    bench = Bench()
    spec: Any = {"rules": [{"steps": [{"toolCall": {"name": "never"}}, {"toolCall": {"name": "slow"}}]}]}
    loop = AgentLoop(ScriptedProvider(spec, "m"), batch=parallel())
    context = AgentLoopContext([ProviderMessage("user", "go")])
    async with asyncio.timeout(5):
        async with aclosing(loop.run(context, bench)) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, ToolCallEnd):
                    break

        assert bench.cancelled == ["call_1"]


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
    events = [e async for e in AgentLoop(ScriptedProvider(spec, "m"), batch=parallel()).run(context, Bench())]

    assert [e.call.id for e in events if isinstance(e, ToolCallEnd)] == ["call_2", "call_1"]
    assert [m.tool_call_id for m in context.provider_messages if m.role == "tool"] == ["call_1", "call_2"]


@given(
    st.lists(st.sampled_from(["slow", "alone"]), max_size=12),
    st.lists(st.sampled_from(["slow", "alone"]), max_size=3),
    st.integers(1, 5),
)
@patient
def test_what_may_start_fills_the_room_and_never_doubles_a_sequential_one(
    waiting: list[str], running: list[str], limit: int
) -> None:
    found = startable(calls(*waiting), calls(*running), lambda name: name == "alone", limit)

    names = [call.name for call in found]
    assert len(found) <= max(0, limit - len(running))
    assert names.count("alone") + running.count("alone") <= max(1, running.count("alone"))
    if "alone" in waiting and "alone" not in running and len(running) < limit:
        assert found
    order = [call.id for call in calls(*waiting) if call in found]
    assert [call.id for call in found] == order
