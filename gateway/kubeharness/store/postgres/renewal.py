"""Renewal: one statement a worker for all its attempts, on a connection of its own (I5, I14)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId
from kubeharness.engine.ports import Renewal
from kubeharness.store.postgres.database import Line
from kubeharness.store.postgres.rows import NOW_MS

# A lane that somebody has locked just now is skipped, never lost: an append extends the lease as well, and a reaper
# that takes the lane will have been seen by the next renewal. `transitions.renew`, as one statement.
RENEW = f"""
    WITH mine AS MATERIALIZED (
        SELECT attempt.id, attempt.conversation FROM attempt WHERE attempt.id = ANY($1::text[])
    ), seen AS MATERIALIZED (
        SELECT lane.attempt FROM mine JOIN lane ON lane.id = mine.conversation AND lane.attempt = mine.id
    ), locked AS MATERIALIZED (
        SELECT lane.id FROM mine JOIN lane ON lane.id = mine.conversation AND lane.attempt = mine.id
         ORDER BY lane.id FOR NO KEY UPDATE OF lane SKIP LOCKED
    ), renewed AS (
        UPDATE lane SET lease_until = {NOW_MS} + $2::bigint FROM locked WHERE lane.id = locked.id
        RETURNING lane.attempt, lane.cancel, lane.unread
    )
    SELECT seen.attempt, renewed.attempt IS NULL AS skipped, renewed.cancel, renewed.unread
      FROM seen LEFT JOIN renewed ON renewed.attempt = seen.attempt
"""

Renew = Callable[[Sequence[AttemptId]], Awaitable[Sequence[Renewal]]]


async def renew(line: Line, attempts: Sequence[AttemptId], lease_ms: int) -> list[Renewal]:
    """Extend the leases of those attempts that hold their lanes; say of each how it stands.

    An answer that takes a third of the lease is given up: the next try has a new connection and still comes in time.
    """
    if not attempts:
        return []
    try:
        async with asyncio.timeout(lease_ms / 3000), line.statement() as connection:
            rows = await connection.fetch(RENEW, attempts, lease_ms)
    except TimeoutError as error:
        raise Unavailable("the database does not answer a renewal") from error
    found = {row["attempt"]: row for row in rows}
    renewals: list[Renewal] = []
    for attempt in attempts:
        row = found.get(attempt)
        if row is None:
            renewals.append(Renewal(attempt=attempt, lost=True))
        elif row["skipped"]:
            renewals.append(Renewal(attempt=attempt, skipped=True))
        else:
            renewals.append(Renewal(attempt=attempt, cancel=row["cancel"], unread=row["unread"]))
    return renewals


@asynccontextmanager
async def renewing(line: Line, *, lease_ms: int) -> AsyncIterator[Renew]:
    """Renew over this line, in the event loop that enters: a thread of its own has one of its own."""

    async def renew_all(attempts: Sequence[AttemptId]) -> Sequence[Renewal]:
        return await renew(line, attempts, lease_ms)

    try:
        yield renew_all
    finally:
        await line.aclose()
