"""Rows as cells: the columns of each in an order, how cells become a value of ours, and how a value becomes cells."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import asyncpg
import orjson

from kubeharness.core.ids import ConversationId, SessionKey
from kubeharness.core.lane import CallState, Counters, InboxMessage, Lane, LaneState, LastWrite, OpenCall
from kubeharness.core.messages import Usage
from kubeharness.core.records import StoredRecord
from kubeharness.store.backend import (
    AttemptRow,
    ConversationRow,
    DispatchRow,
    InboxRow,
    RecordRow,
    SettlementRow,
    SubmissionRow,
    UsageEntry,
)
from kubeharness.store.columns import LANE_COLUMNS, lane_values

Cells: TypeAlias = "Sequence[Any] | asyncpg.Record"
"""A row or a part of one: Any, because that is what a driver takes and gives."""

NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
"""This database's clock, at the moment that it is asked (I4)."""

STARTED_MS = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint"
"""The same at the begin of the statement: stable, so that an index may be searched by it."""


def _words(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def select(names: Sequence[str], of: str) -> str:
    """A select list: each name qualified by the table or alias that it is of."""
    return ", ".join(f"{of}.{name}" for name in names)


# --- lane -----------------------------------------------------------------------------------------------------------

LANE = select(LANE_COLUMNS, "lane")
_POSITIONS = LANE_COLUMNS.index("cancelled_positions")
_WRITE = LANE_COLUMNS.index("write_attempt")
_COUNTERS = LANE_COLUMNS.index("failures")
_USAGE = LANE_COLUMNS.index("usage_input")
_PLAIN = LANE_COLUMNS[:_WRITE]
_STATES = {str(state): state for state in LaneState}


def lane_from(cells: Cells) -> Lane:
    """From LANE_COLUMNS. `columns.lane_of` in half the time: each verb does it for each of its lanes."""
    plain: dict[str, Any] = dict(zip(_PLAIN, cells[:_WRITE], strict=True))
    plain["state"] = _STATES[plain["state"]]
    plain["cancelled_positions"] = tuple(plain["cancelled_positions"])
    attempt, number, base, count, milliseconds = cells[_WRITE:_COUNTERS]
    write = None
    if attempt is not None:
        write = LastWrite(attempt=attempt, number=number, base=base, count=count, milliseconds=milliseconds)
    return Lane(**plain, write=write, counters=_counters(*cells[_COUNTERS:]))


@lru_cache(maxsize=1024)
def _counters(*cells: int | None) -> Counters:
    """Few are ever different, and all are immutable."""
    at = _USAGE - _COUNTERS
    counts = dict(zip(LANE_COLUMNS[_COUNTERS:_USAGE], cells[:at], strict=True))
    usage: dict[str, int | None] = dict(zip(_TOKENS, cells[at:], strict=True))
    return Counters(**cast("dict[str, Any]", counts), usage=Usage(**usage))


_TOKENS = [name.removeprefix("usage_") for name in LANE_COLUMNS[_USAGE:]]


def lane_cells(lane: Lane) -> Cells:
    """To LANE_COLUMNS; unnest would flatten an array of arrays, so cancelled positions go as text."""
    cells = lane_values(lane)
    cells[_POSITIONS] = "{" + ",".join(map(str, cells[_POSITIONS])) + "}"
    return cells


# --- conversation ---------------------------------------------------------------------------------------------------

CONVERSATION = _words("id namespace agent incarnation instance session owner fork_conversation fork_seq created_at")


def conversation_from(cells: Cells) -> ConversationRow:
    """From CONVERSATION."""
    id_, namespace, agent, incarnation, instance, session, owner, fork, fork_seq, at = cells
    key = SessionKey(namespace=namespace, agent=agent, incarnation=incarnation, instance=instance, session=session)
    return ConversationRow(id=id_, key=key, owner=owner, fork_conversation=fork, fork_seq=fork_seq, at=at)


def conversation_cells(row: ConversationRow) -> Cells:
    """To CONVERSATION."""
    key = row.key
    identity = (key.namespace, key.agent, key.incarnation, key.instance, key.session)
    return (row.id, *identity, row.owner, row.fork_conversation, row.fork_seq, row.at)


# --- submission and its dispatch -----------------------------------------------------------------------------------

DISPATCH = _words("submission conversation dispatch_id digest admitted_at")
SUBMISSION = _words(
    "id conversation position message digest principal labels priority traceparent parent_submission parent_call "
    "depth revision admitted_at"
)


def dispatch_from(cells: Cells) -> DispatchRow:
    """From DISPATCH."""
    submission, conversation, dispatch_id, digest, at = cells
    return DispatchRow(
        submission_id=submission, conversation=conversation, dispatch_id=dispatch_id, digest=digest, at=at
    )


def dispatch_cells(row: DispatchRow) -> Cells:
    """To DISPATCH."""
    return (row.submission_id, row.conversation, row.dispatch_id, row.digest, row.at)


def submission_from(cells: Cells) -> SubmissionRow:
    """From SUBMISSION."""
    id_, conversation, position, message, digest, principal, labels, priority = cells[:8]
    traceparent, parent_submission, parent_call, depth, revision, at = cells[8:]
    return SubmissionRow(
        id=id_,
        conversation=conversation,
        position=position,
        message=message,
        digest=digest,
        principal=principal,
        labels=orjson.loads(labels),
        priority=priority,
        traceparent=traceparent,
        parent_submission=parent_submission,
        parent_call=parent_call,
        depth=depth,
        revision=revision,
        at=at,
    )


def submission_cells(row: SubmissionRow) -> Cells:
    """To SUBMISSION."""
    labels = orjson.dumps(dict(row.labels)).decode()
    return (
        *(row.id, row.conversation, row.position, row.message, row.digest, row.principal, labels, row.priority),
        *(row.traceparent, row.parent_submission, row.parent_call, row.depth, row.revision, row.at),
    )


# --- attempt --------------------------------------------------------------------------------------------------------

ATTEMPT = _words("id conversation position submission claim owner revision initialised claimed_at")


def attempt_from(cells: Cells) -> AttemptRow:
    """From ATTEMPT."""
    values = dict(zip(ATTEMPT, cells, strict=True))
    values["submission_id"] = values.pop("submission")
    values["at"] = values.pop("claimed_at")
    return AttemptRow(**values)


def attempt_cells(row: AttemptRow) -> Cells:
    """To ATTEMPT."""
    place = (row.conversation, row.position, row.submission_id, row.claim)
    return (row.id, *place, row.owner, row.revision, row.initialised, row.at)


# --- record, settlement ---------------------------------------------------------------------------------------------

RECORD = _words("seq ms bits kind body")
LOG_ROW = ("conversation", *RECORD)
SETTLEMENT = _words("submission conversation position attempts seq")
SETTLED = select(SETTLEMENT[:-1], "settlement") + ", " + select(RECORD, "record")
"""The select list of a settlement, joined with its record."""


def record_from(cells: Cells) -> StoredRecord:
    """From RECORD."""
    seq, ms, bits, kind, body = cells
    return StoredRecord(seq=seq, milliseconds=ms, bits=bits, kind=kind, body=body)


def log_row_from(cells: Cells) -> RecordRow:
    """From LOG_ROW."""
    return RecordRow(conversation=ConversationId(cells[0]), record=record_from(cells[1:]))


def log_row_cells(row: RecordRow) -> Cells:
    """To LOG_ROW."""
    record = row.record
    return (row.conversation, record.seq, record.milliseconds, record.bits, record.kind, record.body)


def settlement_from(cells: Cells) -> SettlementRow:
    """From SETTLED."""
    submission, conversation, position, attempts = cells[:4]
    return SettlementRow(
        submission_id=submission,
        conversation=conversation,
        position=position,
        attempts=attempts,
        record=record_from(cells[4:]),
    )


def settlement_cells(row: SettlementRow) -> Cells:
    """To SETTLEMENT."""
    return (row.submission_id, row.conversation, row.position, row.attempts, row.record.seq)


# --- ledger, inbox, usage -------------------------------------------------------------------------------------------

OPEN_CALL = _words("call_id conversation submission tool_name state idempotent")
INBOX = _words("id conversation via body digest principal consumed put_at")
USAGE = _words(
    "attempt number conversation position turn_id provider model input output cache_read cache_write reasoning used_at"
)


def call_from(cells: Cells) -> OpenCall:
    """From OPEN_CALL."""
    call_id, conversation, submission, tool_name, state, idempotent = cells
    return OpenCall(
        call_id=call_id,
        conversation=conversation,
        submission_id=submission,
        tool_name=tool_name,
        state=CallState(state),
        idempotent=idempotent,
    )


def call_cells(call: OpenCall) -> Cells:
    """To OPEN_CALL."""
    return (call.call_id, call.conversation, call.submission_id, call.tool_name, call.state, call.idempotent)


def inbox_from(cells: Cells) -> InboxRow:
    """From INBOX."""
    id_, conversation, via, body, digest, principal, consumed, at = cells
    message = InboxMessage(id=id_, conversation=conversation, via=via, body=body, digest=digest, principal=principal)
    return InboxRow(message=message, consumed=consumed, at=at)


def inbox_cells(row: InboxRow) -> Cells:
    """To INBOX."""
    message = row.message
    said = (message.via, message.body, message.digest, message.principal)
    return (message.id, message.conversation, *said, row.consumed, row.at)


def usage_cells(entry: UsageEntry) -> Cells:
    """To USAGE."""
    row, tokens = entry.usage, entry.usage.usage
    counts = (tokens.input, tokens.output, tokens.cache_read, tokens.cache_write, tokens.reasoning)
    place = (entry.attempt, entry.number, entry.conversation, entry.position)
    return (*place, row.turn_id, row.provider, row.model, *counts, entry.at)
