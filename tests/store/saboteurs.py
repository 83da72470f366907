"""Stores that are broken on purpose, each in one way: the conformance suite must notice, on the named invariant."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kubeharness.core import transitions
from kubeharness.core.errors import AgentClosed, KubeharnessError, LaneLost
from kubeharness.core.ids import AttemptId, ConversationId, SubmissionId
from kubeharness.core.lane import CallState, Counters, InboxMessage, Lane, LaneState
from kubeharness.core.records import StoredRecord
from kubeharness.core.transitions import Cancelling, Repeated
from kubeharness.engine.ports import (
    Admission,
    Append,
    Appended,
    HeadWrite,
    Receipt,
    Release,
    Renewal,
    Settle,
)
from kubeharness.store import batch, heads, locked
from kubeharness.store.backend import Backend, Candidate, RecordRow, Writes
from kubeharness.store.batch import Batch
from kubeharness.store.memory import MemoryBackend, MemoryTransaction
from kubeharness.store.store import TransactionalStore
from store.subjects import MemorySubject

Patch: TypeAlias = tuple[object, str, object]
"""Whose attribute, its name, and what stands there while the sabotaged store is run."""


@dataclass(frozen=True, kw_only=True)
class Sabotage:
    """One way to break a store, and the invariant on which the suite must fail."""

    name: str
    invariant: str
    patches: tuple[Patch, ...] = ()
    backend: Callable[[Callable[[], int]], Backend] = MemoryBackend
    wrap: Callable[[Any], TransactionalStore] = TransactionalStore

    def subject(self) -> MemorySubject:
        return MemorySubject(self.backend, self.wrap)

    def __str__(self) -> str:
        return f"{self.name}-{self.invariant}"


# --- a broken transition table ------------------------------------------------------------------------------

_fence = transitions.fence
_admit = transitions.admit
_claim = transitions.claim
_renew = transitions.renew
_settle = transitions.settle
_release = transitions.release
_given_back = transitions._given_back
_stamped = transitions.stamped
_cancel = transitions.cancel
_headed = transitions._headed


def no_fence(lane: Lane, attempt: AttemptId, number: int) -> Repeated | None:
    write = lane.write
    return Repeated(write) if write and (write.attempt, write.number) == (attempt, number) and number else None


def no_numbers(lane: Lane, attempt: AttemptId, number: int) -> Repeated | None:
    if lane.attempt != attempt:
        raise LaneLost(attempt)
    return None


def forgets_the_write_at_release(lane: Lane, **event: Any) -> Lane:
    return replace(_release(lane, **event), write=None)


def wakes_a_delayed_lane(lane: Lane, *, now: int, max_queued: int | None) -> Lane:
    lane = _admit(lane, now=now, max_queued=max_queued)
    return replace(lane, state=LaneState.READY) if lane.state is LaneState.DELAYED else lane


def promotes_the_next_position(lane: Lane, *, now: int) -> Lane:
    lane = replace(lane, attempt=None, owner=None, lease_until=None, open_calls=0, unread=0, cancel=None)
    if lane.head < lane.last_position:
        return _headed(lane, lane.head + 1, now)
    return replace(lane, state=LaneState.IDLE, head=0, claim=0, revision=None, deadline=None, counters=Counters())


def reuses_seqs(lane: Lane, *, now: int, count: int) -> Lane:
    return _stamped(lane, now=now, count=count - 1 if count == 2 else count)


def follows_the_clock(lane: Lane, *, now: int, count: int) -> Lane:
    return replace(_stamped(lane, now=now, count=count), last_ms=now if count else lane.last_ms)


def loses_the_flag(lane: Lane, **event: Any) -> Cancelling:
    done = _cancel(lane, **event)
    return done if done.settles else Cancelling(lane=lane, settles=False)


def counts_no_failure(lane: Lane, **event: Any) -> Lane | None:
    claimed = _claim(lane, **event)
    return claimed and replace(claimed, counters=lane.counters)


def charges_hand_overs(lane: Lane, *, cause: Any, **event: Any) -> Lane:
    return _release(lane, cause="failure" if cause == "handover" else cause, **event)


def starts_the_lifetime_anew(lane: Lane, **event: Any) -> Lane | None:
    return _claim(replace(lane, deadline=None, head_at=event["now"]), **event)


def reaps_whatever_runs(lane: Lane, *, now: int) -> Lane | None:
    return _given_back(lane, now=now, delay_ms=0) if lane.state is LaneState.RUNNING else None


def renews_nothing(lane: Lane, **event: Any) -> Lane:
    _renew(lane, **event)
    return lane


def forgets_the_open_turn(lane: Lane, *, now: int, delay_ms: int) -> Lane:
    return replace(_given_back(lane, now=now, delay_ms=delay_ms), open_turn=None)


def succeeds_over_anything(lane: Lane, *, success: bool, **event: Any) -> Lane | Repeated:
    return _settle(lane, success=False, **event)


def resets_counters_at_release(lane: Lane, **event: Any) -> Lane:
    return replace(_release(lane, **event), counters=Counters())


# --- a broken backend ---------------------------------------------------------------------------------------


class Unchecked(MemoryTransaction):
    """A log without a primary key."""

    def _check(self, writes: Writes) -> None:
        super()._check(replace(writes, records=[]))


class OffsetsOutsideTheLock(MemoryBackend):
    """The next seq is read first, and then the lock is waited for."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        seqs = {lane.id: lane.last_seq for lane in self.tables.lanes.values()}
        await asyncio.sleep(0)
        async with super().transaction():
            yield StaleOffsets(self, seqs)


class StaleOffsets(Unchecked):
    def __init__(self, backend: MemoryBackend, seqs: dict[ConversationId, int]) -> None:
        super().__init__(backend)
        self._seqs = seqs

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        lanes = await super().lock_lanes(ids)
        return {key: replace(lane, last_seq=self._seqs.get(key, lane.last_seq)) for key, lane in lanes.items()}


def backend_of(transaction: type[MemoryTransaction]) -> type[MemoryBackend]:
    class Broken(MemoryBackend):
        @asynccontextmanager
        async def transaction(self) -> AsyncIterator[MemoryTransaction]:
            async with super().transaction():
                yield transaction(self)

    return Broken


class HeadOfLineInTheLister(MemoryTransaction):
    """A busy lane's next submission is offered too: only what lists the queue knows of the head."""

    async def lock_candidates(self, *, pool: str, limit: int, failed: int, **asked: Any) -> Sequence[Candidate]:
        found = list(await super().lock_candidates(pool=pool, limit=limit, failed=failed, **asked))
        for lane in list(self._tables.in_state(LaneState.RUNNING)):
            if lane.pool == pool and lane.head < lane.last_position and lane.revision is not None:
                passed = replace(lane, state=LaneState.READY, head=lane.head + 1)
                found.append(Candidate(lane=passed, revision=lane.revision, lifetime_ms=1))
        return found[:limit]


class ExpiresAll(MemoryTransaction):
    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        return list(self._tables.in_state(LaneState.RUNNING))[:limit]


class PoisonForAll(MemoryTransaction):
    async def lock_candidates(self, *, failed: int, **asked: Any) -> Sequence[Candidate]:
        return await super().lock_candidates(failed=1_000, **asked)


class ForgetsConsumedMessages(MemoryTransaction):
    async def write(self, writes: Writes) -> None:
        await super().write(writes)
        for conversation, message in writes.inbox_consumed:
            del self._tables.inbox[conversation][message]


class ForgetsStarts(MemoryTransaction):
    async def write(self, writes: Writes) -> None:
        await super().write(replace(writes, calls_changed=[]))


class SerialisesAgain(MemoryTransaction):
    async def write(self, writes: Writes) -> None:
        def again(record: StoredRecord) -> StoredRecord:
            return replace(record, body=json.dumps(json.loads(record.body)).encode())

        rows = [RecordRow(conversation=row.conversation, record=again(row.record)) for row in writes.records]
        await super().write(replace(writes, records=rows))


class KeepsTheLedger(MemoryTransaction):
    """A settlement's own calls stay open."""

    async def write(self, writes: Writes) -> None:
        await super().write(replace(writes, calls_closed=[] if writes.settlements else writes.calls_closed))


class RunsTheActive(MemoryBackend):
    def runnable(self, lane: Lane, formats: Sequence[int]) -> Candidate | None:
        return super().runnable(replace(lane, revision=None), formats)


class EachPublicationTicks(MemoryBackend):
    async def publish(self, epoch: int, heads_: Sequence[HeadWrite]) -> int:
        self._head_clock += 1
        return await super().publish(epoch, heads_)


# --- a broken store -----------------------------------------------------------------------------------------


class MemoryStore(TransactionalStore):
    backend: MemoryBackend


class SettlesTwice(MemoryStore):
    """The record is written whether or not the settlement was refused."""

    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]:
        results = list(await super().settle(items))
        for n, (item, result) in enumerate(zip(items, results, strict=True)):
            if isinstance(result, LaneLost):
                log, last = self.backend.tables.records[item.conversation], item.drafts[-1]
                record = StoredRecord(
                    seq=log[-1].seq + 1, milliseconds=log[-1].milliseconds, bits=0, kind=last.kind, body=last.body
                )
                log.append(record)
                results[n] = Appended(base=record.seq - 1, count=1, milliseconds=0, cancel=None, unread=0)
        return results


class ClosesWhatItFinds(MemoryStore):
    """A settlement that decides from the side tables what is open, in place of what the owner named."""

    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]:
        filled = []
        for item in items:
            loaded = await self.load(item.conversation)
            calls = [call.call_id for call in loaded.calls] if loaded else []
            filled.append(replace(item, closes=calls))
        return await super().settle(filled)


class DrainsWhatItFinds(MemoryStore):
    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]:
        filled = []
        for item in items:
            loaded = await self.load(item.conversation)
            filled.append(replace(item, drains=[message.id for message in loaded.inbox] if loaded else []))
        return await super().settle(filled)


class LosesMessages(MemoryStore):
    """Answered, and kept nowhere, while the head is running."""

    async def inbox_put(self, items: Sequence[InboxMessage]) -> Sequence[None | KubeharnessError]:
        kept = []
        for item in items:
            loaded = await self.load(item.conversation)
            if loaded is None or loaded.lane.state is not LaneState.RUNNING:
                kept.append(item)
        await super().inbox_put(kept)
        return [None for _ in items]


class KeysBySession(MemoryStore):
    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]:
        return await super().admit(
            [replace(item, submission_id=SubmissionId(f"{item.submission_id}/{item.key.session}")) for item in items]
        )


class AnswersFirst(MemoryStore):
    """The receipt goes out, the transaction runs with the next call."""

    _late: tuple[Admission, ...] = ()

    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]:
        await super().admit(self._late)
        self._late = tuple(items)
        return [Receipt(submission_id=item.submission_id, conversation_id=item.conversation_id) for item in items]


class RefusesTooLate(MemoryStore):
    """The conversation is made before the refusal."""

    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]:
        results = list(await super().admit([replace(item, closed=False) for item in items]))
        return [
            AgentClosed(item.key.agent) if item.closed and isinstance(result, Receipt) else result
            for item, result in zip(items, results, strict=True)
        ]


class RefusesReplaysWhenClosed(MemoryStore):
    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]:
        results = list(await super().admit(items))
        return [AgentClosed("a") if item.closed else result for item, result in zip(items, results, strict=True)]


class AllOrNothing(MemoryStore):
    async def append(self, items: Sequence[Append]) -> Sequence[Appended | KubeharnessError]:
        for item in items:
            loaded = await self.load(item.conversation)
            if loaded is None or loaded.lane.attempt != item.attempt:
                return [LaneLost(item.attempt) for _ in items]
        return await super().append(items)


class NeverLost(MemoryStore):
    async def renew(self, *, owner: str, attempts: Sequence[AttemptId], lease_ms: int) -> Sequence[Renewal]:
        renewals = await super().renew(owner=owner, attempts=attempts, lease_ms=lease_ms)
        return [replace(renewal, lost=False) for renewal in renewals]


class ReleasesAnybodys(MemoryStore):
    async def release(self, items: Sequence[Release]) -> Sequence[None | KubeharnessError]:
        return [None if isinstance(result, LaneLost) else result for result in await super().release(items)]


# --- broken bookkeeping -------------------------------------------------------------------------------------


def enqueues_blindly(self: Batch, item: Admission, *, position: int) -> None:
    """Equal ids of one batch do not see each other."""
    known = dict(self._dispatches)
    _enqueue(self, item, position=position)
    self._dispatches = known


_enqueue = Batch._enqueue
_ledger_after = locked.ledger_after


def closes_what_is_closed(item: Append, lane: locked.LockedLane) -> Any:
    there = [call for call in item.closed if call in lane.calls]
    return _ledger_after(replace(item, closed=there), lane)


def recorded_for_ever(item: Append, lane: locked.LockedLane) -> Any:
    calls = _ledger_after(item, lane)
    return {key: replace(call, state=CallState.RECORDED) for key, call in calls.items()}


def _table(name: str, broken: object) -> tuple[Patch, ...]:
    return ((transitions, name, broken),)


def _in(transaction: type[MemoryTransaction]) -> Callable[[Callable[[], int]], Backend]:
    return backend_of(transaction)


SABOTAGES: tuple[Sabotage, ...] = (
    Sabotage(name="receipt before the commit", invariant="I1", wrap=AnswersFirst),
    Sabotage(name="refused after the insert", invariant="I1", wrap=RefusesTooLate),
    Sabotage(name="no replay when closed", invariant="I2", wrap=RefusesReplaysWhenClosed),
    Sabotage(name="dispatch key scoped to the session", invariant="I2", wrap=KeysBySession),
    Sabotage(name="equal ids of one batch", invariant="I2", patches=((Batch, "_enqueue", enqueues_blindly),)),
    Sabotage(name="head of line only in a lister", invariant="I3", backend=_in(HeadOfLineInTheLister)),
    Sabotage(name="admission wakes a delayed lane", invariant="I3", patches=_table("admit", wakes_a_delayed_lane)),
    Sabotage(
        name="promotion onto a cancelled position",
        invariant="I3",
        patches=_table("promoted", promotes_the_next_position),
    ),
    Sabotage(name="revision not pinned", invariant="I4", backend=RunsTheActive),
    Sabotage(
        name="reaped before the lease is over",
        invariant="I4",
        patches=_table("reap", reaps_whatever_runs),
        backend=_in(ExpiresAll),
    ),
    Sabotage(name="no fence", invariant="I5", patches=_table("fence", no_fence)),
    Sabotage(name="repeated write after an unknown commit", invariant="I5", patches=_table("fence", no_numbers)),
    Sabotage(
        name="last write forgotten at release",
        invariant="I5",
        patches=_table("release", forgets_the_write_at_release),
    ),
    Sabotage(
        name="reap that ignores a renewal",
        invariant="I5",
        patches=_table("renew", renews_nothing),
    ),
    Sabotage(name="a lost lane renews", invariant="I5", wrap=NeverLost),
    Sabotage(name="release by anybody", invariant="I5", wrap=ReleasesAnybodys),
    Sabotage(name="offset outside the lock", invariant="I6", backend=OffsetsOutsideTheLock),
    Sabotage(name="seq reused", invariant="I6", patches=_table("stamped", reuses_seqs), backend=_in(Unchecked)),
    Sabotage(name="milliseconds go back", invariant="I6", patches=_table("stamped", follows_the_clock)),
    Sabotage(name="settled twice", invariant="I7", wrap=SettlesTwice),
    Sabotage(name="settled over an unread message", invariant="I7", wrap=DrainsWhatItFinds),
    Sabotage(name="success over a cancel", invariant="I7", patches=_table("settle", succeeds_over_anything)),
    Sabotage(name="lost cancel flag", invariant="I7", patches=_table("cancel", loses_the_flag)),
    Sabotage(name="settled with an open call", invariant="I8", wrap=ClosesWhatItFinds),
    Sabotage(name="ledger outlives the settlement", invariant="I8", backend=_in(KeepsTheLedger)),
    Sabotage(name="a call closed twice", invariant="I8", patches=((batch, "ledger_after", closes_what_is_closed),)),
    Sabotage(name="start not stored", invariant="I9", backend=_in(ForgetsStarts)),
    Sabotage(name="all calls recorded", invariant="I9", patches=((batch, "ledger_after", recorded_for_ever),)),
    Sabotage(name="failure not counted", invariant="I10", patches=_table("claim", counts_no_failure)),
    Sabotage(name="hand-over charged", invariant="I10", patches=_table("release", charges_hand_overs)),
    Sabotage(
        name="budgets refilled by a release",
        invariant="I10",
        patches=_table("release", resets_counters_at_release),
    ),
    Sabotage(name="lifetime refilled", invariant="I10", patches=_table("claim", starts_the_lifetime_anew)),
    Sabotage(name="poison for all", invariant="I10", backend=_in(PoisonForAll)),
    Sabotage(name="open turn forgotten", invariant="I12", patches=_table("_given_back", forgets_the_open_turn)),
    Sabotage(name="all or nothing", invariant="I14", wrap=AllOrNothing),
    Sabotage(name="serialised again", invariant="I15", backend=_in(SerialisesAgain)),
    Sabotage(name="lost inbox", invariant="S5", wrap=LosesMessages),
    Sabotage(name="consumed messages forgotten", invariant="S5", backend=_in(ForgetsConsumedMessages)),
    Sabotage(name="stale epoch publishes", invariant="C", patches=((heads, "fenced", lambda *_: None),)),
    Sabotage(name="head clock ticks for nothing", invariant="C", backend=EachPublicationTicks),
)
