"""The SQLite backend and its store."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from kubeharness.store.memory import system_clock
from kubeharness.store.sqlite.config import SqliteConfiguration
from kubeharness.store.sqlite.database import DURABLE, Connection, check_schema, connect
from kubeharness.store.sqlite.reads import SqliteReads, SqliteSnapshot
from kubeharness.store.sqlite.transaction import SqliteTransaction
from kubeharness.store.store import TransactionalStore


class SqliteBackend(SqliteConfiguration, SqliteReads):
    """One file: a writing and a reading connection. Belongs to one event loop; a thread opens its own.

    All processes of one file run on one machine, whose clock is the store's.
    """

    def __init__(self, path: Path, writer: Connection, reader: Connection, clock: Callable[[], int]) -> None:
        SqliteConfiguration.__init__(self, writer, reader, clock)
        SqliteReads.__init__(self, reader)
        self._path = path

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqliteTransaction]:
        """The one writing transaction; others wait up to the busy timeout."""
        async with self._writer.transaction("BEGIN IMMEDIATE") as connection:
            yield SqliteTransaction(connection, self.clock())

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[SqliteSnapshot]:
        """A read transaction on a connection of its own, so that a long walk holds up nobody."""
        connection = await connect(self._path)
        try:
            async with connection.transaction("BEGIN"):
                yield SqliteSnapshot(connection)
        finally:
            await connection.close()

    async def foreign_commits(self) -> int:
        """A number that changes when another process (or connection) has committed."""
        return await self._writer.data_version()

    async def ready(self) -> None:
        """Raises Unavailable if the file does not answer, SchemaRefused if it is not ours."""
        async with self._reader.transaction("BEGIN") as reader:
            await check_schema(reader)

    async def aclose(self) -> None:
        """Close both connections."""
        await self._reader.close()
        await self._writer.close()


async def sqlite_backend(
    path: Path, *, clock: Callable[[], int] = system_clock, synchronous: str = DURABLE
) -> SqliteBackend:
    """Open a file, made if missing. `synchronous` other than FULL is for tests: a power cut may lose commits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = await connect(path, synchronous=synchronous)
    try:
        reader = await connect(path, synchronous=synchronous)
    except BaseException:
        await writer.close()
        raise
    return SqliteBackend(path, writer, reader, clock)


async def sqlite_store(
    path: Path, *, clock: Callable[[], int] = system_clock, synchronous: str = DURABLE
) -> TransactionalStore:
    """A store on one file."""
    return TransactionalStore(await sqlite_backend(path, clock=clock, synchronous=synchronous))
