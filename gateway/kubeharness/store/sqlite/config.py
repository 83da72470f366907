"""Configuration on SQLite: heads, revisions, components, checks. `store.heads` and `store.checks` decide."""

import json
from collections.abc import Callable, Sequence
from typing import cast

from kubeharness.core.codec import loads, part_digests
from kubeharness.core.errors import Conflict
from kubeharness.core.ids import RevisionId
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import (
    Acknowledgement,
    CheckLease,
    CheckPut,
    CheckResult,
    Component,
    Head,
    HeadWrite,
)
from kubeharness.store import checks, heads
from kubeharness.store.checks import CheckRow
from kubeharness.store.heads import HeadRow, Refusal
from kubeharness.store.sqlite.database import Connection, Row
from kubeharness.store.sqlite.rows import to_text

HEAD = "uid, namespace, name, generation, desired, active, note, version, retired, lifetime_ms"
CHECK = (
    "kind, namespace, name, uid, digest, payload, interval_ms, due, owner, lease_until, failures, done, ok, reason, "
    "message, result, version"
)
PUT_HEAD = f"INSERT OR REPLACE INTO agent_head ({HEAD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
PUT_CHECK = f'INSERT OR REPLACE INTO "check" ({CHECK}) VALUES ({", ".join("?" for _ in CHECK.split(","))})'
PUT_COMPONENT = """
    INSERT OR REPLACE INTO component (id, role, pool, formats, applied, draining, release, beat_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
CHECK_BY_KEY = f'SELECT {CHECK} FROM "check" WHERE (kind, namespace, name) = (?, ?, ?)'


class SqliteConfiguration:
    """Configuration verbs. A verb that writes holds the one writing transaction, so it needs no row lock."""

    def __init__(self, writer: Connection, reader: Connection, clock: Callable[[], int]) -> None:
        self._writer = writer
        self._reader = reader
        self.clock = clock

    # --- heads -----------------------------------------------------------------------------------------------------

    async def epoch(self, installation: str) -> int:
        """Take over as publisher."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            row = await tx.row("SELECT installation, epoch FROM operator_epoch")
            stored, epoch = row or (None, 0)
            bound = heads.bound(installation, stored)
            await tx.run("UPDATE operator_epoch SET installation = ?, epoch = ?", bound, epoch + 1)
        return int(epoch) + 1

    async def publish(self, epoch: int, heads_: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            clock = await _fenced(tx, epoch)
            for write in heads_:
                if write.revision is not None:
                    await _put_revision(tx, write.revision)
            await _check_desired(tx, heads_)
            stored = await _heads(tx, heads_)
            return await _put_heads(tx, heads.published(stored, heads_, clock=clock), clock)

    async def retire(self, epoch: int, uids: Sequence[str]) -> int:
        """Take heads out of service."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            clock = await _fenced(tx, epoch)
            sql = f"SELECT {HEAD} FROM agent_head WHERE uid IN (SELECT value FROM json_each(?))"
            stored = [_head(row) for row in await tx.rows(sql, json.dumps(list(uids)))]
            return await _put_heads(tx, heads.retired(stored, clock=clock), clock)

    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock."""
        sql = f"SELECT {HEAD} FROM agent_head WHERE version > ? ORDER BY version, namespace, name, uid"
        async with self._reader.transaction("BEGIN") as tx:
            return [_head(row).head for row in await tx.rows(sql, after)]

    async def head_clock(self) -> int:
        """The version of the last publication that changed something."""
        async with self._reader.transaction("BEGIN") as tx:
            row = await tx.row("SELECT head_clock FROM operator_epoch")
        return int(row[0]) if row else 0

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """A revision with its parts."""
        async with self._reader.transaction("BEGIN") as tx:
            row = await tx.row("SELECT format, body FROM agent_revision WHERE id = ?", revision)
            if row is None:
                return None
            format_, body = row
            sql = "SELECT digest, body FROM revision_part WHERE digest IN (SELECT value FROM json_each(?))"
            parts = await tx.rows(sql, json.dumps(part_digests(body)))
        return StoredRevision(id=revision, format=format_, body=body, parts=dict(parts))

    # --- components ------------------------------------------------------------------------------------------------

    async def beat(self, component: Component) -> None:
        """A process lives."""
        now = self.clock()
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            await tx.run(
                PUT_COMPONENT,
                component.id,
                component.role,
                component.pool,
                json.dumps(list(component.formats)),
                component.applied,
                component.draining,
                component.release,
                now,
            )
            await tx.run("DELETE FROM component WHERE beat_at < ?", now - heads.FORGOTTEN_MS)

    async def refuse(self, component: str, revision: RevisionId, message: str) -> None:
        """A process could not load a revision."""
        sql = "INSERT OR REPLACE INTO component_refusal (component, revision, message) VALUES (?, ?, ?)"
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            await tx.run(sql, component, revision, message)

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        """Who has loaded a head version."""
        live = "SELECT id, role, pool, formats, applied, draining, release FROM component WHERE beat_at > ?"
        async with self._reader.transaction("BEGIN") as tx:
            components = [_component(row) for row in await tx.rows(live, self.clock() - heads.LIVE_MS)]
            refusals = [
                Refusal(component=row[0], revision=row[1], message=row[2])
                for row in await tx.rows("SELECT component, revision, message FROM component_refusal")
            ]
            of_version = await tx.rows(f"SELECT {HEAD} FROM agent_head WHERE version = ?", version)
        return heads.acknowledged(
            components, refusals, [_head(row).head for row in of_version], version=version, pool=pool
        )

    # --- checks ----------------------------------------------------------------------------------------------------

    async def check_put(self, items: Sequence[CheckPut]) -> None:
        """Put questions."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            for item in items:
                row = await tx.row(CHECK_BY_KEY, item.kind, item.namespace, item.name)
                version = await _check_clock(tx) + 1
                after = checks.put(_check(row) if row else None, item, now=self.clock(), version=version)
                await _put_check(tx, after)

    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Take questions back."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            await tx.many('DELETE FROM "check" WHERE (kind, namespace, name) = (?, ?, ?)', items)

    async def check_claim(self, *, owner: str, limit: int, lease_ms: int) -> Sequence[CheckLease]:
        """Lease due questions, the longest due first."""
        now = self.clock()
        sql = f"""
            SELECT {CHECK} FROM "check" WHERE due <= ? AND coalesce(lease_until, 0) <= ? ORDER BY due LIMIT ?
        """
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            due = [_check(row) for row in await tx.rows(sql, now, now, limit)]
            for row in due:
                await _put_check(tx, checks.leased(row, owner=owner, now=now, lease_ms=lease_ms))
        return [row.to_lease() for row in due]

    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None:
        """Answer a question."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as tx:
            row = await tx.row(CHECK_BY_KEY, lease.kind, lease.namespace, lease.name)
            version = await _check_clock(tx) + 1
            after = checks.answered(
                _check(row) if row else None,
                lease,
                ok=ok,
                reason=reason,
                message=message,
                result=result,
                now=self.clock(),
                version=version,
            )
            await _put_check(tx, after)

    async def check_results(self, *, after: int) -> Sequence[CheckResult]:
        """Answers that changed after this check clock."""
        sql = f'SELECT {CHECK} FROM "check" WHERE version > ? ORDER BY version'
        async with self._reader.transaction("BEGIN") as tx:
            return [_check(row).to_result() for row in await tx.rows(sql, after)]

    async def check_get(self, kind: str, namespace: str, name: str) -> CheckResult | None:
        """The last answer to a question."""
        async with self._reader.transaction("BEGIN") as tx:
            row = await tx.row(CHECK_BY_KEY, kind, namespace, name)
        return _check(row).to_result() if row else None


async def _fenced(tx: Connection, epoch: int) -> int:
    """The head clock, for the publisher of this epoch only."""
    row = await tx.row("SELECT epoch, head_clock FROM operator_epoch")
    stored, clock = row or (0, 0)
    heads.fenced(epoch, stored)
    return int(clock)


async def _put_revision(tx: Connection, revision: StoredRevision) -> None:
    await tx.run(
        "INSERT OR IGNORE INTO agent_revision (id, format, body) VALUES (?, ?, ?)",
        revision.id,
        revision.format,
        revision.body,
    )
    await tx.many("INSERT OR IGNORE INTO revision_part (digest, body) VALUES (?, ?)", list(revision.parts.items()))


async def _check_desired(tx: Connection, writes: Sequence[HeadWrite]) -> None:
    for write in writes:
        if write.desired is not None:
            row = await tx.row("SELECT 1 FROM agent_revision WHERE id = ?", write.desired)
            if row is None:
                raise Conflict(f"revision {write.desired} is neither given nor stored")


async def _heads(tx: Connection, writes: Sequence[HeadWrite]) -> list[HeadRow]:
    sql = f"""
        SELECT {HEAD} FROM agent_head WHERE uid IN (SELECT value ->> 0 FROM json_each(?1))
            OR (namespace, name) IN (SELECT value ->> 1, value ->> 2 FROM json_each(?1))
    """
    keys = [(write.uid, write.namespace, write.name) for write in writes]
    return [_head(row) for row in await tx.rows(sql, json.dumps(keys))]


async def _put_heads(tx: Connection, changed: Sequence[HeadRow], clock: int) -> int:
    if not changed:
        return clock
    # Those retired first: of one name only one is in service at any moment.
    cells = [_head_cells(row) for row in sorted(changed, key=lambda row: not row.head.retired)]
    await tx.many(PUT_HEAD, cells)
    await tx.run("UPDATE operator_epoch SET head_clock = ?", clock + 1)
    return clock + 1


def _head_cells(row: HeadRow) -> Row:
    head = row.head
    return (
        head.uid,
        head.namespace,
        head.name,
        head.generation,
        head.desired,
        head.active,
        head.note,
        head.version,
        head.retired,
        row.lifetime_ms,
    )


def _head(row: Row) -> HeadRow:
    uid, namespace, name, generation, desired, active, note, version, retired, lifetime_ms = row
    head = Head(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=generation,
        desired=desired,
        active=active,
        note=note,
        version=version,
        retired=bool(retired),
    )
    return HeadRow(head=head, lifetime_ms=lifetime_ms)


def _component(row: Row) -> Component:
    id_, role, pool, formats, applied, draining, release = row
    return Component(
        id=id_,
        role=role,
        pool=pool,
        formats=json.loads(formats),
        applied=applied,
        draining=bool(draining),
        release=release,
    )


async def _check_clock(tx: Connection) -> int:
    row = await tx.row("SELECT check_clock FROM operator_epoch")
    return int(row[0]) if row else 0


async def _put_check(tx: Connection, row: CheckRow | None) -> None:
    if row is not None:
        await tx.run(PUT_CHECK, *_check_cells(row))
        await tx.run("UPDATE operator_epoch SET check_clock = max(check_clock, ?)", row.version)


def _check_cells(row: CheckRow) -> Row:
    return (
        row.kind,
        row.namespace,
        row.name,
        row.uid,
        row.digest,
        to_text(row.payload),
        row.interval_ms,
        row.due,
        row.owner,
        row.lease_until,
        row.failures,
        row.done,
        row.ok,
        row.reason,
        row.message,
        None if row.result is None else to_text(row.result),
        row.version,
    )


def _check(row: Row) -> CheckRow:
    return CheckRow(
        kind=row[0],
        namespace=row[1],
        name=row[2],
        uid=row[3],
        digest=row[4],
        payload=cast("JsonObject", loads(row[5])),  # we wrote it
        interval_ms=row[6],
        due=row[7],
        owner=row[8],
        lease_until=row[9],
        failures=row[10],
        done=bool(row[11]),
        ok=bool(row[12]),
        reason=row[13],
        message=row[14],
        result=None if row[15] is None else loads(row[15]),
        version=row[16],
    )
