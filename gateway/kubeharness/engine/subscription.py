"""One reader's place in a log: a cursor over the shared ring, and the store itself where the ring does not reach."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import SubmissionId
from kubeharness.core.records import StoredRecord
from kubeharness.engine.feed import Entry, Feed, settles
from kubeharness.engine.patience import Alarm, backoff
from kubeharness.engine.ports import Page

log = logging.getLogger(__name__)

CHUNK_BYTES = 48 * 1024
"""Handed to a reader at once: below the write buffer of a connection."""
PAGE_BYTES = 256 * 1024
FIRST_PAGE, MAX_PAGE = 64, 512

Read = Callable[[int, int], Awaitable[Page | None]]
"""The records after a seq, at most so many; None if the log does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """When a stream ends by itself; the default never."""

    idle: bool = False
    settled: SubmissionId | None = None


FOR_EVER = Until()


class Subscription:
    """One reader's place in a log. Holds a cursor and at most one page, however slow it is."""

    __slots__ = (
        "_alarm",
        "_at",
        "_ends_at",
        "_feed",
        "_leave_at",
        "_limit",
        "_over",
        "_pending",
        "_pruned",
        "_read_log",
        "_sleeper",
        "_until",
    )

    def __init__(
        self,
        read: Read,
        feed: Feed,
        *,
        at: int,
        page: Page | None,
        until: Until,
        ends_at: int | None,
    ) -> None:
        self._read_log = read
        self._feed = feed
        self._at = at
        self._until = until
        self._ends_at = ends_at
        self._limit = FIRST_PAGE
        self._pruned = page.pruned_to if page else 0
        self._pending: deque[StoredRecord] | None = deque(page.records) if page else None
        self._over = False
        self._leave_at: float | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._alarm = Alarm(self._wake)

    def close(self) -> None:
        """Let go of the timer."""
        self._alarm.cancel()

    def leave_at(self, moment: float) -> None:
        """End at this moment of the loop's clock."""
        self._leave_at = moment

    async def chunk(self, seconds: float) -> bytes | None:
        """The next frames; empty if nothing came for so long; None at the end. An outage is only a silence."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        failures = 0
        while True:
            try:
                return await self._next(deadline)
            except Unavailable:
                failures += 1
                left = deadline - loop.time()
                await asyncio.sleep(max(0.0, min(backoff(failures), left)))
                if loop.time() >= deadline:
                    return b""

    async def _next(self, deadline: float) -> bytes | None:
        feed = self._feed
        loop = asyncio.get_running_loop()
        while not self._over:
            if self._leave_at is not None and loop.time() >= self._leave_at:
                return None
            if self._ends_at is not None and self._at >= self._ends_at:
                return None
            if self._pending:
                return self._framed(self._pending)
            self._pending = None
            if feed.broken:
                return None
            if self._at < (feed.tail or 0):
                entries = feed.after(self._at, CHUNK_BYTES)
                if entries:
                    return self._passed(entries)
                await self._read()
                continue
            if self._until.idle and feed.idle:
                if await self._idle_now():
                    return None
                continue
            await self._sleep(min(deadline, self._leave_at or deadline))
            if loop.time() >= deadline and self._at >= (feed.tail or 0):
                return b""
        return None

    async def _sleep(self, until: float) -> None:
        """Until the feed moves, or the moment has come."""
        sleepers = self._feed.sleepers
        sleeper = self._sleeper = asyncio.get_running_loop().create_future()
        sleepers.add(sleeper)
        self._alarm.set(until)
        try:
            await sleeper
        finally:
            sleepers.discard(sleeper)
            self._sleeper = None

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _passed(self, entries: Sequence[Entry]) -> bytes:
        """The shared frames of the ring."""
        wanted = self._until.settled
        if wanted is not None:
            for index, entry in enumerate(entries):
                if entry.settles == wanted:
                    entries = entries[: index + 1]
                    self._over = True
                    break
        self._at = entries[-1].seq
        return entries[0].frame if len(entries) == 1 else b"".join([entry.frame for entry in entries])

    def _framed(self, pending: deque[StoredRecord]) -> bytes:
        """Frames of the reader's own page."""
        frames: list[bytes] = []
        size = 0
        framer = self._feed.framer
        while pending and size < CHUNK_BYTES:
            record = pending.popleft()
            if record.seq != self._at + 1 and self._at + 1 > self._pruned:
                log.error("transcripts: %s: record %d follows %d", self._feed.conversation, record.seq, self._at)
                self._over = True
                break
            frames.append(framer(record))
            size += len(frames[-1])
            self._at = record.seq
            if self._until.settled is not None and settles(record) == self._until.settled:
                self._over = True
                break
        return b"".join(frames)

    async def _read(self) -> None:
        page = await self._read_log(self._at, self._limit)
        if page is None or page.last_seq < self._at:
            self._over = True  # the log is gone, or another one: the reader comes back and is told
            return
        if not page.records and page.last_seq <= self._at:
            raise Unavailable("the database answers behind what was read before")
        self._pruned = page.pruned_to
        self._pending = deque(page.records)
        size = sum(len(record.body) for record in page.records)
        if size > PAGE_BYTES:
            self._limit = max(1, min(self._limit, len(page.records)) // 2)
        elif size < PAGE_BYTES // 2:
            self._limit = min(MAX_PAGE, self._limit * 2)

    async def _idle_now(self) -> bool:
        """Ask the store itself: what the feed knows may be older than a dispatch through another gateway."""
        page = await self._read_log(self._at, self._limit)
        if page is None:
            return True
        if page.records:
            self._pruned = page.pruned_to
            self._pending = deque(page.records)
            return False
        self._feed.idle = page.idle
        return page.idle
