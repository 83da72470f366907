"""Plain reads: each is one statement, and so one snapshot."""

from collections.abc import Mapping, Sequence

from kubeharness.core.ids import ConversationId, SubmissionId
from kubeharness.core.lane import LaneState
from kubeharness.engine.ports import Loaded, Page
from kubeharness.store.backend import Found
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.rows import LANE, SETTLED, Cells, select

READ_PAGE = f"""
    SELECT lane.last_seq, lane.pruned_to, lane.state, {select(rows.RECORD, "record")}
      FROM lane
      LEFT JOIN LATERAL (
           SELECT * FROM record WHERE record.conversation = lane.id AND record.seq > $2
            ORDER BY record.seq LIMIT $3
           ) AS record ON TRUE
     WHERE lane.id = $1
"""

MOVED = """
    SELECT lane.id
      FROM unnest($1::text[], $2::bigint[]) AS watched (id, seq)
      JOIN lane ON lane.id = watched.id
     WHERE lane.last_seq > watched.seq
"""

LOAD = f"""
    SELECT {LANE},
           (SELECT array_agg(ROW({select(rows.OPEN_CALL, "open_call")}) ORDER BY number)
              FROM open_call WHERE conversation = lane.id) AS calls,
           (SELECT array_agg(ROW({select(rows.INBOX, "inbox")}) ORDER BY number)
              FROM inbox WHERE conversation = lane.id AND NOT consumed) AS inbox,
           (SELECT array_agg(ROW({select(rows.RECORD, "record")}) ORDER BY seq)
              FROM record WHERE conversation = lane.id AND seq > lane.load_seq
               AND kind NOT IN ('assistant_text_delta', 'assistant_thinking_delta')) AS records
      FROM lane WHERE lane.id = $1
"""

# The settlement is looked up for each submission: planned as a join it was once scanned whole.
SETTLEMENT_OF_SUBMISSION = f"""
    LEFT JOIN LATERAL (
         SELECT ROW({SETTLED}) AS settlement
           FROM (SELECT * FROM settlement WHERE settlement.submission = submission.id OFFSET 0) AS settlement
           JOIN record ON record.conversation = settlement.conversation AND record.seq = settlement.seq
         ) AS ending ON TRUE
"""

# The lane's columns stand apart: the driver reads no array within an anonymous row.
FOUND = f"""
    SELECT ROW({select(rows.SUBMISSION, "submission")}) AS submission,
           ROW({select(rows.CONVERSATION, "conversation")}) AS conversation,
           ending.settlement,
           {LANE}
"""

FIND = f"""
    {FOUND}
      FROM submission
      JOIN conversation ON conversation.id = submission.conversation
      JOIN lane ON lane.id = submission.conversation
      {SETTLEMENT_OF_SUBMISSION}
     WHERE submission.id = $1
"""

FIND_UNSETTLED = f"""
    {FOUND}
      FROM lane
      JOIN conversation ON conversation.id = lane.id
      JOIN submission ON submission.conversation = lane.id AND submission.position >= lane.head
      {SETTLEMENT_OF_SUBMISSION}
     WHERE lane.id = $1 AND lane.state <> 'idle' AND ending.settlement IS NULL
     ORDER BY submission.position LIMIT $2
"""

_LANE_WIDTH = len(LANE_COLUMNS)


async def page(connection: Connection, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
    """Records with a greater seq, and the lane as of the same snapshot."""
    found = await connection.fetch(READ_PAGE, conversation, after, limit)
    if not found:
        return None
    last_seq, pruned_to, state = found[0][:3]
    return Page(
        records=[rows.record_from(row[3:]) for row in found if row[3] is not None],
        last_seq=last_seq,
        pruned_to=pruned_to,
        idle=state == LaneState.IDLE,
    )


async def moved(connection: Connection, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
    """Those whose log has grown."""
    return [row[0] for row in await connection.fetch(MOVED, list(watched), list(watched.values()))]


async def load(connection: Connection, conversation: ConversationId) -> Loaded | None:
    """Lane, ledger, unread inbox, and the records that are context."""
    row = await connection.fetchrow(LOAD, conversation)
    if row is None:
        return None
    return Loaded(
        lane=rows.lane_from(row[:_LANE_WIDTH]),
        calls=[rows.call_from(cells) for cells in row["calls"] or ()],
        inbox=[rows.inbox_from(cells).message for cells in row["inbox"] or ()],
        records=[rows.record_from(cells) for cells in row["records"] or ()],
    )


async def find(connection: Connection, submission: SubmissionId) -> Found | None:
    """A submission with all that its state derives from."""
    row = await connection.fetchrow(FIND, submission)
    return _found(row) if row is not None else None


async def find_unsettled(connection: Connection, conversation: ConversationId, *, limit: int) -> Sequence[Found]:
    """From the head on, those without a settlement."""
    return [_found(row) for row in await connection.fetch(FIND_UNSETTLED, conversation, limit)]


def _found(row: Cells) -> Found:
    submission, conversation, settlement = row[:3]
    return Found(
        submission=rows.submission_from(submission),
        conversation=rows.conversation_from(conversation),
        lane=rows.lane_from(row[3:]),
        settlement=rows.settlement_from(settlement) if settlement is not None else None,
    )
