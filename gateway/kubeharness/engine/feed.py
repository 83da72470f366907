"""The live end of one conversation, as all its readers in this process share it: a bounded ring of frames.

Nothing here waits or reads; `transcript` fills feeds and readers follow them with a cursor each.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kubeharness.core import codec
from kubeharness.core.ids import ConversationId, SubmissionId
from kubeharness.core.records import Kind, StoredRecord
from kubeharness.engine.ports import Page

RING_BYTES = 256 * 1024

Framer = Callable[[StoredRecord], bytes]
"""A record's bytes on the wire; a pure function, so that two readers see the same bytes."""


class LogBroken(Exception):
    """A log does not go on where it was read to: readers are sent away, to come back by their offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record, framed once for everybody."""

    seq: int
    frame: bytes
    settles: SubmissionId | None


def settles(record: StoredRecord) -> SubmissionId | None:
    """The submission whose settlement this record is."""
    if record.kind != Kind.SUBMISSION_SETTLED:
        return None
    return codec.decode_record(record).submission_id


class Feed:
    """What this process knows of a log's end. `tail` is None until somebody has read where the end is."""

    __slots__ = (
        "broken", "conversation", "early", "floor", "framer", "idle", "last", "readers", "ring", "size", "sleepers",
        "suspect", "tail", "users", "waiting",
    )  # fmt: skip

    def __init__(self, conversation: ConversationId, framer: Framer) -> None:
        self.conversation = conversation
        self.framer = framer
        self.tail: int | None = None
        self.floor = 0
        """The ring holds what comes after this seq, up to the tail."""
        self.ring: deque[Entry] = deque()
        self.size = 0
        self.idle = False
        self.last: tuple[int, int, int] | None = None
        """seq, milliseconds and bits of the newest record seen: a failover that reissued it is told (I6)."""
        self.suspect = False
        self.early = False
        """A hint came before the tail was known."""
        self.broken = False
        self.sleepers: set[asyncio.Future[None]] = set()
        """Readers that wait for the next record; woken all at once."""
        self.users = 0
        self.readers = 0
        self.waiting: dict[SubmissionId, set[asyncio.Future[None]]] = {}

    def begin(self, tail: int, *, idle: bool) -> None:
        """Say where the log ended when it was first read; later calls change nothing."""
        if self.tail is None:
            self.tail = self.floor = tail
            self.idle = idle

    def read_after(self) -> int:
        """Where the next read starts: one record early if the log may have been reissued."""
        tail = self.tail or 0
        return tail - 1 if self.suspect and self.last is not None and self.last[0] == tail else tail

    def take(self, page: Page) -> bool:
        """Add what was read; say whether there is more to read. Raises LogBroken if it does not follow."""
        tail = self.tail or 0
        if page.last_seq < tail:
            raise LogBroken(f"the log ends at {page.last_seq}, it was read to {tail}")
        for record in page.records:
            if record.seq <= tail:
                self._same(record)
                continue
            if record.seq != tail + 1 and tail + 1 > page.pruned_to:
                raise LogBroken(f"record {record.seq} follows {tail}")
            self._add(record, before=tail)
            tail = record.seq
        self.suspect = False
        self.tail = tail
        self.idle = page.idle and tail >= page.last_seq
        if not self.ring:
            self.floor = tail
        self.wake()
        return tail < page.last_seq and bool(page.records)

    def after(self, seq: int, limit_bytes: int) -> list[Entry] | None:
        """Entries that follow `seq`, oldest first, up to so many bytes; None if the ring has lost some of them."""
        if seq < self.floor:
            return None
        found: list[Entry] = []
        for entry in reversed(self.ring):
            if entry.seq <= seq:
                break
            found.append(entry)
        found.reverse()
        size = 0
        for index, entry in enumerate(found):
            size += len(entry.frame)
            if size > limit_bytes and index > 0:
                return found[:index]
        return found

    def wake(self) -> None:
        """Let every reader look again."""
        sleepers, self.sleepers = self.sleepers, set()
        for sleeper in sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def break_off(self) -> None:
        """Send the readers away, and let the waiters look for themselves."""
        self.broken = True
        self.tell_waiters()
        self.wake()

    def tell_waiters(self) -> None:
        """Wake everyone who waits for a settlement."""
        for submission in list(self.waiting):
            self._tell(submission)

    def _tell(self, submission: SubmissionId) -> None:
        for waiter in self.waiting.pop(submission, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _same(self, record: StoredRecord) -> None:
        if self.last is not None and self.last != (record.seq, record.milliseconds, record.bits):
            raise LogBroken(f"record {record.seq} was issued again")

    def _add(self, record: StoredRecord, *, before: int) -> None:
        self.last = (record.seq, record.milliseconds, record.bits)
        done = settles(record)
        if done is not None:
            self._tell(done)
        if self.readers == 0:
            self.ring.clear()
            self.size = 0
            return
        entry = Entry(record.seq, self.framer(record), done)
        if not self.ring:
            self.floor = before
        self.ring.append(entry)
        self.size += len(entry.frame)
        while self.size > RING_BYTES and self.ring:
            dropped = self.ring.popleft()
            self.size -= len(dropped.frame)
            self.floor = dropped.seq
