"""How long the engine waits for the outside, and how it comes back to it."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
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
        raise Unavailable("the database did not answer in time") from None


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
