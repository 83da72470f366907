"""Hints that something was committed (I1). Losing one costs one poll, never more."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import ConversationId


class LocalWaker:
    """A waker within one process: hints reach their listeners before `touched` returns.

    Listeners are called on the caller's thread and must return at once.
    """

    def __init__(self) -> None:
        self._work: dict[object, Callable[[], None]] = {}
        self._log: dict[object, Callable[[Sequence[ConversationId] | None], None]] = {}

    def touched(self, conversations: Sequence[ConversationId], *, work: bool) -> None:
        """Say that these logs grew and, if `work`, that a lane may be ready or a head was published."""
        if conversations:
            self._dirty(conversations)
        if work:
            self._rouse()

    def everything(self) -> None:
        """Say that anything may have changed."""
        self._dirty(None)
        self._rouse()

    def _dirty(self, conversations: Sequence[ConversationId] | None) -> None:
        for dirty in tuple(self._log.values()):
            dirty(conversations)

    def _rouse(self) -> None:
        for rouse in tuple(self._work.values()):
            rouse()

    def on_work(self, rouse: Callable[[], None]) -> Callable[[], None]:
        """Call `rouse` at each hint of work; returns what ends it."""
        key = object()
        self._work[key] = rouse
        return lambda: self._end(self._work, key)

    def on_log(self, dirty: Callable[[Sequence[ConversationId] | None], None]) -> Callable[[], None]:
        """Call `dirty` with the logs that grew; None means all. Returns what ends it."""
        key = object()
        self._log[key] = dirty
        return lambda: self._end(self._log, key)

    @staticmethod
    def _end(listeners: dict[object, Callable[..., None]], key: object) -> None:
        listeners.pop(key, None)


class PollingWaker(LocalWaker):
    """A waker that also notices what other processes committed to the same SQLite file.

    While anybody listens, `foreign_commits` (SQLite's `PRAGMA data_version`, a read of a few microseconds from the
    mapped index of the log) is asked every 50 ms; a changed answer means that anything may have changed. 50 ms keeps a
    second process's readers well under the second that a poll would cost them, at some 20 such reads a second.
    """

    def __init__(self, foreign_commits: Callable[[], Awaitable[int]], *, interval_seconds: float = 0.05) -> None:
        super().__init__()
        self._foreign_commits = foreign_commits
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Poll until cancelled; the caller's task group owns this."""
        seen: int | None = None
        while True:
            if self._work or self._log:
                seen = await self._poll(seen)
            await asyncio.sleep(self._interval_seconds)

    async def _poll(self, seen: int | None) -> int | None:
        try:
            version = await self._foreign_commits()
        except Unavailable:
            return None  # and whoever listens has a poll of its own
        if version != seen:  # the first answer too: what came before it was not seen
            self.everything()
        return version
