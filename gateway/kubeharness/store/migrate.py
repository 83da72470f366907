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

from kubeharness.store.backend import SchemaRefused
from kubeharness.store.postgres.database import Connection, connect, reachable

BUILD = 1
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


async def migrate(url: str, *, build: int = BUILD, steps: Sequence[Migration] | None = None) -> Schema:
    """Apply what is missing and return the schema found at the end; over a newer one that allows `build`: nothing.

    Raises SchemaRefused if the schema does not allow `build`, Unavailable if the database does not answer.
    """
    with reachable():
        connection = await connect(url, name="migrate", command_timeout=None)
        try:
            while True:
                schema = await _step(connection, build, migrations() if steps is None else steps)
                if schema is not None:
                    return schema
        finally:
            connection.terminate()


async def _step(connection: Connection, build: int, steps: Sequence[Migration]) -> Schema | None:
    """Apply the next file in a transaction of its own; the schema, if there is no next one."""
    async with connection.transaction():
        await connection.execute(WAIT_FOR_LOCK)
        await connection.execute(TAKE_LOCK, LOCK_KEY)
        schema = await read_schema(connection)
        schema.check_build(build)
        missing = [step for step in steps if schema.version < step.number <= build]
        if not missing:
            return schema
        step = missing[0]
        await connection.execute(BOUND_LOCKS)
        if schema.version == 0:
            await connection.execute(CREATE_VERSIONS)
        await connection.execute(step.text)
        await connection.execute(NOTE_VERSION, step.number, step.min_build)
    return None


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
