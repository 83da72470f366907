"""The memory backend: dicts under one lock, so that the transition table runs with nothing between. Embedded, tests.

Rows are immutable values; a transaction reads the dicts and its one `write` checks every unique key before it changes
anything, so a block that raises has changed nothing. The lock is a thread's, because leases are renewed on a thread of
their own (I14); that is sound because nothing waits while it is held.
"""

import copy
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId, CallId, ConversationId, InboxId, InstanceKey, SubmissionId
from kubeharness.core.lane import Lane, LaneState, OpenCall
from kubeharness.core.records import Kind, StoredRecord
from kubeharness.engine.ports import Loaded, Page
from kubeharness.store.backend import (
    AttemptRow,
    Candidate,
    ConversationRow,
    DispatchRow,
    Found,
    Holdings,
    InboxRow,
    Need,
    OutboxRow,
    RaceLost,
    RecordRow,
    SettlementRow,
    Side,
    SubmissionRow,
    UsageEntry,
    Writes,
)
from kubeharness.store.memory_config import MemoryConfiguration
from kubeharness.store.store import TransactionalStore

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
DELTAS = (Kind.ASSISTANT_TEXT_DELTA, Kind.ASSISTANT_THINKING_DELTA)
"""Records that are no context."""
LOCK_TIMEOUT_SECONDS = 2.0


def system_clock() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def memory_store(clock: Callable[[], int] = system_clock) -> TransactionalStore:
    """A store that lives as long as its process."""
    return TransactionalStore(MemoryBackend(clock))


@dataclass(slots=True)
class Tables:
    """All rows."""

    instances: set[InstanceKey] = field(default_factory=set)
    conversations: dict[ConversationId, ConversationRow] = field(default_factory=dict)
    lanes: dict[ConversationId, Lane] = field(default_factory=dict)
    dispatches: dict[SubmissionId, DispatchRow] = field(default_factory=dict)
    submissions: dict[SubmissionId, SubmissionRow] = field(default_factory=dict)
    positions: dict[ConversationId, dict[int, SubmissionId]] = field(default_factory=dict)
    attempts: dict[AttemptId, AttemptRow] = field(default_factory=dict)
    records: dict[ConversationId, list[StoredRecord]] = field(default_factory=dict)
    calls: dict[ConversationId, dict[CallId, OpenCall]] = field(default_factory=dict)
    inbox: dict[ConversationId, dict[InboxId, InboxRow]] = field(default_factory=dict)
    settlements: dict[SubmissionId, SettlementRow] = field(default_factory=dict)
    usage: dict[tuple[AttemptId, int], UsageEntry] = field(default_factory=dict)
    outbox: list[OutboxRow] = field(default_factory=list)
    busy: dict[LaneState, dict[ConversationId, None]] = field(
        default_factory=lambda: {state: {} for state in LaneState if state is not LaneState.IDLE}
    )
    """Lanes by state, so that a scan does not read the idle ones."""

    def set_lane(self, lane: Lane) -> None:
        """Store a lane and keep the index by state."""
        before = self.lanes.get(lane.id)
        if before is not None and before.state is not lane.state:
            self.busy.get(before.state, {}).pop(lane.id, None)
        self.lanes[lane.id] = lane
        if lane.state is not LaneState.IDLE:
            self.busy[lane.state][lane.id] = None

    def copied(self) -> "Tables":
        """The same rows, which are immutable, in tables of their own."""
        tables = copy.copy(self)
        for name in Tables.__slots__:
            value = copy.copy(getattr(self, name))
            if isinstance(value, dict):
                value = {key: copy.copy(row) if isinstance(row, dict | list) else row for key, row in value.items()}
            setattr(tables, name, value)
        return tables

    def in_state(self, state: LaneState) -> Iterable[Lane]:
        """The lanes in a state."""
        return (self.lanes[id_] for id_ in self.busy[state])


class MemoryTransaction:
    """A transaction: the backend's lock is held as long as it is open."""

    def __init__(self, backend: "MemoryBackend") -> None:
        self._backend = backend
        self._tables = backend.tables
        self.now = backend.clock()

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        """The lanes; the lock is held already."""
        lanes = self._tables.lanes
        return {id_: lanes[id_] for id_ in ids if id_ in lanes}

    async def lock_candidates(
        self, *, pool: str, limit: int, failed: int, formats: Sequence[int], all_ready: bool
    ) -> Sequence[Candidate]:
        """Ready lanes, oldest first, with a revision that the claimer reads."""
        found: list[Candidate] = []
        ready = [lane for lane in self._tables.in_state(LaneState.READY) if lane.pool == pool]
        for lane in sorted(ready, key=lambda lane: (lane.ready_at, lane.id)):
            if len(found) == limit:
                break
            if lane.counters.failures > 0 and failed == 0:
                continue
            runnable = self._backend.runnable(lane, formats)
            if runnable is None:
                continue
            failed -= lane.counters.failures > 0
            found.append(runnable)
        return found

    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        """Running lanes whose lease is over."""
        return [lane for lane in self._tables.in_state(LaneState.RUNNING) if (lane.lease_until or 0) <= self.now][
            :limit
        ]

    async def lock_delayed(self, limit: int) -> Sequence[Lane]:
        """Delayed lanes whose time has come."""
        return [lane for lane in self._tables.in_state(LaneState.DELAYED) if (lane.not_before or 0) <= self.now][:limit]

    async def lock_held(self, attempts: Sequence[AttemptId], *, skip_locked: bool) -> Holdings:
        """What the attempts hold; nothing is ever skipped."""
        wanted = set(attempts)
        running = self._tables.in_state(LaneState.RUNNING)
        return Holdings(lanes={lane.attempt: lane for lane in running if lane.attempt in wanted and lane.attempt})

    async def side(self, need: Need) -> Side:
        """Side rows."""
        tables = self._tables
        by_place = {
            place: tables.submissions[tables.positions[place[0]][place[1]]]
            for place in need.positions
            if place[1] in tables.positions.get(place[0], {})
        }
        return Side(
            conversations=_pick(tables.conversations, need.conversations),
            dispatches=_pick(tables.dispatches, need.dispatches),
            submissions=_pick(tables.submissions, need.submissions),
            positions=by_place,
            calls={id_: list(tables.calls.get(id_, {}).values()) for id_ in need.calls},
            inbox={
                id_: [row.message for row in tables.inbox.get(id_, {}).values() if not row.consumed]
                for id_ in need.inbox
            },
            inbox_ids={
                (id_, message): tables.inbox[id_][message]
                for id_, message in need.inbox_ids
                if message in tables.inbox.get(id_, {})
            },
        )

    async def write(self, writes: Writes) -> None:
        """Check every unique key, then change."""
        tables = self._tables
        self._check(writes)
        tables.instances.update(writes.instances)
        tables.conversations.update((row.id, row) for row in writes.conversations)
        for lane in (*writes.lanes_new, *writes.lanes):
            tables.set_lane(lane)
        tables.dispatches.update((row.submission_id, row) for row in writes.dispatches)
        for submission in writes.submissions:
            tables.submissions[submission.id] = submission
            tables.positions.setdefault(submission.conversation, {})[submission.position] = submission.id
        for pin in writes.pins:
            tables.submissions[pin.submission_id] = replace(
                tables.submissions[pin.submission_id], revision=pin.revision
            )
        tables.attempts.update((row.id, row) for row in writes.attempts)
        for row in writes.records:
            tables.records.setdefault(row.conversation, []).append(row.record)
        self._write_ledger(writes)
        for put in writes.inbox_put:
            tables.inbox.setdefault(put.message.conversation, {})[put.message.id] = put
        for conversation, message in writes.inbox_consumed:
            tables.inbox[conversation][message] = replace(tables.inbox[conversation][message], consumed=True)
        tables.settlements.update((settlement.submission_id, settlement) for settlement in writes.settlements)
        tables.usage.update(((entry.attempt, entry.number), entry) for entry in writes.usage)
        tables.outbox += writes.outbox

    def _write_ledger(self, writes: Writes) -> None:
        calls = self._tables.calls
        for call in writes.calls_opened:
            calls.setdefault(call.conversation, {})[call.call_id] = call
        for conversation, call_id, state in writes.calls_changed:
            calls[conversation][call_id] = replace(calls[conversation][call_id], state=state)
        for conversation, call_id in writes.calls_closed:
            del calls[conversation][call_id]

    def _check(self, writes: Writes) -> None:
        tables = self._tables
        _absent("conversation", tables.conversations, (row.id for row in writes.conversations))
        _absent("lane", tables.lanes, (lane.id for lane in writes.lanes_new))
        _absent("dispatch", tables.dispatches, (row.submission_id for row in writes.dispatches))
        _absent("submission", tables.submissions, (row.id for row in writes.submissions))
        _absent("attempt", tables.attempts, (row.id for row in writes.attempts))
        _absent("settlement", tables.settlements, (row.submission_id for row in writes.settlements))
        _absent("usage", tables.usage, ((entry.attempt, entry.number) for entry in writes.usage))
        for row in writes.submissions:
            _absent("position", tables.positions.get(row.conversation, {}), [row.position])
        for call in writes.calls_opened:
            _absent("call", tables.calls.get(call.conversation, {}), [call.call_id])
        for put in writes.inbox_put:
            _absent("message", tables.inbox.get(put.message.conversation, {}), [put.message.id])
        last = {
            id_: records[-1].seq
            for id_ in {row.conversation for row in writes.records}
            if (records := tables.records.get(id_))
        }
        for record in writes.records:
            if record.record.seq <= last.get(record.conversation, 0):
                raise RaceLost(f"record {record.record.seq} of {record.conversation} exists")


def _pick(rows: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    return {key: rows[key] for key in keys if key in rows}


def _absent(what: str, rows: Mapping[K, V], keys: Iterable[K]) -> None:
    for key in keys:
        if key in rows:
            raise RaceLost(f"{what} {key} exists")


class MemorySnapshot:
    """Everything, as it is while the backend's lock is held."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def conversations(self) -> AsyncIterator[ConversationRow]:
        """By id."""
        return _walk(sorted(self._tables.conversations.values(), key=lambda row: row.id))

    def lanes(self) -> AsyncIterator[Lane]:
        """By id."""
        return _walk(sorted(self._tables.lanes.values(), key=lambda lane: lane.id))

    def submissions(self) -> AsyncIterator[SubmissionRow]:
        """By conversation and position."""
        return _walk(sorted(self._tables.submissions.values(), key=lambda row: (row.conversation, row.position)))

    def settlements(self) -> AsyncIterator[SettlementRow]:
        """By conversation and position."""
        return _walk(sorted(self._tables.settlements.values(), key=lambda row: (row.conversation, row.position)))

    def attempts(self) -> AsyncIterator[AttemptRow]:
        """By conversation, position and claim."""
        return _walk(
            sorted(self._tables.attempts.values(), key=lambda row: (row.conversation, row.position, row.claim))
        )

    def dispatches(self) -> AsyncIterator[DispatchRow]:
        """By conversation and submission."""
        return _walk(sorted(self._tables.dispatches.values(), key=lambda row: (row.conversation, row.submission_id)))

    def records(self) -> AsyncIterator[RecordRow]:
        """By conversation and seq."""
        records = self._tables.records
        return _walk(RecordRow(conversation=id_, record=record) for id_ in sorted(records) for record in records[id_])

    def calls(self) -> AsyncIterator[OpenCall]:
        """By conversation, as opened."""
        return _walk(call for id_ in sorted(self._tables.calls) for call in self._tables.calls[id_].values())

    def inbox(self) -> AsyncIterator[InboxRow]:
        """By conversation, as put."""
        return _walk(row for id_ in sorted(self._tables.inbox) for row in self._tables.inbox[id_].values())


async def _walk(rows: Iterable[T]) -> AsyncIterator[T]:
    for row in rows:
        yield row


class MemoryBackend(MemoryConfiguration):
    """One process's memory as a database."""

    def __init__(self, clock: Callable[[], int] = system_clock) -> None:
        super().__init__(clock)
        self.tables = Tables()
        self._lock = threading.Lock()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        """A transaction, alone. Its block must not wait for anything but the transaction."""
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            raise Unavailable("the store is locked")
        try:
            yield MemoryTransaction(self)
        finally:
            self._lock.release()

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[MemorySnapshot]:
        """A copy."""
        with self._lock:
            tables = self.tables.copied()
        yield MemorySnapshot(tables)

    def runnable(self, lane: Lane, formats: Sequence[int]) -> Candidate | None:
        """The lane with the revision that a claim would run, if there is one of a format that the claimer reads."""
        row = self.head_rows.get(lane.incarnation)
        revision = lane.revision or (row.head.active if row else None)
        stored = self.revisions.get(revision) if revision else None
        if stored is None or stored.format not in formats:
            return None
        return Candidate(lane=lane, revision=stored.id, lifetime_ms=row.lifetime_ms if row else 0)

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq."""
        lane = self.tables.lanes.get(conversation)
        if lane is None:
            return None
        return Page(
            records=_after(self.tables.records.get(conversation, []), after)[:limit],
            last_seq=lane.last_seq,
            pruned_to=lane.pruned_to,
            idle=lane.state is LaneState.IDLE,
        )

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose log has grown."""
        lanes = self.tables.lanes
        return [id_ for id_, seq in watched.items() if id_ in lanes and lanes[id_].last_seq > seq]

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """What an attempt starts from."""
        lane = self.tables.lanes.get(conversation)
        if lane is None:
            return None
        records = _after(self.tables.records.get(conversation, []), lane.load_seq)
        inbox = self.tables.inbox.get(conversation, {}).values()
        return Loaded(
            records=[record for record in records if record.kind not in DELTAS],
            calls=list(self.tables.calls.get(conversation, {}).values()),
            inbox=[row.message for row in inbox if not row.consumed],
            lane=lane,
        )

    async def find(self, submission: SubmissionId) -> Found | None:
        """A submission with all that its state derives from."""
        row = self.tables.submissions.get(submission)
        return self._found(row) if row else None

    async def find_unsettled(self, conversation: ConversationId, *, limit: int) -> Sequence[Found]:
        """From the head on, those without a settlement."""
        lane = self.tables.lanes.get(conversation)
        if lane is None or lane.state is LaneState.IDLE:
            return []
        places = self.tables.positions[conversation]
        found: list[Found] = []
        for position in range(lane.head, lane.last_position + 1):
            if len(found) < limit and places[position] not in self.tables.settlements:
                found.append(self._found(self.tables.submissions[places[position]]))
        return found

    def _found(self, row: SubmissionRow) -> Found:
        tables = self.tables
        return Found(
            submission=row,
            conversation=tables.conversations[row.conversation],
            lane=tables.lanes[row.conversation],
            settlement=tables.settlements.get(row.id),
        )

    async def ready(self) -> None:
        """Always."""

    async def aclose(self) -> None:
        """Nothing to close."""


def _after(records: list[StoredRecord], seq: int) -> list[StoredRecord]:
    """Records with a greater seq: seqs count from 1 and only a prefix can be missing."""
    if not records:
        return []
    return records[max(0, seq + 1 - records[0].seq) :]
