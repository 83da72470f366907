"""Runs the calls of one turn in parallel, bounded, each made durable as started before it runs (I9)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from kubeharness.core.events import ToolCallEnd, ToolCallStart
from kubeharness.core.messages import ToolCall, ToolResult
from kubeharness.core.ports import ToolRuntime
from kubeharness.core.records import OutcomeCause

PARALLEL_CALLS = 8
CLOSE_SECONDS = 2.0
"""How long a closed batch waits for its cancelled tools; the attempt's task group owns what needs longer."""

Begin = Callable[[ToolCall], Awaitable[None]]
"""Awaited before a call that had to wait runs: its ledger row becomes started."""

Around = Callable[[ToolCall, Callable[[], Awaitable[None]]], Awaitable[None]]
"""The interceptors of a call. What they raise fails the attempt; one that does not go on blocks the call."""


async def _bare(_: ToolCall, run: Callable[[], Awaitable[None]]) -> None:
    await run()


def starts_at_once(calls: Sequence[ToolCall], *, sequential: Callable[[str], bool]) -> set[str]:
    """The ids of the calls that need not wait: the first of the bound, and of the sequential ones only the first."""
    at_once: set[str] = set()
    one_sequential = False
    for call in calls:
        if len(at_once) == PARALLEL_CALLS:
            break
        if sequential(call.name):
            if one_sequential:
                continue
            one_sequential = True
        at_once.add(call.id)
    return at_once


class ParallelBatch:
    """A `loop.BatchRunner` whose calls run as tasks of the attempt's own task group.

    The tasks never raise: what a tool does is its result, and what `begin` raises comes out of the iterator.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        *,
        begin: Begin,
        started: Callable[[ToolCall], bool],
        sequential: Callable[[str], bool],
        around: Around = _bare,
    ) -> None:
        self._tasks = tasks
        self._begin = begin
        self._started = started
        self._sequential = sequential
        self._around = around

    async def __call__(
        self, tools: ToolRuntime, calls: Sequence[ToolCall]
    ) -> AsyncIterator[ToolCallStart | ToolCallEnd]:
        """Yield each start and each end as it comes. Closing the iterator stops what still runs."""
        events: asyncio.Queue[ToolCallStart | ToolCallEnd | Exception] = asyncio.Queue()
        slots = asyncio.Semaphore(PARALLEL_CALLS)
        alone = asyncio.Lock()

        async def one(call: ToolCall) -> None:
            try:
                if self._sequential(call.name):
                    async with alone, slots:
                        await run(call)
                else:
                    async with slots:
                        await run(call)
            except Exception as error:  # noqa: BLE001 - raised again where the batch is read
                events.put_nowait(error)

        async def run(call: ToolCall) -> None:
            if not self._started(call):
                await self._begin(call)
            events.put_nowait(ToolCallStart(call))
            result = ToolResult("blocked, was not run", is_error=True, cause=OutcomeCause.BLOCKED.value)

            async def execute() -> None:
                nonlocal result
                result = await _result(tools, call)

            await self._around(call, execute)
            events.put_nowait(ToolCallEnd(call, result))

        running = [self._tasks.create_task(one(call), name=f"tool {call.name} {call.id}") for call in calls]
        try:
            left = len(calls)
            while left:
                event = await events.get()
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, ToolCallEnd):
                    left -= 1
                yield event
        finally:
            for task in running:
                task.cancel()
            if still := [task for task in running if not task.done()]:
                await asyncio.wait(still, timeout=CLOSE_SECONDS)  # one that ignores it must not hold the others up


async def _result(tools: ToolRuntime, call: ToolCall) -> ToolResult:
    task = asyncio.current_task()
    try:
        return await tools.execute(call)
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise
        # nobody cancelled us: a library inside the tool gave up its own scope
        return ToolResult("the tool gave up", is_error=True, cause=OutcomeCause.CANCELLED.value)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is feedback for the model
        return ToolResult(f"{type(error).__name__}: {error}", is_error=True)
