"""Side rows: whatever a verb asks for once it holds its lanes, in one statement that begins after the lock."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from kubeharness.store.backend import Need, Side
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.rows import select

# Each part gives an array of rows, so that all parts together are one row.

CONVERSATIONS = f"""
    SELECT array_agg(ROW({select(rows.CONVERSATION, "conversation")}))
      FROM conversation WHERE id = ANY({{0}}::text[])
"""
DISPATCHES = f"""
    SELECT array_agg(ROW({select(rows.DISPATCH, "dispatch")}))
      FROM dispatch WHERE submission = ANY({{0}}::text[])
"""
SUBMISSIONS = f"""
    SELECT array_agg(ROW({select(rows.SUBMISSION, "submission")}))
      FROM submission WHERE id = ANY({{0}}::text[])
"""
POSITIONS = f"""
    SELECT array_agg(ROW({select(rows.SUBMISSION, "submission")}))
      FROM unnest({{0}}::text[], {{1}}::bigint[]) AS place (conversation, position)
      JOIN submission ON submission.conversation = place.conversation AND submission.position = place.position
"""
CALLS = f"""
    SELECT array_agg(ROW({select(rows.OPEN_CALL, "open_call")}) ORDER BY number)
      FROM open_call WHERE conversation = ANY({{0}}::text[])
"""
INBOX = f"""
    SELECT array_agg(ROW({select(rows.INBOX, "inbox")}) ORDER BY number)
      FROM inbox WHERE conversation = ANY({{0}}::text[]) AND NOT consumed
"""
INBOX_IDS = f"""
    SELECT array_agg(ROW({select(rows.INBOX, "inbox")}))
      FROM unnest({{0}}::text[], {{1}}::text[]) AS wanted (conversation, id)
      JOIN inbox ON inbox.conversation = wanted.conversation AND inbox.id = wanted.id
"""

PARTS = {
    "conversations": (CONVERSATIONS, 1),
    "dispatches": (DISPATCHES, 1),
    "submissions": (SUBMISSIONS, 1),
    "positions": (POSITIONS, 2),
    "calls": (CALLS, 1),
    "inbox": (INBOX, 1),
    "inbox_ids": (INBOX_IDS, 2),
}
"""A set of `Need` → its text and how many arrays it takes."""


@cache
def statement(parts: Sequence[str]) -> str:
    """The text for these sets."""
    texts: list[str] = []
    parameter = 1
    for part in parts:
        text, arrays = PARTS[part]
        texts.append("(" + text.format(*(f"${parameter + n}" for n in range(arrays))) + ")")
        parameter += arrays
    return "SELECT " + ", ".join(texts)


async def completed(connection: Connection, need: Need, have: Side) -> Side:
    """Answer a need of which some rows are there already; asks nothing if all are."""
    need.conversations -= have.conversations.keys()
    need.dispatches -= have.dispatches.keys()
    need.positions -= have.positions.keys()
    if not need:
        return have
    side = await side_rows(connection, need)
    side.conversations.update(have.conversations)
    side.dispatches.update(have.dispatches)
    side.positions.update(have.positions)
    return side


async def side_rows(connection: Connection, need: Need) -> Side:
    """Answer a need."""
    parts = tuple(part for part in PARTS if getattr(need, part))
    values: list[Any] = []
    for part in parts:
        wanted = list(getattr(need, part))
        values += [wanted] if PARTS[part][1] == 1 else [list(column) for column in zip(*wanted, strict=True)]
    row = await connection.fetchrow(statement(parts), *values)
    found = dict(zip(parts, row or (), strict=True))
    side = Side(
        conversations={r.id: r for r in map(rows.conversation_from, found.get("conversations") or ())},
        dispatches={r.submission_id: r for r in map(rows.dispatch_from, found.get("dispatches") or ())},
        submissions={r.id: r for r in map(rows.submission_from, found.get("submissions") or ())},
        positions={(r.conversation, r.position): r for r in map(rows.submission_from, found.get("positions") or ())},
        inbox_ids={
            (r.message.conversation, r.message.id): r for r in map(rows.inbox_from, found.get("inbox_ids") or ())
        },
        calls={id_: [] for id_ in need.calls},
        inbox={id_: [] for id_ in need.inbox},
    )
    for call in map(rows.call_from, found.get("calls") or ()):
        side.calls[call.conversation].append(call)
    for message in map(rows.inbox_from, found.get("inbox") or ()):
        side.inbox[message.message.conversation].append(message.message)
    return side
