"""Tasks that run beside a block and end with it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these for as long as the block lasts. The block's own error leaves as it is, not in a group."""
    error: BaseException | None = None
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one) for one in work]
        try:
            yield
        except BaseException as raised:  # noqa: BLE001 - raised again below, once the tasks have ended
            error = raised
        for task in running:
            task.cancel()
    if error is not None:
        raise error
