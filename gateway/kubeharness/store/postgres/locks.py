"""How lanes are locked and read: one round trip each, with the clock as it is once the lock is held (I4).

The lock is a materialised CTE over the lanes in id order, and all else reads from it. Side rows are never joined
here: they would be as old as the statement, which may have waited (I7).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from kubeharness.core.ids import AttemptId, ConversationId, SubmissionId
from kubeharness.core.lane import Lane
from kubeharness.store.backend import Candidate, DispatchRow, Holdings, Side
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.rows import LANE, NOW_MS, STARTED_MS, lane_from, select

LOCKED = select(LANE_COLUMNS, "locked")

LOCK_LANES = f"""
    WITH locked AS MATERIALIZED (
        SELECT {LANE} FROM lane WHERE lane.id = ANY($1::text[]) ORDER BY lane.id FOR NO KEY UPDATE
    )
    SELECT {NOW_MS}, {LOCKED} FROM (SELECT 1) AS one LEFT JOIN locked ON TRUE
"""

# The same without a lock, with the version of each row and the dispatches that admissions ask for: one snapshot.
READ_LANES = f"""
    SELECT {NOW_MS},
           (SELECT array_agg(ROW({select(rows.DISPATCH, "dispatch")}))
              FROM dispatch WHERE dispatch.submission = ANY($2::text[])) AS dispatches,
           seen.version, {select(LANE_COLUMNS, "seen")}
      FROM (SELECT 1) AS one
      LEFT JOIN (SELECT lane.xmin AS version, {LANE} FROM lane WHERE lane.id = ANY($1::text[])) AS seen ON TRUE
"""

# The bound trails the oldest ready lane: it spares the scan what is dead in the index while some snapshot is held.
# Poison is another scan, with a limit of its own (I10). What no revision can run is passed over here (I14).
# Conversation and head are immutable, so they may come with the lock; a head that this statement's snapshot does not
# have yet, because the lane was waited for, is NULL, and is read by the next statement.
LOCK_CANDIDATES = f"""
    WITH fresh AS MATERIALIZED (
        SELECT {LANE}, revision.id AS runs, head.lifetime_ms
          FROM lane
          JOIN agent_head AS head ON head.uid = lane.incarnation
          JOIN agent_revision AS revision ON revision.id = coalesce(lane.revision, head.active)
         WHERE lane.state = 'ready' AND lane.failures = 0 AND lane.pool = $1 AND lane.ready_at >= $5
           AND revision.format = ANY($2::integer[])
         ORDER BY lane.ready_at LIMIT $3 FOR NO KEY UPDATE OF lane SKIP LOCKED
    ), blamed AS MATERIALIZED (
        SELECT {LANE}, revision.id AS runs, head.lifetime_ms
          FROM lane
          JOIN agent_head AS head ON head.uid = lane.incarnation
          JOIN agent_revision AS revision ON revision.id = coalesce(lane.revision, head.active)
         WHERE lane.state = 'ready' AND lane.failures > 0 AND lane.pool = $1
           AND revision.format = ANY($2::integer[])
         ORDER BY lane.ready_at LIMIT $4 FOR NO KEY UPDATE OF lane SKIP LOCKED
    ), locked AS (
        SELECT * FROM fresh UNION ALL SELECT * FROM blamed
    )
    SELECT {NOW_MS}, {LOCKED}, locked.runs, locked.lifetime_ms, {select(rows.CONVERSATION, "conversation")},
           {select(rows.SUBMISSION, "submission")}
      FROM (SELECT 1) AS one
      LEFT JOIN locked ON TRUE
      LEFT JOIN conversation ON conversation.id = locked.id
      LEFT JOIN submission ON submission.conversation = locked.id AND submission.position = locked.head
"""

LOCK_EXPIRED = f"""
    WITH locked AS MATERIALIZED (
        SELECT {LANE} FROM lane
         WHERE lane.state = 'running' AND lane.lease_until <= {STARTED_MS}
         ORDER BY lane.id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT {NOW_MS}, {LOCKED} FROM (SELECT 1) AS one LEFT JOIN locked ON TRUE
"""

LOCK_DELAYED = f"""
    WITH locked AS MATERIALIZED (
        SELECT {LANE} FROM lane
         WHERE lane.state = 'delayed' AND lane.not_before <= {STARTED_MS}
         ORDER BY lane.not_before LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT {NOW_MS}, {LOCKED} FROM (SELECT 1) AS one LEFT JOIN locked ON TRUE
"""

# `seen` are those that held their lane when the statement began: held and not locked means that somebody else did.
LOCK_HELD = f"""
    WITH mine AS MATERIALIZED (
        SELECT attempt.id, attempt.conversation FROM attempt WHERE attempt.id = ANY($1::text[])
    ), seen AS MATERIALIZED (
        SELECT lane.attempt FROM mine JOIN lane ON lane.id = mine.conversation AND lane.attempt = mine.id
    ), locked AS MATERIALIZED (
        SELECT {LANE} FROM mine JOIN lane ON lane.id = mine.conversation AND lane.attempt = mine.id
         ORDER BY lane.id FOR NO KEY UPDATE OF lane {{skip}}
    )
    SELECT {NOW_MS}, {LOCKED}, (SELECT array_agg(seen.attempt) FROM seen) AS seen
      FROM (SELECT 1) AS one LEFT JOIN locked ON TRUE
"""
LOCK_HELD_WAITING = LOCK_HELD.format(skip="")
LOCK_HELD_SKIPPING = LOCK_HELD.format(skip="SKIP LOCKED")

_WIDTH = len(LANE_COLUMNS) + 1
_CONVERSATION = _WIDTH + 2
_HEAD = _CONVERSATION + len(rows.CONVERSATION)
_TRAIL_MS = 1500


class Locked:
    """Locked rows, and the clock after the last of them was locked."""

    def __init__(self, found: Sequence[asyncpg.Record]) -> None:
        self.now: int = max(row[0] for row in found)
        self.rows = [row for row in found if row[1] is not None]
        self.lanes = [lane_from(row[1:_WIDTH]) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Read:
    """Lanes as they were at one moment, with their versions."""

    now: int
    lanes: list[tuple[Lane, int]]
    dispatches: dict[SubmissionId, DispatchRow]


async def read_lanes(connection: Connection, ids: Sequence[ConversationId], dispatches: Sequence[SubmissionId]) -> Read:
    """Read these lanes, and the dispatches that are known of these, without locking."""
    found = await connection.fetch(READ_LANES, ids, dispatches)
    return Read(
        now=found[0][0],
        lanes=[(lane_from(row[3:]), row[2]) for row in found if row[2] is not None],
        dispatches={row.submission_id: row for row in map(rows.dispatch_from, found[0][1] or ())},
    )


class LowWater:
    """How far back the scan of a pool looks: a little before the oldest lane that it last found ready.

    What commits later than that with an older time is found by the next scan without the bound.
    """

    def __init__(self) -> None:
        self._bounds: dict[str, int] = {}

    def bound(self, pool: str, *, all_ready: bool) -> int:
        """Where to begin."""
        return 0 if all_ready else self._bounds.get(pool, 0)

    def learn(self, pool: str, locked: Locked, *, limit: int) -> None:
        """Raise the bound after a scan; one that found less than it may take has taken all there was."""
        fresh = [lane.ready_at for lane in locked.lanes if lane.counters.failures == 0]
        oldest = min(fresh) if len(fresh) >= limit else locked.now
        self._bounds[pool] = max(self._bounds.get(pool, 0), oldest - _TRAIL_MS)


async def lock_lanes(connection: Connection, ids: Sequence[ConversationId]) -> Locked:
    """Lock these lanes in id order, waiting for each."""
    return Locked(await connection.fetch(LOCK_LANES, ids))


async def lock_candidates(
    connection: Connection,
    low: LowWater,
    *,
    pool: str,
    limit: int,
    failed: int,
    formats: Sequence[int],
    all_ready: bool,
) -> tuple[Locked, list[Candidate], Side]:
    """Lock ready lanes, the oldest first, at most `failed` with earlier failures; and read what they are about."""
    bound = low.bound(pool, all_ready=all_ready)
    locked = Locked(await connection.fetch(LOCK_CANDIDATES, pool, formats, limit, min(failed, limit), bound))
    low.learn(pool, locked, limit=limit)
    found = [
        Candidate(lane=lane, revision=row[_WIDTH], lifetime_ms=row[_WIDTH + 1])
        for lane, row in zip(locked.lanes, locked.rows, strict=True)
    ]
    found.sort(key=lambda candidate: (candidate.lane.ready_at, candidate.lane.id))
    side = Side()
    for row in locked.rows:
        if row[_CONVERSATION] is not None and row[_HEAD] is not None:
            conversation = rows.conversation_from(row[_CONVERSATION:_HEAD])
            head = rows.submission_from(row[_HEAD:])
            side.conversations[conversation.id] = conversation
            side.positions[head.conversation, head.position] = head
    return locked, found[:limit], side


async def lock_expired(connection: Connection, limit: int) -> Locked:
    """Lock running lanes whose lease is over."""
    return Locked(await connection.fetch(LOCK_EXPIRED, limit))


async def lock_delayed(connection: Connection, limit: int) -> Locked:
    """Lock delayed lanes whose time has come."""
    return Locked(await connection.fetch(LOCK_DELAYED, limit))


async def lock_held(
    connection: Connection, attempts: Sequence[AttemptId], *, skip_locked: bool
) -> tuple[Locked, Holdings]:
    """Lock what these attempts hold."""
    answer = await connection.fetch(LOCK_HELD_SKIPPING if skip_locked else LOCK_HELD_WAITING, attempts)
    locked = Locked(answer)
    lanes = {lane.attempt: lane for lane in locked.lanes if lane.attempt is not None}
    seen = frozenset(answer[0]["seen"] or ())
    return locked, Holdings(lanes=lanes, skipped=seen - lanes.keys())
