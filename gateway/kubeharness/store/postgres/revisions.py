"""Revisions, heads and acknowledgements, for whoever publishes and whoever loads: the operator takes this alone.

What a publication changes is decided by `store.heads`; here are the rows. Versions are given under the lock of the
head clock, so they are in commit order and without gaps.
"""

from collections.abc import Sequence
from typing import Any

from kubeharness.core.errors import Conflict
from kubeharness.core.ids import RevisionId
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import Acknowledgement, Component, Head, HeadWrite
from kubeharness.store import heads as rules
from kubeharness.store.heads import HeadRow, Refusal
from kubeharness.store.postgres.database import Connection, Database
from kubeharness.store.postgres.rows import NOW_MS, STARTED_MS, Cells

READ_EPOCH = "SELECT installation, epoch FROM operator_epoch {lock}"

TAKE_EPOCH = f"""
    UPDATE operator_epoch SET installation = $1, epoch = epoch + 1, taken_at = {NOW_MS} RETURNING epoch
"""

READ_CLOCK = "SELECT version FROM head_clock {lock}"
RAISE_CLOCK = "UPDATE head_clock SET version = $1"

HEAD = "uid, namespace, name, generation, desired, active, note, version, retired_at IS NOT NULL, lifetime_ms"

READ_CONCERNED = f"""
    SELECT {HEAD} FROM agent_head WHERE uid = ANY($1::text[])
     UNION
    SELECT {HEAD} FROM agent_head
     WHERE retired_at IS NULL
       AND (namespace, name) IN (SELECT * FROM unnest($2::text[], $3::text[]))
"""

READ_HEADS = f"SELECT {HEAD} FROM agent_head WHERE version > $1 ORDER BY version, namespace, name, uid"

STORE_HEADS = f"""
    INSERT INTO agent_head (uid, namespace, name, generation, desired, active, note, version, retired_at, lifetime_ms)
    SELECT uid, namespace, name, generation, desired, active, note, version,
           CASE WHEN retired THEN {NOW_MS} END, lifetime_ms
      FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::bigint[],
                  $9::boolean[], $10::bigint[])
        AS given (uid, namespace, name, generation, desired, active, note, version, retired, lifetime_ms)
        ON CONFLICT (uid) DO UPDATE
       SET namespace = excluded.namespace, name = excluded.name, generation = excluded.generation,
           desired = excluded.desired, active = excluded.active, note = excluded.note, version = excluded.version,
           retired_at = excluded.retired_at, lifetime_ms = excluded.lifetime_ms
"""

KNOWN_REVISIONS = "SELECT id FROM agent_revision WHERE id = ANY($1::text[])"

STORE_REVISION = f"""
    INSERT INTO agent_revision (id, format, body, parts, created_at)
    VALUES ($1, $2, $3, $4, {NOW_MS}) ON CONFLICT DO NOTHING
"""

STORE_PARTS = """
    INSERT INTO revision_part (digest, body) SELECT * FROM unnest($1::text[], $2::bytea[]) ON CONFLICT DO NOTHING
"""

READ_REVISION = """
    SELECT format, body,
           (SELECT array_agg(ROW(digest, part.body)) FROM revision_part AS part WHERE digest = ANY(revision.parts))
      FROM agent_revision AS revision WHERE id = $1
"""

# Those long gone are cleared away by whoever lives; a row that another clears just now is left to it.
BEAT = f"""
    WITH gone AS (
        DELETE FROM component WHERE id IN (
            SELECT id FROM component WHERE beat_at < {STARTED_MS} - $7::bigint AND id <> $1 FOR UPDATE SKIP LOCKED)
        RETURNING id
    ), silenced AS (
        DELETE FROM component_refusal USING gone WHERE component_refusal.component = gone.id
    )
    INSERT INTO component (id, role, pool, formats, applied, draining, release, beat_at)
    VALUES ($1, $2, $3, $4, $5, $6, $8, {NOW_MS})
        ON CONFLICT (id) DO UPDATE
       SET role = excluded.role, pool = excluded.pool, formats = excluded.formats, applied = excluded.applied,
           draining = excluded.draining, release = excluded.release, beat_at = excluded.beat_at
"""

REFUSE = f"""
    INSERT INTO component_refusal (component, revision, message, refused_at) VALUES ($1, $2, $3, {NOW_MS})
        ON CONFLICT (component, revision) DO UPDATE
       SET message = excluded.message, refused_at = excluded.refused_at
"""

READ_ACKNOWLEDGED = f"""
    SELECT (SELECT array_agg(ROW(id, role, pool, applied, draining, release))
              FROM component WHERE beat_at > {STARTED_MS} - $2::bigint),
           (SELECT array_agg(ROW(component, revision, message)) FROM component_refusal),
           (SELECT array_agg(ROW({HEAD})) FROM agent_head WHERE version = $1)
"""

LOCK = "FOR NO KEY UPDATE"


class Publisher:
    """The configuration verbs of the store, over one database and nothing else."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def epoch(self, installation: str) -> int:
        """Take over as publisher; a foreign installation: Conflict."""

        async def take(connection: Connection) -> int:
            row = await connection.fetchrow(READ_EPOCH.format(lock=LOCK))
            stored = row["installation"] if row else None
            return int(await connection.fetchval(TAKE_EPOCH, rules.bound(installation, stored)))

        return await self._database.run(take)

    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction; a publication that changes nothing takes no lock."""

        async def publish(connection: Connection) -> int:
            clock, changed, new = await _publication(connection, epoch, heads, lock="")
            if not changed and not new:
                return clock
            clock, changed, new = await _publication(connection, epoch, heads, lock=LOCK)
            for revision in new:
                await _store_revision(connection, revision)
            return await _store_heads(connection, clock, changed)

        return await self._database.run(publish)

    async def retire(self, epoch: int, uids: Sequence[str]) -> int:
        """Take heads out of service; runs that began before still find their revision."""

        async def retire(connection: Connection) -> int:
            clock = await _fenced_clock(connection, epoch, lock=LOCK)
            found = await connection.fetch(READ_CONCERNED, uids, [], [])
            return await _store_heads(connection, clock, rules.retired([_head_row(row) for row in found], clock=clock))

        return await self._database.run(retire)

    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock, in its order."""
        async with self._database.read() as connection:
            return [_head_row(row).head for row in await connection.fetch(READ_HEADS, after)]

    async def head_clock(self) -> int:
        """The version of the last publication that changed something."""
        async with self._database.read() as connection:
            return int(await connection.fetchval(READ_CLOCK.format(lock="")))

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """A revision with its parts."""
        async with self._database.read() as connection:
            row = await connection.fetchrow(READ_REVISION, revision)
        if row is None:
            return None
        format_, body, parts = row
        return StoredRevision(id=revision, format=format_, body=body, parts=dict(parts or ()))

    async def beat(self, component: Component) -> None:
        """A process lives, and has loaded this much."""
        c = component
        said = (c.id, c.role, c.pool, list(c.formats), c.applied, c.draining)
        async with self._database.transaction() as connection:
            await connection.execute(BEAT, *said, rules.FORGOTTEN_MS, c.release)

    async def refuse(self, component: str, revision: RevisionId, message: str) -> None:
        """A process could not load a revision."""
        async with self._database.transaction() as connection:
            await connection.execute(REFUSE, component, revision, message)

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        """Who has loaded a head version, in one query."""
        async with self._database.read() as connection:
            row = await connection.fetchrow(READ_ACKNOWLEDGED, version, rules.LIVE_MS)
        live, refusals, of_version = row or (None, None, None)
        return rules.acknowledged(
            [_component(cells) for cells in live or ()],
            [Refusal(component=c, revision=r, message=m) for c, r, m in refusals or ()],
            [_head_row(cells).head for cells in of_version or ()],
            version=version,
            pool=pool,
        )


async def _fenced_clock(connection: Connection, epoch: int, *, lock: str) -> int:
    """The head clock, if `epoch` still publishes. The epoch's row comes first: so do all who lock both."""
    row = await connection.fetchrow(READ_EPOCH.format(lock=lock))
    rules.fenced(epoch, row["epoch"] if row else 0)
    return int(await connection.fetchval(READ_CLOCK.format(lock=lock)))


async def _publication(
    connection: Connection, epoch: int, writes: Sequence[HeadWrite], *, lock: str
) -> tuple[int, list[HeadRow], list[StoredRevision]]:
    """The clock, the heads that change and the revisions that are new. Raises Conflict."""
    clock = await _fenced_clock(connection, epoch, lock=lock)
    given = {write.revision.id: write.revision for write in writes if write.revision is not None}
    wanted = {write.desired for write in writes if write.desired is not None}
    known = {row[0] for row in await connection.fetch(KNOWN_REVISIONS, list(given.keys() | wanted))}
    for desired in sorted(wanted - known - given.keys()):
        raise Conflict(f"revision {desired} is neither given nor stored")
    stored = await connection.fetch(
        READ_CONCERNED,
        [write.uid for write in writes],
        [write.namespace for write in writes],
        [write.name for write in writes],
    )
    changed = rules.published([_head_row(row) for row in stored], writes, clock=clock)
    return clock, changed, [revision for id_, revision in given.items() if id_ not in known]


async def _store_revision(connection: Connection, revision: StoredRevision) -> None:
    parts = sorted(revision.parts)
    await connection.execute(STORE_PARTS, parts, [revision.parts[digest] for digest in parts])
    await connection.execute(STORE_REVISION, revision.id, revision.format, revision.body, parts)


async def _store_heads(connection: Connection, clock: int, changed: Sequence[HeadRow]) -> int:
    """Write heads and raise the clock to the version that they carry; returns the clock."""
    if not changed:
        return clock
    retired_first = sorted(changed, key=lambda row: (not row.head.retired, row.head.uid))  # a name is free, then taken
    columns = [list(column) for column in zip(*map(_head_cells, retired_first), strict=True)]
    await connection.execute(STORE_HEADS, *columns)
    await connection.execute(RAISE_CLOCK, clock + 1)
    return clock + 1


def _head_row(cells: Cells) -> HeadRow:
    uid, namespace, name, generation, desired, active, note, version, retired, lifetime_ms = cells
    head = Head(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=generation,
        desired=desired,
        active=active,
        note=note,
        version=version,
        retired=retired,
    )
    return HeadRow(head=head, lifetime_ms=lifetime_ms)


def _head_cells(row: HeadRow) -> Sequence[Any]:
    h = row.head
    names = (h.uid, h.namespace, h.name)
    return (*names, h.generation, h.desired, h.active, h.note, h.version, h.retired, row.lifetime_ms)


def _component(cells: Cells) -> Component:
    # without its formats: nobody asks, and the driver reads no array within an anonymous row
    id_, role, pool, applied, draining, release = cells
    return Component(id=id_, role=role, pool=pool, formats=(), applied=applied, draining=draining, release=release)
