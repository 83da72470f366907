"""A writing transaction: BEGIN IMMEDIATE, so that whoever holds it holds every lane."""

import json
from collections.abc import Iterable, Sequence

from kubeharness.core.ids import AttemptId, ConversationId, RevisionId
from kubeharness.core.lane import Lane
from kubeharness.store.backend import Candidate, Holdings, Need, Side, UsageEntry, Writes
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.sqlite import rows
from kubeharness.store.sqlite.database import Connection, Row

LANES = f"SELECT {rows.LANE} FROM lane WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"

CANDIDATES = f"""
    SELECT {rows.LANE}, agent_revision.id, coalesce(agent_head.lifetime_ms, 0)
      FROM lane
      LEFT JOIN agent_head ON agent_head.uid = lane.incarnation
      JOIN agent_revision ON agent_revision.id = coalesce(lane.revision, agent_head.active)
     WHERE lane.state = 'ready' AND lane.pool = ?1
       AND (lane.failures > 0) = ?2                     -- poison work spends nobody else's budget (I10)
       AND agent_revision.format IN (SELECT value FROM json_each(?3))
     ORDER BY lane.ready_at, lane.id LIMIT ?4
"""

EXPIRED = f"SELECT {rows.LANE} FROM lane WHERE state = 'running' AND lease_until <= ? LIMIT ?"

DELAYED = f"SELECT {rows.LANE} FROM lane WHERE state = 'delayed' AND not_before <= ? ORDER BY not_before LIMIT ?"

HELD = f"SELECT {rows.LANE} FROM lane WHERE state = 'running' AND attempt IN (SELECT value FROM json_each(?))"

INSERT_USAGE = """
    INSERT INTO usage (attempt, number, conversation, position, turn_id, model, provider,
                       input, output, cache_read, cache_write, reasoning, used_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def _insert(table: str, columns: str) -> str:
    marks = ", ".join("?" for _ in columns.split(","))
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"


INSERT_LANE = _insert("lane", ", ".join(LANE_COLUMNS))
UPDATE_LANE = f"UPDATE lane SET {rows.LANE_SET} WHERE id = ?"
INSERT_CONVERSATION = _insert("conversation", rows.CONVERSATION)
INSERT_DISPATCH = _insert("dispatch", rows.DISPATCH)
INSERT_SUBMISSION = _insert("submission", rows.SUBMISSION)
INSERT_ATTEMPT = _insert("attempt", rows.ATTEMPT)
INSERT_RECORD = _insert("record", rows.RECORD)
INSERT_CALL = _insert("open_call", rows.CALL)
INSERT_INBOX = _insert("inbox", rows.INBOX)
INSERT_SETTLEMENT = _insert("settlement", rows.SETTLEMENT)


class SqliteTransaction:
    """The verbs' view of an open BEGIN IMMEDIATE. Nothing is ever locked by somebody else meanwhile."""

    def __init__(self, connection: Connection, now: int) -> None:
        self._connection = connection
        self.now = now

    async def _lanes(self, sql: str, *values: object) -> list[Lane]:
        return [rows.to_lane(row) for row in await self._connection.rows(sql, *values)]

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        """The lanes."""
        return {lane.id: lane for lane in await self._lanes(LANES, json.dumps(ids))}

    async def lock_candidates(
        self, *, pool: str, limit: int, failed: int, formats: Sequence[int], all_ready: bool
    ) -> Sequence[Candidate]:
        """Ready lanes, oldest first, with a revision that the claimer reads."""
        found: list[Row] = []
        for blamed, most in ((False, limit), (True, min(failed, limit))):
            if most > 0:
                found += await self._connection.rows(CANDIDATES, pool, blamed, json.dumps(list(formats)), most)
        candidates = [
            Candidate(lane=rows.to_lane(row), revision=RevisionId(row[rows.WIDTH]), lifetime_ms=row[rows.WIDTH + 1])
            for row in found
        ]
        candidates.sort(key=lambda candidate: (candidate.lane.ready_at, candidate.lane.id))
        return candidates[:limit]

    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        """Running lanes whose lease is over."""
        return await self._lanes(EXPIRED, self.now, limit)

    async def lock_delayed(self, limit: int) -> Sequence[Lane]:
        """Delayed lanes whose time has come."""
        return await self._lanes(DELAYED, self.now, limit)

    async def lock_held(self, attempts: Sequence[AttemptId], *, skip_locked: bool) -> Holdings:
        """What the attempts hold."""
        lanes = await self._lanes(HELD, json.dumps(list(attempts)))
        return Holdings(lanes={lane.attempt: lane for lane in lanes if lane.attempt is not None})

    # --- side rows -------------------------------------------------------------------------------------------------

    async def side(self, need: Need) -> Side:
        """Side rows, a query for each table that is asked for."""
        side = Side(calls={id_: [] for id_ in need.calls}, inbox={id_: [] for id_ in need.inbox})
        for row in await self._among(rows.CONVERSATION, "conversation", "id", need.conversations):
            conversation = rows.to_conversation(row)
            side.conversations[conversation.id] = conversation
        for row in await self._among(rows.DISPATCH, "dispatch", "submission", need.dispatches):
            dispatch = rows.to_dispatch(row)
            side.dispatches[dispatch.submission_id] = dispatch
        for row in await self._among(rows.SUBMISSION, "submission", "id", need.submissions):
            submission = rows.to_submission(row)
            side.submissions[submission.id] = submission
        await self._places(need, side)
        for row in await self._among(rows.CALL, "open_call", "conversation", need.calls, order="number"):
            call = rows.to_call(row)
            side.calls[call.conversation].append(call)
        unread = "inbox INDEXED BY inbox_unread"
        for row in await self._among(rows.INBOX, unread, "consumed = 0 AND conversation", need.inbox, order="number"):
            message = rows.to_inbox(row).message
            side.inbox[message.conversation].append(message)
        await self._messages(need, side)
        return side

    async def _among(
        self, columns: str, table: str, column: str, keys: Iterable[str], *, order: str | None = None
    ) -> list[Row]:
        wanted = list(keys)
        if not wanted:
            return []
        sql = f"SELECT {columns} FROM {table} WHERE {column} IN (SELECT value FROM json_each(?))"
        return await self._connection.rows(f"{sql} ORDER BY {order}" if order else sql, json.dumps(wanted))

    async def _places(self, need: Need, side: Side) -> None:
        if not need.positions:
            return
        sql = f"""
            SELECT {rows.SUBMISSION} FROM submission WHERE (conversation, position) IN
                   (SELECT value ->> 0, value ->> 1 FROM json_each(?))
        """
        for row in await self._connection.rows(sql, json.dumps(list(need.positions))):
            submission = rows.to_submission(row)
            side.positions[submission.conversation, submission.position] = submission

    async def _messages(self, need: Need, side: Side) -> None:
        if not need.inbox_ids:
            return
        sql = f"""
            SELECT {rows.INBOX} FROM inbox WHERE (conversation, id) IN
                   (SELECT value ->> 0, value ->> 1 FROM json_each(?))
        """
        for row in await self._connection.rows(sql, json.dumps(list(need.inbox_ids))):
            message = rows.to_inbox(row)
            side.inbox_ids[message.message.conversation, message.message.id] = message

    # --- writes ----------------------------------------------------------------------------------------------------

    async def write(self, writes: Writes) -> None:
        """Store all of it."""
        many = self._connection.many
        await many(
            "INSERT OR IGNORE INTO instance (namespace, agent, incarnation, instance) VALUES (?, ?, ?, ?)",
            [(key.namespace, key.agent, key.incarnation, key.instance) for key in writes.instances],
        )
        await many(INSERT_CONVERSATION, [rows.from_conversation(row) for row in writes.conversations])
        await many(INSERT_LANE, [rows.from_lane(lane) for lane in writes.lanes_new])
        await many(UPDATE_LANE, [(*rows.from_lane(lane)[1:], lane.id) for lane in writes.lanes])
        await many(INSERT_DISPATCH, [rows.from_dispatch(row) for row in writes.dispatches])
        await many(INSERT_SUBMISSION, [rows.from_submission(row) for row in writes.submissions])
        await many(
            "UPDATE submission SET revision = ? WHERE id = ?",
            [(pin.revision, pin.submission_id) for pin in writes.pins],
        )
        await many(INSERT_ATTEMPT, [rows.from_attempt(row) for row in writes.attempts])
        await many(INSERT_RECORD, [rows.from_record(row) for row in writes.records])
        await self._write_ledger(writes)
        await many(INSERT_INBOX, [rows.from_inbox(row) for row in writes.inbox_put])
        await many("UPDATE inbox SET consumed = 1 WHERE conversation = ? AND id = ?", writes.inbox_consumed)
        await many(INSERT_SETTLEMENT, [rows.from_settlement(row) for row in writes.settlements])
        await many(INSERT_USAGE, [_usage(entry) for entry in writes.usage])
        await many(
            "INSERT INTO outbox (conversation, kind, body, put_at) VALUES (?, ?, ?, ?)",
            [(row.conversation, row.kind, row.body, row.at) for row in writes.outbox],
        )

    async def _write_ledger(self, writes: Writes) -> None:
        many = self._connection.many
        await many(INSERT_CALL, [rows.from_call(call) for call in writes.calls_opened])
        await many(
            "UPDATE open_call SET state = ? WHERE conversation = ? AND call_id = ?",
            [(state, conversation, call_id) for conversation, call_id, state in writes.calls_changed],
        )
        await many("DELETE FROM open_call WHERE conversation = ? AND call_id = ?", writes.calls_closed)


def _usage(entry: UsageEntry) -> Row:
    spent = entry.usage
    tokens = spent.usage
    return (
        entry.attempt,
        entry.number,
        entry.conversation,
        entry.position,
        spent.turn_id,
        spent.model,
        spent.provider,
        tokens.input,
        tokens.output,
        tokens.cache_read,
        tokens.cache_write,
        tokens.reasoning,
        entry.at,
    )
