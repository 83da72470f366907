"""Leased checks: put by whoever publishes, answered by workers. The operator takes this alone.

`store.checks` decides what a question and an answer change; here are the rows. Versions are given under the lock of
the check clock, so that a reader of "after X" misses none.
"""

from collections.abc import Sequence
from typing import Any, cast

from kubeharness.core import codec
from kubeharness.core.json import Json, JsonObject
from kubeharness.engine.ports import CheckLease, CheckPut, CheckResult
from kubeharness.store import checks as rules
from kubeharness.store.checks import CheckRow
from kubeharness.store.postgres.database import Connection, Database
from kubeharness.store.postgres.rows import NOW_MS, STARTED_MS, Cells

CHECK = (
    "kind, namespace, name, uid, digest, payload, interval_ms, due_at, owner, lease_until, failures, done, ok, reason, "
    "message, result, version"
)

READ_CLOCK = f"SELECT version, {NOW_MS} FROM check_clock {{lock}}"
RAISE_CLOCK = "UPDATE check_clock SET version = $1 WHERE version < $1"

READ_CHECKS = f"""
    SELECT {CHECK} FROM probe_check
     WHERE (kind, namespace, name) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[])) {{lock}}
"""

STORE_CHECKS = f"""
    INSERT INTO probe_check ({CHECK})
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::bigint[], $8::bigint[],
        $9::text[], $10::bigint[], $11::integer[], $12::boolean[], $13::boolean[], $14::text[], $15::text[],
        $16::bytea[], $17::bigint[])
        ON CONFLICT (kind, namespace, name) DO UPDATE
       SET uid = excluded.uid, digest = excluded.digest, payload = excluded.payload,
           interval_ms = excluded.interval_ms, due_at = excluded.due_at, owner = excluded.owner,
           lease_until = excluded.lease_until, failures = excluded.failures, done = excluded.done, ok = excluded.ok,
           reason = excluded.reason, message = excluded.message, result = excluded.result, version = excluded.version
"""

DROP_CHECKS = """
    DELETE FROM probe_check
     WHERE (kind, namespace, name) IN (SELECT * FROM unnest($1::text[], $2::text[], $3::text[]))
"""

CLAIM_CHECKS = f"""
    WITH due AS MATERIALIZED (
        SELECT kind, namespace, name FROM probe_check
         WHERE due_at <= {STARTED_MS} AND (lease_until IS NULL OR lease_until <= {STARTED_MS})
         ORDER BY due_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE probe_check AS c SET owner = $1, lease_until = {NOW_MS} + $3::bigint
      FROM due WHERE (c.kind, c.namespace, c.name) = (due.kind, due.namespace, due.name)
    RETURNING c.kind, c.namespace, c.name, c.digest, c.payload, c.due_at
"""

READ_RESULTS = f"SELECT {CHECK} FROM probe_check WHERE version > $1 ORDER BY version, kind, namespace, name"

LOCK = "FOR NO KEY UPDATE"


class Checks:
    """The check verbs of the store, over one database and nothing else."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def check_put(self, items: Sequence[CheckPut]) -> None:
        """Put questions; those that stand already take no lock."""
        if not items:
            return

        async def put(connection: Connection) -> None:
            if await _questions(connection, items, lock=""):
                await _store(connection, await _questions(connection, items, lock=LOCK))

        await self._database.run(put)

    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Take questions back: (kind, namespace, name)."""
        if not items:
            return
        async with self._database.transaction() as connection:
            await connection.execute(DROP_CHECKS, *_columns(items))

    async def check_claim(self, *, owner: str, limit: int, lease_ms: int) -> Sequence[CheckLease]:
        """Lease due questions, the longest due first."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(CLAIM_CHECKS, owner, limit, lease_ms)
        return [
            CheckLease(
                kind=row["kind"],
                namespace=row["namespace"],
                name=row["name"],
                digest=row["digest"],
                payload=_payload(row["payload"]),
            )
            for row in sorted(rows, key=lambda row: row["due_at"])
        ]

    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None:
        """Answer a question; one that is another by now stays unanswered."""
        key = (lease.kind, lease.namespace, lease.name)

        async def answer(connection: Connection) -> None:
            clock, now, stored = await _read(connection, [key], lock=LOCK)
            row = rules.answered(
                stored.get(key),
                lease,
                ok=ok,
                reason=reason,
                message=message,
                result=result,
                now=now,
                version=clock + 1,
            )
            if row is not None:
                await _store(connection, [row])

        await self._database.run(answer)

    async def check_results(self, *, after: int) -> Sequence[CheckResult]:
        """Answers that changed after this check clock, in its order."""
        async with self._database.read() as connection:
            return [_check_row(row).to_result() for row in await connection.fetch(READ_RESULTS, after)]

    async def check_get(self, kind: str, namespace: str, name: str) -> CheckResult | None:
        """The last answer to a question."""
        async with self._database.read() as connection:
            row = await connection.fetchrow(READ_CHECKS.format(lock=""), [kind], [namespace], [name])
        return _check_row(row).to_result() if row is not None else None


def _key(item: CheckPut) -> tuple[str, str, str]:
    return (item.kind, item.namespace, item.name)


def _columns(keys: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    return [list(column) for column in zip(*keys, strict=True)]


async def _read(
    connection: Connection, keys: Sequence[tuple[str, str, str]], *, lock: str
) -> tuple[int, int, dict[tuple[str, str, str], CheckRow]]:
    """The clock, the time, and the checks of these keys. The clock's row comes first: so do all who lock both."""
    found = await connection.fetchrow(READ_CLOCK.format(lock=lock))
    clock, now = found or (0, 0)
    rows = await connection.fetch(READ_CHECKS.format(lock=lock), *_columns(keys))
    checks = [_check_row(row) for row in rows]
    return clock, now, {row.key: row for row in checks}


async def _questions(connection: Connection, items: Sequence[CheckPut], *, lock: str) -> list[CheckRow]:
    """The rows that these questions change."""
    clock, now, stored = await _read(connection, [_key(item) for item in items], lock=lock)
    changed: dict[tuple[str, str, str], CheckRow] = {}
    for item in items:
        row = rules.put(stored.get(_key(item)), item, now=now, version=clock + 1)
        if row is not None:
            changed[row.key] = stored[row.key] = row
    return list(changed.values())


async def _store(connection: Connection, changed: Sequence[CheckRow]) -> None:
    if not changed:
        return
    await connection.execute(STORE_CHECKS, *(list(column) for column in zip(*map(_cells, changed), strict=True)))
    await connection.execute(RAISE_CLOCK, max(row.version for row in changed))


def _cells(row: CheckRow) -> Sequence[Any]:
    result = codec.dumps(row.result) if row.result is not None else None
    question = (row.uid, row.digest, codec.dumps(row.payload), row.interval_ms)
    turn = (row.due, row.owner, row.lease_until, row.failures)
    return (*row.key, *question, *turn, row.done, row.ok, row.reason, row.message, result, row.version)


def _payload(raw: bytes) -> JsonObject:
    return cast("JsonObject", codec.loads(raw))  # an object when it was put


def _check_row(cells: Cells) -> CheckRow:
    kind, namespace, name, uid, digest, payload, interval_ms = cells[:7]
    due, owner, lease_until, failures, done, ok, reason, message, result, version = cells[7:]
    return CheckRow(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=uid,
        digest=digest,
        payload=_payload(payload),
        interval_ms=interval_ms,
        due=due,
        owner=owner,
        lease_until=lease_until,
        failures=failures,
        done=done,
        ok=ok,
        reason=reason,
        message=message,
        result=codec.loads(result) if result is not None else None,
        version=version,
    )
