"""Brings a Postgres database to this build's schema, or says why it may not be touched.

A migration is a numbered file of SQL below `migrations/`, applied whole or not at all under an advisory lock, so
that any number of processes may start at once. Its first line says the oldest build that can run on what it
leaves behind: release N-1 runs on the schema of N, and a rollback works. Pods only verify; they hold no DDL rights.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import asyncpg

from kubeharness.core.errors import Unavailable
from kubeharness.store.backend import SchemaRefused
from kubeharness.store.postgres.database import Connection, connect, reachable

BUILD = 2
"""The newest schema that this build knows."""

LOCK_KEY = 0x6B756265_6861726E
"""The advisory lock of whoever migrates: the same for every build, for ever."""

WAIT_FOR_LOCK = "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0"
BOUND_LOCKS = "SET LOCAL lock_timeout = '30s'"  # a busy table is waited for, not queued on for ever
TAKE_LOCK = "SELECT pg_advisory_xact_lock($1)"

CREATE_VERSIONS = """
    CREATE TABLE IF NOT EXISTS schema_version (
        version    INTEGER PRIMARY KEY,
        min_build  INTEGER NOT NULL,
        applied_at BIGINT NOT NULL
    )
"""

HAS_VERSIONS = "SELECT to_regclass('schema_version') IS NOT NULL"

READ_VERSION = "SELECT version, min_build FROM schema_version ORDER BY version DESC LIMIT 1"

NOTE_VERSION = """
    INSERT INTO schema_version (version, min_build, applied_at)
    VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
"""

MAY_WRITE = "SELECT has_table_privilege('lane', 'UPDATE') AND has_table_privilege('record', 'INSERT')"

# What a role of pods needs, as statements that are not in force yet: on our own tables alone, and no DDL. The owner
# of a table may do all of it already. The first migration makes all of them, so a view of what is owned is complete.
GRANTS = """
    SELECT format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), $1::text) AS statement
     WHERE NOT has_schema_privilege($1::text, current_schema()::text, 'USAGE')
     UNION ALL
    SELECT format('GRANT %s ON %I.%I TO %I', needed.rights, current_schema(), relname, $1::text)
      FROM pg_class, LATERAL (
           SELECT CASE WHEN relkind = 'S' THEN 'USAGE'
                       WHEN relname = 'schema_version' THEN 'SELECT'
                       ELSE 'SELECT, INSERT, UPDATE, DELETE' END) AS needed (rights)
     WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'S')
       AND relowner = current_user::regrole
       AND NOT CASE WHEN relkind = 'S' THEN has_sequence_privilege($1::text, pg_class.oid, 'USAGE')
                    WHEN relname = 'schema_version' THEN has_table_privilege($1::text, pg_class.oid, 'SELECT')
                    ELSE has_table_privilege($1::text, pg_class.oid, 'SELECT')
                     AND has_table_privilege($1::text, pg_class.oid, 'INSERT')
                     AND has_table_privilege($1::text, pg_class.oid, 'UPDATE')
                     AND has_table_privilege($1::text, pg_class.oid, 'DELETE') END
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    min_build: int
    text: str


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database says of itself; version 0 is an empty one."""

    version: int
    min_build: int

    def check_build(self, build: int) -> None:
        """Raise SchemaRefused if `build` is too old for this schema."""
        if self.min_build > build:
            raise SchemaRefused(
                f"the database's schema {self.version} needs build {self.min_build} or later and this is build "
                f"{build}; run a newer release"
            )


@cache
def migrations() -> Sequence[Migration]:
    """All files in their order. Raises ValueError if a number is missing or a first line says no min_build."""
    found = []
    for file in resources.files("kubeharness.store").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", file.name)
        if match is None:
            continue
        text = file.read_text(encoding="utf-8")
        header = re.match(r"-- min_build: (\d+)\n", text)
        if header is None:
            raise ValueError(f"{file.name} does not begin with its min_build")
        found.append(Migration(int(match[1]), match[2], int(header[1]), text))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError("migrations are not numbered 1, 2, 3 …")
    return tuple(found)


async def migrate(
    url: str, *, build: int = BUILD, steps: Sequence[Migration] | None = None, app_role: str | None = None
) -> Schema:
    """Apply what is missing and return the schema found at the end; over a newer one that allows `build`: nothing.

    `app_role` is given what pods need, in the transaction that made it: nobody meets a table that it may not read.

    Raises SchemaRefused if the schema does not allow `build` or there is no such role, Unavailable if the database
    does not answer, or a table stays locked.
    """
    with reachable():
        connection = await connect(url, name="migrate", command_timeout=None)
        try:
            while True:
                schema = await _step(connection, build, migrations() if steps is None else steps, app_role)
                if schema is not None:
                    return schema
        except asyncpg.LockNotAvailableError:
            raise Unavailable("a table stayed locked for 30 s, so the schema is as it was") from None
        finally:
            connection.terminate()


async def _step(connection: Connection, build: int, steps: Sequence[Migration], app_role: str | None) -> Schema | None:
    """Apply the next file in a transaction of its own; the schema, if there is no next one."""
    async with connection.transaction():
        await connection.execute(WAIT_FOR_LOCK)
        await connection.execute(TAKE_LOCK, LOCK_KEY)
        schema = await read_schema(connection)
        schema.check_build(build)
        missing = [step for step in steps if schema.version < step.number <= build]
        if missing:
            step = missing[0]
            await connection.execute(BOUND_LOCKS)
            if schema.version == 0:
                await connection.execute(CREATE_VERSIONS)
            await connection.execute(step.text)
            await connection.execute(NOTE_VERSION, step.number, step.min_build)
        if app_role is not None:
            await _grant(connection, app_role)
        return None if missing else schema


async def _grant(connection: Connection, role: str) -> None:
    try:
        statements = await connection.fetch(GRANTS, role)
    except asyncpg.UndefinedObjectError:
        raise SchemaRefused(
            f"KUBEHARNESS_APP_ROLE: the role {role!r} does not exist; create it (CREATE ROLE … LOGIN), or leave it out"
        ) from None
    for row in statements:
        await connection.execute(row["statement"])


async def read_schema(connection: Connection) -> Schema:
    """The schema's own word; version 0 if there is none."""
    if not await connection.fetchval(HAS_VERSIONS):
        return Schema(0, 0)
    row = await connection.fetchrow(READ_VERSION)
    return Schema(row["version"], row["min_build"]) if row else Schema(0, 0)


async def verify_schema(connection: Connection, *, build: int = BUILD) -> Schema:
    """Raise SchemaRefused unless this build may run on the database as it stands. Writes nothing."""
    schema = await read_schema(connection)
    if schema.version < build:
        raise SchemaRefused(
            f"the database's schema is {schema.version} and this build needs {build}; run `kubeharness migrate`"
        )
    schema.check_build(build)
    return schema


async def check_schema(connection: Connection) -> None:
    """Raise Unavailable, with what to do, unless pods of this build may run here: they wait, and never crash."""
    try:
        await verify_schema(connection)
    except SchemaRefused as refused:
        raise Unavailable(str(refused)) from refused
    if not await connection.fetchval(MAY_WRITE):
        raise Unavailable(
            "the role of the DSN may not write our tables; `kubeharness migrate` grants it if KUBEHARNESS_APP_ROLE "
            "names it"
        )
