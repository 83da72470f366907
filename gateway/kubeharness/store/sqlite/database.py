"""Connections to one SQLite file: WAL, synchronous FULL, one writer, busy for 5 s at most; and its schema.

Driver errors are translated here, once: a unique key that was taken is `RaceLost`, all else is `Unavailable`.
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import aiosqlite

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.store.backend import RaceLost, SchemaRefused

BUILD = 2
"""The number of this build; a schema names the oldest that may open it."""
VERSION = 2
"""The schema that this build makes."""
STEPS = {
    2: (1, "ALTER TABLE component ADD COLUMN release TEXT NOT NULL DEFAULT ''"),
}
"""Version → its min_build, and what makes it of the one before."""
BUSY_SECONDS = 5.0
DURABLE = "FULL"

Row: TypeAlias = tuple[Any, ...]
"""Any: a row's cells, typed again by whoever asked for these columns."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours. A value that cannot be stored is its item's error, never the database's."""
    try:
        yield
    except (sqlite3.DataError, sqlite3.InterfaceError, UnicodeError) as error:
        raise KubeharnessError(f"a value cannot be stored ({error})") from error
    except sqlite3.IntegrityError as error:
        raise RaceLost(str(error)) from error
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the database did not answer ({error})") from error
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"the database file cannot be read ({error})") from error
    except ValueError as error:  # aiosqlite's word for a connection that is closed
        raise Unavailable("the database is closed") from error


class Connection:
    """One connection, used by one block at a time."""

    def __init__(self, raw: aiosqlite.Connection) -> None:
        self._raw = raw
        self._free = asyncio.Lock()

    async def rows(self, sql: str, *values: object) -> list[Row]:
        """All rows of a query."""
        with translated():
            return [tuple(row) for row in await self._raw.execute_fetchall(sql, values)]

    async def row(self, sql: str, *values: object) -> Row | None:
        """The first row."""
        rows = await self.rows(sql, *values)
        return rows[0] if rows else None

    async def run(self, sql: str, *values: object) -> None:
        """One statement without an answer."""
        with translated():
            await self._raw.execute_fetchall(sql, values)

    async def many(self, sql: str, rows: Sequence[Iterable[object]]) -> None:
        """One statement a row; none for no rows."""
        if rows:
            with translated():
                await (await self._raw.executemany(sql, rows)).close()

    async def walk(self, sql: str, batch: int = 256) -> AsyncIterator[Row]:
        """The rows of a query, a batch at a time."""
        with translated():
            cursor = await self._raw.execute(sql)
        try:
            while True:
                with translated():
                    rows = list(await cursor.fetchmany(batch))
                for row in rows:
                    yield tuple(row)
                if not rows:
                    return
        finally:
            await cursor.close()

    @asynccontextmanager
    async def transaction(self, begin: str) -> AsyncIterator["Connection"]:
        """BEGIN … COMMIT, or ROLLBACK if the block raises or is cancelled."""
        async with self._free:
            try:
                await self.run(begin)
                yield self
                await self.run("COMMIT")
            except BaseException:
                await self._roll_back()
                raise

    async def _roll_back(self) -> None:
        # Statements of a connection run in order, so this also ends a BEGIN or COMMIT whose waiter was cancelled.
        try:
            await self._raw.execute_fetchall("ROLLBACK")
        except (sqlite3.Error, ValueError):
            pass  # nothing was open, or the connection is gone

    async def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        async with self._free:
            row = await self.row("PRAGMA data_version")
        return int(row[0]) if row else 0

    async def close(self) -> None:
        """Close it, after what is under way."""
        async with self._free:
            await self._raw.close()


async def connect(path: Path, *, synchronous: str = DURABLE) -> Connection:
    """Open the file, and make its schema if it is empty or older. Raises SchemaRefused, Unavailable."""
    with translated():
        raw = await aiosqlite.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    connection = Connection(raw)
    try:
        await check_schema(connection)  # before anything is written: a refused file stays as it is
        await connection.run("PRAGMA journal_mode = WAL")
        await connection.run(f"PRAGMA synchronous = {synchronous}")
        await _make_schema(connection)
    except BaseException:
        await raw.close()
        raise
    return connection


async def check_schema(connection: Connection) -> int:
    """The schema's version, 0 for an empty file. Raises SchemaRefused if this build may not touch it."""
    if await connection.row("SELECT 1 FROM sqlite_master WHERE name = 'schema_version'") is None:
        if await connection.row("SELECT 1 FROM sqlite_master LIMIT 1") is not None:
            raise SchemaRefused("the file is a SQLite database of something else; name another")
        return 0
    row = await connection.row("SELECT version, min_build FROM schema_version ORDER BY version DESC LIMIT 1")
    version, min_build = row or (0, 0)
    if min_build > BUILD:
        raise SchemaRefused(
            f"the database's schema {version} needs build {min_build} or later and this is build {BUILD}; "
            "run a newer release"
        )
    return int(version)


async def _make_schema(connection: Connection) -> None:
    if await check_schema(connection) >= VERSION:
        return
    async with connection.transaction("BEGIN IMMEDIATE"):
        found = await check_schema(connection)  # somebody else may have made it meanwhile
        if found == 0:
            for statement in statements(schema()):
                await connection.run(statement)
            return
        for version in range(found + 1, VERSION + 1):
            min_build, statement = STEPS[version]
            await connection.run(statement)
            await connection.run("INSERT INTO schema_version (version, min_build) VALUES (?, ?)", version, min_build)


def schema() -> str:
    """The text of the schema."""
    return resources.files("kubeharness.store.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")


def statements(script: str) -> list[str]:
    """The single statements of a script, which then run in the transaction that is open."""
    found, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return found


class FolderHeld(KubeharnessError):
    """Another process works on the data folder."""

    code = "folder_held"

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder} is held by process {holder}; stop it, or name another folder")


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a data folder alone, for as long as the block runs. Raises FolderHeld saying who has it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise FolderHeld(folder, file.read().strip() or "unknown") from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield  # the file stays: removing it would let two processes lock two files of one name
