"""The verbs that own a lane, one transaction each: claim, renew, held, reap, sweep; and `execute` for a mixed batch.

Generic over a backend: lock lanes in id order, read side rows once, let `core.transitions` decide on each item in
turn, write all of it. What an item may not do is answered as a value (I14).
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from kubeharness.core import transitions
from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import AttemptId, ConversationId
from kubeharness.core.lane import Claimed, InboxMessage, Lane
from kubeharness.engine.ports import (
    Admission,
    Append,
    Appended,
    Cancel,
    Cancelled,
    Receipt,
    Release,
    Renewal,
    Settle,
)
from kubeharness.store.backend import AttemptRow, Need, Pin, Side, Transaction, Writes
from kubeharness.store.batch import Batch

Item: TypeAlias = Admission | Append | Settle | Release | Cancel | InboxMessage
Result: TypeAlias = Receipt | Appended | Cancelled | None | KubeharnessError


def lane_id(item: Item) -> ConversationId:
    """The lane that an item is about."""
    return item.conversation_id if isinstance(item, Admission) else item.conversation


async def execute(tx: Transaction, items: Sequence[Item]) -> list[Result]:
    """Apply the items in order and answer each. Raises RaceLost if the batch has to be run again, singly."""
    lanes = await tx.lock_lanes(sorted({lane_id(item) for item in items}))
    need = needs(items, lanes)
    side = await tx.side(need) if need else Side()
    batch = Batch(now=tx.now, lanes=lanes, need=need, side=side)
    results: list[Result] = []
    for item in items:
        try:
            results.append(batch.apply(item))
        except KubeharnessError as refusal:
            results.append(refusal)
    writes = batch.writes()
    if writes:
        await tx.write(writes)
    return results


def needs(items: Sequence[Item], lanes: dict[ConversationId, Lane]) -> Need:
    """The side rows that these items are decided by. What a lane's counters say is empty is not asked for."""
    need = Need()
    for item in items:
        lane = lanes.get(lane_id(item))
        match item:
            case Admission():
                need.dispatches.add(item.submission_id)
            case Append() if lane is not None:
                _ledger(need, lane, wanted=bool(item.opened or item.closed or item.started))
                _unread(need, lane, wanted=bool(item.consumed))
            case Settle() if lane is not None:
                need.positions.add((lane.id, lane.head))
                _ledger(need, lane, wanted=True)
                _unread(need, lane, wanted=True)
            case Cancel() if lane is not None:
                need.conversations.add(lane.id)
                need.positions.add((lane.id, lane.head))
                if item.submission_id is not None:
                    need.submissions.add(item.submission_id)
                _ledger(need, lane, wanted=True)
                _unread(need, lane, wanted=True)
            case InboxMessage() if lane is not None:
                need.conversations.add(lane.id)
                need.inbox_ids.add((lane.id, item.id))
            case _:
                pass
    return need


def _ledger(need: Need, lane: Lane, *, wanted: bool) -> None:
    if wanted and lane.open_calls:
        need.calls.add(lane.id)


def _unread(need: Need, lane: Lane, *, wanted: bool) -> None:
    if wanted and lane.unread:
        need.inbox.add(lane.id)


async def claim(
    tx: Transaction,
    *,
    owner: str,
    pool: str,
    attempts: Sequence[AttemptId],
    lease_ms: int,
    failed: int,
    formats: Sequence[int],
    all_ready: bool,
) -> list[Claimed]:
    """Take up to len(attempts) ready lanes and pin their revisions on lane, attempt and submission (I3, I4)."""
    found = await tx.lock_candidates(
        pool=pool, limit=len(attempts), failed=failed, formats=formats, all_ready=all_ready
    )
    now = tx.now
    writes = Writes()
    taken: list[tuple[Lane, Lane]] = []
    for candidate, attempt in zip(found, attempts, strict=False):
        lane = transitions.claim(
            candidate.lane,
            now=now,
            attempt=attempt,
            owner=owner,
            lease_ms=lease_ms,
            active=candidate.revision,
            lifetime_ms=candidate.lifetime_ms,
        )
        if lane is not None:
            taken.append((candidate.lane, lane))
    claimed = await _claimed(tx, [lane for _, lane in taken])
    held = {item.attempt: item for item in claimed}
    for before, lane in taken:
        item = held.get(lane.attempt or AttemptId(""))
        if item is None:  # its submission's row is gone: leave the lane alone, and the others go on (I14)
            continue
        writes.lanes.append(lane)
        writes.attempts.append(_attempt(item, at=now))
        if before.revision is None:
            writes.pins.append(
                Pin(
                    submission_id=item.submission_id,
                    conversation=lane.id,
                    position=lane.head,
                    revision=item.revision,
                )
            )
    if writes:
        await tx.write(writes)
    return claimed


def _attempt(item: Claimed, *, at: int) -> AttemptRow:
    return AttemptRow(
        id=item.attempt,
        conversation=item.lane.id,
        position=item.position,
        submission_id=item.submission_id,
        claim=item.lane.claim,
        owner=item.lane.owner or "",
        revision=item.revision,
        at=at,
    )


async def _claimed(tx: Transaction, lanes: Sequence[Lane]) -> list[Claimed]:
    """What the owners of these lanes start from; a lane without its submission's row is left out."""
    if not lanes:
        return []
    side = await tx.side(
        Need(conversations={lane.id for lane in lanes}, positions={(lane.id, lane.head) for lane in lanes})
    )
    claimed: list[Claimed] = []
    for lane in lanes:
        conversation = side.conversations.get(lane.id)
        submission = side.positions.get((lane.id, lane.head))
        if conversation is None or submission is None or lane.attempt is None or lane.revision is None:
            continue
        claimed.append(
            Claimed(
                lane=lane,
                key=conversation.key,
                submission_id=submission.id,
                position=lane.head,
                attempt=lane.attempt,
                revision=lane.revision,
                message=submission.message,
                now=tx.now,
                labels=dict(submission.labels),
                traceparent=submission.traceparent,
            )
        )
    return claimed


async def held(tx: Transaction, attempts: Sequence[AttemptId]) -> list[Claimed]:
    """What these attempts hold, in their order: the question after an unknown commit of a claim (I4)."""
    holdings = await tx.lock_held(attempts, skip_locked=False)
    return await _claimed(tx, [holdings.lanes[attempt] for attempt in attempts if attempt in holdings.lanes])


async def renew(tx: Transaction, *, attempts: Sequence[AttemptId], lease_ms: int) -> list[Renewal]:
    """Extend the leases of those attempts that hold their lanes; say which are lost, and what came meanwhile."""
    holdings = await tx.lock_held(attempts, skip_locked=True)
    renewed = {
        attempt: transitions.renew(lane, now=tx.now, attempt=attempt, lease_ms=lease_ms)
        for attempt, lane in holdings.lanes.items()
    }
    if renewed:
        await tx.write(Writes(lanes=list(renewed.values())))
    return [_renewal(attempt, renewed.get(attempt), attempt in holdings.skipped) for attempt in attempts]


def _renewal(attempt: AttemptId, lane: Lane | None, skipped: bool) -> Renewal:
    if lane is None:
        return Renewal(attempt=attempt, lost=not skipped, skipped=skipped)
    return Renewal(attempt=attempt, cancel=lane.cancel, unread=lane.unread)


async def reap(tx: Transaction, *, limit: int) -> list[ConversationId]:
    """Take lanes whose lease has run out from their owners."""
    lanes = await tx.lock_expired(limit)
    return await _changed(tx, (transitions.reap(lane, now=tx.now) for lane in lanes))


async def sweep(tx: Transaction, *, limit: int) -> list[ConversationId]:
    """Make lanes ready whose delay is over."""
    lanes = await tx.lock_delayed(limit)
    return await _changed(tx, (transitions.sweep(lane, now=tx.now) for lane in lanes))


async def _changed(tx: Transaction, lanes: Iterable[Lane | None]) -> list[ConversationId]:
    changed = [lane for lane in lanes if lane is not None]
    if changed:
        await tx.write(Writes(lanes=changed))
    return [lane.id for lane in changed]
