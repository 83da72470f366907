"""The work queue: level-triggered, deduplicating, with a back-off for each key. Knows keys, not what they mean."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 30.0

log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Keys that want to be looked at; each waits at most once and is in the hands of at most one worker.

    A key added while it is worked on is worked on once more afterwards, so no change is missed. A key whose
    work failed comes back after 0.1, 0.2, 0.4 … 30 s, or at once if it is added before that.
    """

    def __init__(
        self,
        *,
        first_delay: float = FIRST_DELAY_SECONDS,
        longest_delay: float = LONGEST_DELAY_SECONDS,
        expected: tuple[type[Exception], ...] = (),
    ) -> None:
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._expected = expected
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self.worked = 0
        """How often work on a key ended, well or not."""
        self.failed = 0
        """How often it ended badly."""

    def __len__(self) -> int:
        """Keys that wait or are worked on; those that come back later are not counted."""
        return len(self._waiting) + len(self._running)

    @property
    def settled(self) -> bool:
        """Nothing waits, nothing is worked on, nothing failed last time: what has been seen is dealt with."""
        return not self._waiting and not self._running and not self._failures

    def add(self, key: K) -> None:
        """Have the key looked at as soon as a worker is free."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Have the key looked at in a while, unless it is looked at before."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self.add, key)

    async def run(self, work: Callable[[K], Awaitable[None]], *, workers: int = 16) -> None:
        """Work on keys until cancelled; an exception of `work` delays its key and stops nothing else (I14)."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(workers):
                tasks.create_task(self._worker(work), name=f"queue worker {number}")

    async def _worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._running.add(key)
            try:
                await self._work(work, key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)

    async def _work(self, work: Callable[[K], Awaitable[None]], key: K) -> None:
        self.worked += 1
        try:
            await work(key)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: kopf ends every task born while it ran, and one that we waited for was such.
            self._failed(key, "was interrupted")
        except self._expected as error:
            self._failed(key, str(error))
        except Exception:  # one bad object must not stop the others (I14)
            log.exception("work on %s failed", key)
            self._failed(key, "failed")
        else:
            self._failures.pop(key, None)

    def _failed(self, key: K, why: str) -> None:
        self.failed += 1
        times = self._failures[key] = self._failures.get(key, 0) + 1
        delay: float = min(self._longest_delay, self._first_delay * 2 ** min(times - 1, 32))
        log.info("%s comes back in %.1f s: %s", key, delay, why)
        self.add_after(key, delay)
