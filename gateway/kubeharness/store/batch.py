"""A mixed batch of items applied in memory to lanes that are locked: each item whole, or not at all.

No state is decided here: `core.transitions` does, over the lane; this keeps the side rows in step with its counters
and collects the one `Writes` of the transaction.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from kubeharness.core import transitions
from kubeharness.core.errors import (
    AgentClosed,
    DispatchConflict,
    LaneLost,
    NoRunInFlight,
    NotFound,
    SettlementRefused,
)
from kubeharness.core.ids import AttemptId, CallId, ConversationId, InboxId, SubmissionId
from kubeharness.core.lane import InboxMessage, Lane, LaneState, LastWrite
from kubeharness.core.records import Draft, Kind, StoredRecord
from kubeharness.core.transitions import Repeated
from kubeharness.engine.ports import (
    Admission,
    Append,
    Appended,
    Cancel,
    Cancelled,
    Receipt,
    Release,
    Settle,
    UsageRow,
)
from kubeharness.store.backend import (
    ConversationRow,
    DispatchRow,
    Need,
    RaceLost,
    RecordRow,
    SettlementRow,
    Side,
    SubmissionRow,
    UsageEntry,
    Writes,
)
from kubeharness.store.locked import LockedLane, ledger_after

_ENDS = (Kind.ASSISTANT_MESSAGE_COMPLETED, Kind.ASSISTANT_MESSAGE_ABORTED)
_TURNS = (Kind.ASSISTANT_MESSAGE_STARTED, *_ENDS)


class Batch:
    """The state of one transaction while its items are applied."""

    def __init__(self, *, now: int, lanes: dict[ConversationId, Lane], need: Need, side: Side) -> None:
        self._now = now
        self._need = need
        self._side = side
        self._out = Writes()
        self._dispatches = dict(side.dispatches)
        self._submissions = dict(side.submissions)
        self._positions = dict(side.positions)
        self._sessions = {lane.id: self._session(lane) for lane in lanes.values()}

    def _session(self, lane: Lane) -> LockedLane:
        calls = {call.call_id: call for call in self._side.calls.get(lane.id, ())}
        unread = {message.id: message for message in self._side.inbox.get(lane.id, ())}
        return LockedLane(
            lane,
            calls if lane.id in self._need.calls or not lane.open_calls else None,
            unread if lane.id in self._need.inbox or not lane.unread else None,
        )

    def writes(self) -> Writes:
        """All that the transaction changes."""
        for session in self._sessions.values():
            session.collect(self._out)
        return self._out

    def apply(
        self, item: Admission | Append | Settle | Release | Cancel | InboxMessage
    ) -> Receipt | Appended | Cancelled | None:
        """Apply one item. Raises the refusal, and then nothing of it is in the writes."""
        match item:
            case Admission():
                return self._admit(item)
            case Append():
                return self._append(item)
            case Settle():
                return self._settle(item)
            case Release():
                self._release(item)
                return None
            case Cancel():
                return self._cancel(item)
            case InboxMessage():
                self._put(item)
                return None
            case _:
                assert_never(item)

    # --- admission -------------------------------------------------------------------------------------------------

    def _admit(self, item: Admission) -> Receipt:
        known = self._dispatches.get(item.submission_id)
        if known is not None:  # before closed and full are answered (I2)
            if known.digest != item.digest:
                raise DispatchConflict(item.dispatch_id)
            return Receipt(submission_id=known.submission_id, conversation_id=known.conversation, replayed=True)
        if item.closed:
            raise AgentClosed(item.key.agent)
        session = self._sessions.get(item.conversation_id) or LockedLane(None, {}, {})
        if session.exists:
            lane = session.lane
            if lane.state is LaneState.IDLE:
                lane = replace(lane, pool=item.pool)
        else:
            lane = Lane(id=item.conversation_id, incarnation=item.key.incarnation, pool=item.pool)
            lane = transitions.stamped(lane, now=self._now, count=1)
        lane = transitions.admit(lane, now=self._now, max_queued=item.max_queued)
        if not session.exists:
            self._create(item, lane)
        self._sessions[item.conversation_id] = session
        session.lane = lane
        self._enqueue(item, position=lane.last_position)
        return Receipt(submission_id=item.submission_id, conversation_id=item.conversation_id)

    def _create(self, item: Admission, lane: Lane) -> None:
        self._out.instances.append(item.key.of_instance)
        self._out.conversations.append(
            ConversationRow(id=item.conversation_id, key=item.key, owner=item.principal, at=self._now)
        )
        self._log(item.conversation_id, base=0, milliseconds=lane.last_ms, drafts=[item.created])

    def _enqueue(self, item: Admission, *, position: int) -> None:
        dispatch = DispatchRow(
            submission_id=item.submission_id,
            conversation=item.conversation_id,
            dispatch_id=item.dispatch_id,
            digest=item.digest,
            at=self._now,
        )
        submission = SubmissionRow(
            id=item.submission_id,
            conversation=item.conversation_id,
            position=position,
            message=item.message,
            digest=item.digest,
            principal=item.principal,
            labels=dict(item.labels),
            priority=item.priority,
            traceparent=item.traceparent,
            at=self._now,
        )
        self._out.dispatches.append(dispatch)
        self._out.submissions.append(submission)
        self._dispatches[item.submission_id] = dispatch
        self._submissions[item.submission_id] = submission
        self._positions[item.conversation_id, position] = submission

    # --- the owner's writes ----------------------------------------------------------------------------------------

    def _owned(self, conversation: ConversationId, attempt: AttemptId) -> LockedLane:
        session = self._sessions.get(conversation)
        if session is None or not session.exists:
            raise LaneLost(attempt)
        return session

    def _append(self, item: Append) -> Appended:
        session = self._owned(item.conversation, item.attempt)
        before = session.lane
        lane = transitions.append(
            before,
            now=self._now,
            attempt=item.attempt,
            number=item.number,
            lease_ms=item.lease_ms,
            records=len(item.drafts),
            opened=len(item.opened),
            closed=len(item.closed),
            consumed=len(item.consumed),
            counters=item.counters,
            open_turn=item.open_turn,
        )
        if isinstance(lane, Repeated):
            return _appended(lane.write, before if before.attempt == item.attempt else None)
        calls = ledger_after(item, session) if item.opened or item.closed or item.started else None
        if item.consumed:
            session.consume(item.consumed)
        if calls is not None:
            session.calls = calls
        session.lane = lane
        self._log(lane.id, base=before.last_seq, milliseconds=lane.last_ms, drafts=item.drafts)
        self._spend(item.usage, before, attempt=item.attempt, number=item.number)
        assert lane.write is not None
        return _appended(lane.write, lane)

    def _settle(self, item: Settle) -> Appended:
        session = self._owned(item.conversation, item.attempt)
        before = session.lane
        lane = transitions.settle(
            before,
            now=self._now,
            attempt=item.attempt,
            number=item.number,
            records=len(item.drafts),
            closes=len(item.closes),
            drains=len(item.drains),
            success=item.success,
            ends_turn=_ends_turn(item.drafts),
        )
        if isinstance(lane, Repeated):
            return _appended(lane.write, None)
        if self._at(before.id, before.head).id != item.submission_id:
            raise SettlementRefused(f"submission {item.submission_id} is not the head of its lane")
        self._end(session, before.head, item.submission_id, item.drafts, item.closes, item.drains)
        session.lane = lane
        self._spend(item.usage, before, attempt=item.attempt, number=item.number)
        assert lane.write is not None
        return _appended(lane.write, None)

    def _end(
        self,
        session: LockedLane,
        position: int,
        submission: SubmissionId,
        drafts: Sequence[Draft],
        closes: Sequence[CallId],
        drains: Sequence[InboxId],
    ) -> None:
        """Write the settlement of a submission and, if it is the head, close by name all that is open (I7, I8)."""
        lane = session.lane
        settles = [draft for draft in drafts if draft.kind == Kind.SUBMISSION_SETTLED]
        if len(settles) != 1 or settles[0] is not drafts[-1]:
            raise SettlementRefused("the last record, and it alone, is the submission_settled")
        if settles[0].submission_id != submission:
            raise SettlementRefused(f"its record is of {settles[0].submission_id}, not of {submission}")
        if _begins_turn(drafts):
            raise SettlementRefused("a message is begun and has no end")
        if position == lane.head:
            if set(closes) != set(session.calls) or set(drains) != set(session.unread):
                raise SettlementRefused("other calls or messages are open than it names")
            session.empty()
        stored = self._log(lane.id, base=lane.last_seq, milliseconds=max(lane.last_ms, self._now), drafts=drafts)
        self._out.settlements.append(
            SettlementRow(
                submission_id=submission,
                conversation=lane.id,
                position=position,
                attempts=lane.claim if position == lane.head else 0,
                record=stored[-1],
            )
        )

    def _release(self, item: Release) -> None:
        session = self._owned(item.conversation, item.attempt)
        session.lane = transitions.release(
            session.lane,
            now=self._now,
            attempt=item.attempt,
            cause=item.cause,
            delay_ms=item.delay_ms,
            last_error=item.last_error,
            seen=item.seen,
        )

    # --- from the outside ------------------------------------------------------------------------------------------

    def _cancel(self, item: Cancel) -> Cancelled:
        session = self._sessions.get(item.conversation)
        if session is None or not session.exists:
            raise NotFound(f"submission {item.submission_id}" if item.submission_id else "conversation")
        before = session.lane
        if item.submission_id is None:
            if before.state is LaneState.IDLE:
                raise NoRunInFlight(self._name(before.id))
            submission = self._at(before.id, before.head)
        else:
            found = self._submissions.get(item.submission_id)
            if found is None or found.conversation != item.conversation:
                raise NotFound(f"submission {item.submission_id}")
            submission = found
        done = transitions.cancel(
            before,
            now=self._now,
            position=submission.position,
            reason=item.reason,
            closes=len(item.closes),
            drains=len(item.drains),
            records=len(item.drafts),
            submission=submission.id,
            ends_turn=_ends_turn(item.drafts),
        )
        if done.settles:
            self._end(session, submission.position, submission.id, item.drafts, item.closes, item.drains)
        session.lane = done.lane
        return Cancelled(submission_id=submission.id, settled=done.settles)

    def _put(self, item: InboxMessage) -> None:
        session = self._sessions.get(item.conversation)
        if session is None or not session.exists:
            raise NoRunInFlight(item.conversation)
        known = session.put.get(item.id) or self._side.inbox_ids.get((item.conversation, item.id))
        if known is not None:  # also after it was consumed, also when nothing is in flight any more
            if known.message.digest != item.digest:
                raise DispatchConflict(item.id)
            return
        session.lane = transitions.put_inbox(session.lane, now=self._now, session=self._name(item.conversation))
        session.receive(item, at=self._now)

    # --- rows ------------------------------------------------------------------------------------------------------

    def _at(self, conversation: ConversationId, position: int) -> SubmissionRow:
        found = self._positions.get((conversation, position))
        if found is None:  # the head has moved within the batch
            raise RaceLost("the head's submission was not read")
        return found

    def _name(self, conversation: ConversationId) -> str:
        row = self._side.conversations.get(conversation)
        return row.key.session if row else conversation

    def _log(
        self, conversation: ConversationId, *, base: int, milliseconds: int, drafts: Sequence[Draft]
    ) -> list[StoredRecord]:
        stored = [
            StoredRecord(seq=base + n, milliseconds=milliseconds, bits=draft.bits, kind=draft.kind, body=draft.body)
            for n, draft in enumerate(drafts, 1)
        ]
        self._out.records += [RecordRow(conversation=conversation, record=record) for record in stored]
        return stored

    def _spend(self, usage: UsageRow | None, head: Lane, *, attempt: AttemptId, number: int) -> None:
        if usage is not None:
            self._out.usage.append(
                UsageEntry(
                    attempt=attempt,
                    number=number,
                    conversation=head.id,
                    position=head.head,
                    usage=usage,
                    at=self._now,
                )
            )


def _appended(write: LastWrite, lane: Lane | None) -> Appended:
    """Where a write went, and what its owner should know; a settled submission has nothing to know."""
    return Appended(
        base=write.base,
        count=write.count,
        milliseconds=write.milliseconds,
        cancel=lane.cancel if lane else None,
        unread=lane.unread if lane else 0,
    )


def _ends_turn(drafts: Sequence[Draft]) -> bool:
    """Whether no message is open after these records, if one was before."""
    turns = [draft.kind in _ENDS for draft in drafts if draft.kind in _TURNS]
    return bool(turns) and turns[-1]


def _begins_turn(drafts: Sequence[Draft]) -> bool:
    """Whether these records leave a message open."""
    turns = [draft.kind in _ENDS for draft in drafts if draft.kind in _TURNS]
    return bool(turns) and not turns[-1]
