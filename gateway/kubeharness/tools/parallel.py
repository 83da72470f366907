"""The batch runner of a turn: calls run together, bounded; tools marked sequential one at a time.

A call begins only after its ToolCallStart was taken, so a consumer that records the start durably between two
events knows that nothing runs unrecorded (I9). Ends come as they come.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from kubeharness.core.events import ToolCallEnd, ToolCallStart
from kubeharness.core.loop import BatchRunner
from kubeharness.core.messages import ToolCall, ToolResult
from kubeharness.core.ports import ToolRuntime
from kubeharness.core.records import OutcomeCause
from kubeharness.tools.tasks import OwnedTasks

LIMIT = 8

Sequential = Callable[[str], bool]
"""Whether the tool of this name must not run beside another such."""


def parallel(limit: int = LIMIT, sequential: Sequential | None = None) -> BatchRunner:
    """A batch runner for the loop. `sequential` defaults to the runtime's own `policy`, if it has one."""

    async def run(tools: ToolRuntime, calls: Sequence[ToolCall]) -> AsyncIterator[ToolCallStart | ToolCallEnd]:
        alone = sequential or _policy_of(tools)
        waiting = list(calls)
        running: list[ToolCall] = []
        ended: asyncio.Queue[ToolCallEnd] = asyncio.Queue()

        async def work(call: ToolCall) -> None:
            ended.put_nowait(ToolCallEnd(call, await _result(tools, call)))

        async with OwnedTasks() as tasks:
            while waiting or running:
                for call in startable(waiting, running, alone, limit):
                    yield ToolCallStart(call)
                    waiting.remove(call)
                    running.append(call)
                    tasks.start(work(call))
                end = await ended.get()
                running.remove(end.call)
                yield end

    return run


def startable(
    waiting: Sequence[ToolCall], running: Sequence[ToolCall], sequential: Sequential, limit: int = LIMIT
) -> list[ToolCall]:
    """Those of the waiting calls that start now, in the model's order. Pure: the engine's ledger asks it too."""
    room = limit - len(running)
    busy = any(sequential(call.name) for call in running)
    found: list[ToolCall] = []
    for call in waiting:
        if len(found) >= room:
            break
        if sequential(call.name):
            if busy:
                continue
            busy = True
        found.append(call)
    return found


async def _result(tools: ToolRuntime, call: ToolCall) -> ToolResult:
    task = asyncio.current_task()
    try:
        return await tools.execute(call)
    except asyncio.CancelledError:
        if task is None or task.cancelling():
            raise
        # nobody cancelled us: a library inside the tool gave up its own scope
        return ToolResult("the tool gave up", is_error=True, cause=OutcomeCause.CANCELLED.value)
    except Exception as error:  # noqa: BLE001  whatever a tool raises is feedback for the model
        return ToolResult(f"{type(error).__name__}: {error}", is_error=True)


def _policy_of(tools: ToolRuntime) -> Sequential:
    policy = getattr(tools, "policy", None)
    return (lambda name: bool(policy(name)[1])) if callable(policy) else lambda name: False
