"""Plain reads on a connection of their own, each one snapshot; and the walks of `verify`."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TypeVar

from kubeharness.core.ids import ConversationId, SubmissionId
from kubeharness.core.lane import Lane, LaneState, OpenCall
from kubeharness.core.records import Kind
from kubeharness.engine.ports import Loaded, Page
from kubeharness.store.backend import (
    AttemptRow,
    ConversationRow,
    DispatchRow,
    Found,
    InboxRow,
    RecordRow,
    SettlementRow,
    SubmissionRow,
)
from kubeharness.store.sqlite import rows
from kubeharness.store.sqlite.database import Connection, Row

T = TypeVar("T")

LANE = f"SELECT {rows.LANE} FROM lane WHERE id = ?"
PAGE = f"SELECT {rows.RECORD} FROM record WHERE conversation = ? AND seq > ? ORDER BY seq LIMIT ?"
CONTEXT = f"""
    SELECT {rows.RECORD} FROM record WHERE conversation = ? AND seq > ?
       AND kind NOT IN ('{Kind.ASSISTANT_TEXT_DELTA}', '{Kind.ASSISTANT_THINKING_DELTA}') ORDER BY seq
"""
CALLS = f"SELECT {rows.CALL} FROM open_call WHERE conversation = ? ORDER BY number"
UNREAD = f"SELECT {rows.INBOX} FROM inbox WHERE conversation = ? AND consumed = 0 ORDER BY number"
SUBMISSION = f"SELECT {rows.SUBMISSION} FROM submission WHERE id = ?"
UNSETTLED = f"""
    SELECT {rows.SUBMISSION} FROM submission WHERE conversation = ? AND position >= ?
       AND NOT EXISTS (SELECT 1 FROM settlement WHERE settlement.submission = submission.id)
     ORDER BY position LIMIT ?
"""
CONVERSATION = f"SELECT {rows.CONVERSATION} FROM conversation WHERE id = ?"
SETTLEMENT = f"SELECT {rows.SETTLEMENT} FROM settlement WHERE submission = ?"
MOVED = """
    SELECT lane.id FROM json_each(?) AS watched JOIN lane ON lane.id = watched.key
     WHERE lane.last_seq > watched.value
"""


class SqliteReads:
    """The reading half of the backend."""

    def __init__(self, connection: Connection) -> None:
        self._reader = connection

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq, with the lane of the same snapshot."""
        async with self._reader.transaction("BEGIN") as reader:
            row = await reader.row(LANE, conversation)
            if row is None:
                return None
            lane = rows.to_lane(row)
            found = await reader.rows(PAGE, conversation, after, limit)
        return Page(
            records=[rows.to_record(row).record for row in found],
            last_seq=lane.last_seq,
            pruned_to=lane.pruned_to,
            idle=lane.state is LaneState.IDLE,
        )

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose log has grown."""
        async with self._reader.transaction("BEGIN") as reader:
            return [row[0] for row in await reader.rows(MOVED, json.dumps(watched))]

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """What an attempt starts from."""
        async with self._reader.transaction("BEGIN") as reader:
            row = await reader.row(LANE, conversation)
            if row is None:
                return None
            lane = rows.to_lane(row)
            records = await reader.rows(CONTEXT, conversation, lane.load_seq)
            calls = await reader.rows(CALLS, conversation)
            inbox = await reader.rows(UNREAD, conversation)
        return Loaded(
            records=[rows.to_record(row).record for row in records],
            calls=[rows.to_call(row) for row in calls],
            inbox=[rows.to_inbox(row).message for row in inbox],
            lane=lane,
        )

    async def find(self, submission: SubmissionId) -> Found | None:
        """A submission with all that its state derives from."""
        async with self._reader.transaction("BEGIN") as reader:
            row = await reader.row(SUBMISSION, submission)
            return await self._found(reader, rows.to_submission(row)) if row else None

    async def find_unsettled(self, conversation: ConversationId, *, limit: int) -> Sequence[Found]:
        """From the head on, those without a settlement."""
        async with self._reader.transaction("BEGIN") as reader:
            row = await reader.row(LANE, conversation)
            if row is None or (lane := rows.to_lane(row)).state is LaneState.IDLE:
                return []
            found = await reader.rows(UNSETTLED, conversation, lane.head, limit)
            return [await self._found(reader, rows.to_submission(row)) for row in found]

    async def _found(self, reader: Connection, submission: SubmissionRow) -> Found:
        conversation = await reader.row(CONVERSATION, submission.conversation)
        lane = await reader.row(LANE, submission.conversation)
        settlement = await reader.row(SETTLEMENT, submission.id)
        assert conversation is not None  # one transaction wrote all three
        assert lane is not None
        return Found(
            submission=submission,
            conversation=rows.to_conversation(conversation),
            lane=rows.to_lane(lane),
            settlement=rows.to_settlement(settlement) if settlement else None,
        )


class SqliteSnapshot:
    """Everything, as of one BEGIN on a connection of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _walk(self, sql: str, decode: Callable[[Row], T]) -> AsyncIterator[T]:
        async for row in self._connection.walk(sql):
            yield decode(row)

    def conversations(self) -> AsyncIterator[ConversationRow]:
        """By id."""
        return self._walk(f"SELECT {rows.CONVERSATION} FROM conversation ORDER BY id", rows.to_conversation)

    def lanes(self) -> AsyncIterator[Lane]:
        """By id."""
        return self._walk(f"SELECT {rows.LANE} FROM lane ORDER BY id", rows.to_lane)

    def submissions(self) -> AsyncIterator[SubmissionRow]:
        """By conversation and position."""
        sql = f"SELECT {rows.SUBMISSION} FROM submission ORDER BY conversation, position"
        return self._walk(sql, rows.to_submission)

    def settlements(self) -> AsyncIterator[SettlementRow]:
        """By conversation and position."""
        sql = f"SELECT {rows.SETTLEMENT} FROM settlement ORDER BY conversation, position"
        return self._walk(sql, rows.to_settlement)

    def attempts(self) -> AsyncIterator[AttemptRow]:
        """By conversation, position and claim."""
        sql = f"SELECT {rows.ATTEMPT} FROM attempt ORDER BY conversation, position, claim"
        return self._walk(sql, rows.to_attempt)

    def dispatches(self) -> AsyncIterator[DispatchRow]:
        """By conversation and submission."""
        sql = f"SELECT {rows.DISPATCH} FROM dispatch ORDER BY conversation, submission"
        return self._walk(sql, rows.to_dispatch)

    def records(self) -> AsyncIterator[RecordRow]:
        """By conversation and seq."""
        return self._walk(f"SELECT {rows.RECORD} FROM record ORDER BY conversation, seq", rows.to_record)

    def calls(self) -> AsyncIterator[OpenCall]:
        """By conversation, as opened."""
        return self._walk(f"SELECT {rows.CALL} FROM open_call ORDER BY conversation, number", rows.to_call)

    def inbox(self) -> AsyncIterator[InboxRow]:
        """By conversation, as put."""
        return self._walk(f"SELECT {rows.INBOX} FROM inbox ORDER BY conversation, number", rows.to_inbox)
