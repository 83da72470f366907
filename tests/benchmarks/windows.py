"""Windows of load: warm up, count over some seconds, let what is in flight finish, then believe only what adds up."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TypeVar

import asyncpg
import uvloop

from benchmarks.machine import CpuMeter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a case runs."""

    warm: float
    window: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one window gave."""

    settled: int
    seconds: float
    own: float
    """The part of all CPUs that we used in it: programs, database and load generator."""
    foreign: float
    """The part that others used in it."""
    void: tuple[str, ...] = ()
    """Why it may not be believed."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Settled a second."""
        return self.settled / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU time a lifecycle, of all that is ours: foreign load moves it less than the rate."""
        return self.own * (os.cpu_count() or 1) * self.seconds * 1000 / max(1, self.settled)


class Tally:
    """Lifecycles of a load that counts itself, and when it should begin no more."""

    def __init__(self) -> None:
        self.done = 0
        self.over = False


def run(work: Coroutine[None, None, T]) -> T:
    """Run on the event loop that gateways and workers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@dataclass(slots=True)
class Measure:
    """A stretch of time in which a counter is watched."""

    settled: int = 0
    seconds: float = 0.0
    own: float = 0.0
    foreign: float = 0.0

    def window(self, void: tuple[str, ...], **details: float) -> Window:
        """As a window."""
        return Window(
            settled=self.settled, seconds=self.seconds, own=self.own, foreign=self.foreign, void=void, details=details
        )


async def measured(seconds: float, count: Callable[[], Awaitable[int]]) -> Measure:
    """What is counted in so many seconds, with the CPU that it took."""
    found = Measure()
    with CpuMeter() as meter:
        before, started = await count(), time.perf_counter()
        await asyncio.sleep(seconds)
        found.settled, found.seconds = await count() - before, time.perf_counter() - started
    found.own, found.foreign = meter.own, meter.foreign
    return found


async def run_window(pace: Pace, lives: list[Callable[[Tally], Coroutine[None, None, None]]]) -> tuple[Tally, Measure]:
    """Run these closed loops through warm-up and window; what they did in it, after all of them have ended."""
    tally = Tally()

    async def done() -> int:
        return tally.done

    async with asyncio.timeout(60 + pace.warm + pace.window), asyncio.TaskGroup() as tasks:
        for life in lives:
            tasks.create_task(life(tally))
        await asyncio.sleep(pace.warm)
        found = await measured(pace.window, done)
        tally.over = True
    return tally, found


# Each gives how many rows contradict it.
CONTRADICTIONS = {
    "admitted and not settled": """
        SELECT count(*) FROM submission LEFT JOIN settlement ON settlement.submission = submission.id
         WHERE settlement.submission IS NULL
    """,
    "lanes at work": "SELECT count(*) FROM lane WHERE state <> 'idle'",
    "logs whose count is not their greatest seq": """
        SELECT count(*) FROM lane
          LEFT JOIN (SELECT conversation, count(*) AS n, max(seq) AS last FROM record GROUP BY conversation) AS log
                 ON log.conversation = lane.id
         WHERE log.n IS DISTINCT FROM log.last OR log.last IS DISTINCT FROM lane.last_seq
    """,
    "settlements out of the order of positions": """
        SELECT count(*) FROM (
            SELECT position, row_number() OVER by_seq AS nth, lag(position) OVER by_seq AS before
              FROM settlement WINDOW by_seq AS (PARTITION BY conversation ORDER BY seq)
        ) AS ordered WHERE position <> nth
    """,
    "claims out of the order of positions": """
        SELECT count(*) FROM (
            SELECT position, lag(position) OVER (PARTITION BY conversation ORDER BY claimed_at, position) AS before
              FROM attempt
        ) AS ordered WHERE before > position
    """,
    "submissions with other than one settled record": """
        SELECT count(*) FROM submission
          LEFT JOIN (SELECT conversation, count(*) AS n FROM record WHERE kind = 'submission_settled'
                      GROUP BY conversation) AS log ON log.conversation = submission.conversation
         WHERE submission.position = 1 AND log.n IS DISTINCT FROM
               (SELECT count(*) FROM submission AS all_of WHERE all_of.conversation = submission.conversation)
    """,
}


async def contradictions(url: str, *, answered: int) -> tuple[str, ...]:
    """Everything that does not add up in a database of ours. `answered` were told that they are settled."""
    found: list[str] = []
    connection = await asyncpg.connect(url)
    try:
        for name, query in CONTRADICTIONS.items():
            count = await connection.fetchval(query, timeout=60)
            if count:
                found.append(f"{count} {name}")
        settled = await connection.fetchval("SELECT count(*) FROM settlement")
        if settled != answered:
            found.append(f"{settled} settled, {answered} answered")
    finally:
        await connection.close()
    return tuple(found)
