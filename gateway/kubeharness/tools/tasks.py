"""Tasks that end with their block, for blocks that are also left by `aclose()` or by a foreign exception."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class OwnedTasks:
    """A TaskGroup for async generators: leaving cancels what still runs, and the block's exception stays bare.

    A plain TaskGroup wraps whatever leaves its block, GeneratorExit included, in an ExceptionGroup: closing a
    generator that holds one fails. The tasks started here must not raise.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it until it ends or the block is left."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> "OwnedTasks":
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._group.__aexit__(None, None, None)
