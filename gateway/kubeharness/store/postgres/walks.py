"""Everything, read in order within one snapshot, for `verify`: by cursors, a batch of rows in memory at a time."""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from kubeharness.core.lane import Lane, OpenCall
from kubeharness.store.backend import (
    AttemptRow,
    ConversationRow,
    DispatchRow,
    InboxRow,
    RecordRow,
    SettlementRow,
    SubmissionRow,
)
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection, translated
from kubeharness.store.postgres.rows import LANE, SETTLED, Cells, select

T = TypeVar("T")
BATCH = 500

CONVERSATIONS = f"SELECT {select(rows.CONVERSATION, 'conversation')} FROM conversation ORDER BY id"
LANES = f"SELECT {LANE} FROM lane ORDER BY id"
SUBMISSIONS = f"SELECT {select(rows.SUBMISSION, 'submission')} FROM submission ORDER BY conversation, position"
SETTLEMENTS = f"""
    SELECT {SETTLED}
      FROM settlement
      JOIN record ON record.conversation = settlement.conversation AND record.seq = settlement.seq
     ORDER BY settlement.conversation, settlement.position
"""
ATTEMPTS = f"SELECT {select(rows.ATTEMPT, 'attempt')} FROM attempt ORDER BY conversation, position, claim"
DISPATCHES = f"SELECT {select(rows.DISPATCH, 'dispatch')} FROM dispatch ORDER BY conversation, submission"
RECORDS = f"SELECT {select(rows.LOG_ROW, 'record')} FROM record ORDER BY conversation, seq"
CALLS = f"SELECT {select(rows.OPEN_CALL, 'open_call')} FROM open_call ORDER BY conversation, number"
INBOX = f"SELECT {select(rows.INBOX, 'inbox')} FROM inbox ORDER BY conversation, number"


class PostgresSnapshot:
    """A transaction that sees one state of the database, however long it takes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def conversations(self) -> AsyncIterator[ConversationRow]:
        """By id."""
        return self._walk(CONVERSATIONS, rows.conversation_from)

    def lanes(self) -> AsyncIterator[Lane]:
        """By id."""
        return self._walk(LANES, rows.lane_from)

    def submissions(self) -> AsyncIterator[SubmissionRow]:
        """By conversation and position."""
        return self._walk(SUBMISSIONS, rows.submission_from)

    def settlements(self) -> AsyncIterator[SettlementRow]:
        """By conversation and position."""
        return self._walk(SETTLEMENTS, rows.settlement_from)

    def attempts(self) -> AsyncIterator[AttemptRow]:
        """By conversation, position and claim."""
        return self._walk(ATTEMPTS, rows.attempt_from)

    def dispatches(self) -> AsyncIterator[DispatchRow]:
        """By conversation and submission."""
        return self._walk(DISPATCHES, rows.dispatch_from)

    def records(self) -> AsyncIterator[RecordRow]:
        """By conversation and seq."""
        return self._walk(RECORDS, rows.log_row_from)

    def calls(self) -> AsyncIterator[OpenCall]:
        """By conversation, as opened."""
        return self._walk(CALLS, rows.call_from)

    def inbox(self) -> AsyncIterator[InboxRow]:
        """By conversation, as put."""
        return self._walk(INBOX, rows.inbox_from)

    async def _walk(self, query: str, make: Callable[[Cells], T]) -> AsyncIterator[T]:
        with translated():
            cursor = await self._connection.cursor(query)
            while batch := await cursor.fetch(BATCH):
                for row in batch:
                    yield make(row)
