"""Rows to and from SQLite's columns: one SELECT list and one decoder each."""

import json
from typing import cast

from kubeharness.core.codec import dumps, loads
from kubeharness.core.ids import ConversationId, SessionKey
from kubeharness.core.json import Json
from kubeharness.core.lane import CallState, InboxMessage, Lane, OpenCall
from kubeharness.core.records import Kind, StoredRecord
from kubeharness.store.backend import (
    AttemptRow,
    ConversationRow,
    DispatchRow,
    InboxRow,
    RecordRow,
    SettlementRow,
    SubmissionRow,
)
from kubeharness.store.columns import LANE_COLUMNS, lane_of, lane_values
from kubeharness.store.sqlite.database import Row

LANE = ", ".join(f"lane.{name}" for name in LANE_COLUMNS)
LANE_SET = ", ".join(f"{name} = ?" for name in LANE_COLUMNS[1:])
_CANCELLED = LANE_COLUMNS.index("cancelled_positions")
WIDTH = len(LANE_COLUMNS)


def to_text(value: Json) -> str:
    """JSON in a text column."""
    return dumps(value).decode()


def from_lane(lane: Lane) -> list[object]:
    """A lane's cells."""
    cells = lane_values(lane)
    cells[_CANCELLED] = json.dumps(cells[_CANCELLED])
    return cells


def to_lane(row: Row) -> Lane:
    """A lane from LANE."""
    cells = list(row[:WIDTH])
    cells[_CANCELLED] = json.loads(cells[_CANCELLED])
    return lane_of(cells)


CONVERSATION = "id, namespace, agent, incarnation, instance, session, owner, fork_conversation, fork_seq, created_at"


def from_conversation(row: ConversationRow) -> Row:
    """The cells of CONVERSATION."""
    key = row.key
    return (
        row.id,
        key.namespace,
        key.agent,
        key.incarnation,
        key.instance,
        key.session,
        row.owner,
        row.fork_conversation,
        row.fork_seq,
        row.at,
    )


def to_conversation(row: Row) -> ConversationRow:
    """A conversation from CONVERSATION."""
    id_, namespace, agent, incarnation, instance, session, owner, fork, seq, at = row
    key = SessionKey(namespace=namespace, agent=agent, incarnation=incarnation, instance=instance, session=session)
    return ConversationRow(id=id_, key=key, owner=owner, fork_conversation=fork, fork_seq=seq, at=at)


DISPATCH = "submission, conversation, dispatch_id, digest, admitted_at"


def from_dispatch(row: DispatchRow) -> Row:
    """The cells of DISPATCH."""
    return (row.submission_id, row.conversation, row.dispatch_id, row.digest, row.at)


def to_dispatch(row: Row) -> DispatchRow:
    """A dispatch from DISPATCH."""
    submission, conversation, dispatch_id, digest, at = row
    return DispatchRow(
        submission_id=submission, conversation=conversation, dispatch_id=dispatch_id, digest=digest, at=at
    )


SUBMISSION = (
    "id, conversation, position, message, digest, principal, labels, priority, traceparent, parent_submission, "
    "parent_call, depth, revision, admitted_at"
)


def from_submission(row: SubmissionRow) -> Row:
    """The cells of SUBMISSION."""
    return (
        row.id,
        row.conversation,
        row.position,
        row.message,
        row.digest,
        row.principal,
        to_text(dict(row.labels)),
        row.priority,
        row.traceparent,
        row.parent_submission,
        row.parent_call,
        row.depth,
        row.revision,
        row.at,
    )


def to_submission(row: Row) -> SubmissionRow:
    """A submission from SUBMISSION."""
    return SubmissionRow(
        id=row[0],
        conversation=row[1],
        position=row[2],
        message=row[3],
        digest=row[4],
        principal=row[5],
        labels=cast("dict[str, str]", loads(row[6])),  # we wrote it
        priority=row[7],
        traceparent=row[8],
        parent_submission=row[9],
        parent_call=row[10],
        depth=row[11],
        revision=row[12],
        at=row[13],
    )


ATTEMPT = "id, conversation, position, submission, claim, owner, revision, initialised, claimed_at"


def from_attempt(row: AttemptRow) -> Row:
    """The cells of ATTEMPT."""
    return (
        row.id,
        row.conversation,
        row.position,
        row.submission_id,
        row.claim,
        row.owner,
        row.revision,
        row.initialised,
        row.at,
    )


def to_attempt(row: Row) -> AttemptRow:
    """An attempt from ATTEMPT."""
    return AttemptRow(
        id=row[0],
        conversation=row[1],
        position=row[2],
        submission_id=row[3],
        claim=row[4],
        owner=row[5],
        revision=row[6],
        initialised=row[7],
        at=row[8],
    )


RECORD = "conversation, seq, milliseconds, bits, kind, body"


def from_record(row: RecordRow) -> Row:
    """The cells of RECORD."""
    record = row.record
    return (row.conversation, record.seq, record.milliseconds, record.bits, record.kind, record.body)


def to_record(row: Row) -> RecordRow:
    """A record from RECORD."""
    conversation, seq, milliseconds, bits, kind, body = row
    record = StoredRecord(seq=seq, milliseconds=milliseconds, bits=bits, kind=kind, body=body)
    return RecordRow(conversation=ConversationId(conversation), record=record)


CALL = "conversation, call_id, submission, tool_name, state, idempotent"


def from_call(call: OpenCall) -> Row:
    """The cells of CALL."""
    return (call.conversation, call.call_id, call.submission_id, call.tool_name, call.state, call.idempotent)


def to_call(row: Row) -> OpenCall:
    """A ledger row from CALL."""
    conversation, call_id, submission, tool_name, state, idempotent = row
    return OpenCall(
        call_id=call_id,
        conversation=conversation,
        submission_id=submission,
        tool_name=tool_name,
        state=CallState(state),
        idempotent=bool(idempotent),
    )


INBOX = "conversation, id, via, body, digest, principal, consumed, put_at"


def from_inbox(row: InboxRow) -> Row:
    """The cells of INBOX."""
    message = row.message
    return (
        message.conversation,
        message.id,
        message.via,
        message.body,
        message.digest,
        message.principal,
        row.consumed,
        row.at,
    )


def to_inbox(row: Row) -> InboxRow:
    """A message from INBOX."""
    conversation, id_, via, body, digest, principal, consumed, at = row
    message = InboxMessage(id=id_, conversation=conversation, via=via, body=body, digest=digest, principal=principal)
    return InboxRow(message=message, consumed=bool(consumed), at=at)


SETTLEMENT = "submission, conversation, position, attempts, seq, milliseconds, bits, body"


def from_settlement(row: SettlementRow) -> Row:
    """The cells of SETTLEMENT."""
    record = row.record
    return (
        row.submission_id,
        row.conversation,
        row.position,
        row.attempts,
        record.seq,
        record.milliseconds,
        record.bits,
        record.body,
    )


def to_settlement(row: Row) -> SettlementRow:
    """A settlement from SETTLEMENT."""
    submission, conversation, position, attempts, seq, milliseconds, bits, body = row
    record = StoredRecord(seq=seq, milliseconds=milliseconds, bits=bits, kind=Kind.SUBMISSION_SETTLED, body=body)
    return SettlementRow(
        submission_id=submission, conversation=conversation, position=position, attempts=attempts, record=record
    )
