"""How long the engine waits for the outside, and how it comes back to it."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from kubeharness.core.errors import KubeharnessError, Unavailable

T = TypeVar("T")

STORE_SECONDS = 10.0
"""After this a store that says nothing counts as unavailable."""

MAX_BACKOFF_SECONDS = 5.0


@asynccontextmanager
async def answering(seconds: float = STORE_SECONDS) -> AsyncIterator[None]:
    """Wait for the store, not for ever: raises Unavailable when the time is over."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable("the database does not answer in time") from None


def only(answers: Sequence[T | KubeharnessError]) -> T:
    """The one answer to a list of one; raises it if it is an error."""
    answer = answers[0]
    if isinstance(answer, KubeharnessError):
        raise answer
    return answer


def jittered(seconds: float, spread: float = 0.25) -> float:
    """About so many seconds, so that processes started together do not stay in step."""
    return seconds * random.uniform(1 - spread, 1 + spread)


def backoff(failures: int) -> float:
    """Seconds before the next try after so many failures in a row, with full jitter."""
    return random.uniform(0.05, min(MAX_BACKOFF_SECONDS, 0.1 * 2 ** min(failures, 10)))


class Trouble:
    """A trouble that one loop meets try after try: each reason is said once, until it is over."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self._said: set[str] = set()

    def met(self, error: Exception) -> None:
        """Another try failed."""
        reason = error.why if isinstance(error, Unavailable) else str(error)
        if reason not in self._said:
            self._said.add(reason)
            self._log.warning("%s: %s", self._what, reason)

    def over(self) -> None:
        """A try succeeded."""
        if self._said:
            self._said.clear()
            self._log.info("%s: works again", self._what)


class Alarm:
    """Rings once at a moment that is moved all the time; to move it later, or to clear it, costs nothing.

    A timer of its own for each wait would be the dearest part of sending a record to a thousand readers.
    """

    __slots__ = ("_at", "_loop", "_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at this moment of the loop's clock, and at no other."""
        self._at = at
        if self._timer is not None and at < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._fire)

    def clear(self) -> None:
        """Do not ring."""
        self._at = None

    def cancel(self) -> None:
        """Do not ring, and let go of the timer."""
        self._at = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._at is None:
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._fire)
            return
        self._at = None
        self._ring()
