"""Pinned connections to one Postgres, and what their failures mean to us.

A driver's error is translated here, once: `RaceLost` only where the rollback is certain, `Unavailable` where the
database does not answer or a commit's answer was lost, so that its caller repeats the same numbered write (I5).
Knows transactions and connections, no table.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.store.backend import RaceLost
from kubeharness.store.postgres.reasons import UNREADABLE, reason

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

T = TypeVar("T")
log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 10.0
ROLLBACK_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0
RACES = 8

SESSION: Mapping[str, str] = {
    "default_transaction_isolation": "read committed",  # a lock's row is read as it is, not as it was
    "lock_timeout": "2s",
    "statement_timeout": "15s",  # beyond our own timeout: only for an owner that was frozen meanwhile
    "idle_in_transaction_session_timeout": "10s",  # … so that its locks do not outlive a third of its lease
    "plan_cache_mode": "force_generic_plan",  # the plans that the tests have looked at
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "timezone": "UTC",
}

BEGIN = "BEGIN"
# Behind a transaction pooler a session is nobody's: its settings go with each transaction, in the same round trip.
BEGIN_POOLED = "BEGIN; " + "; ".join(
    f"SET LOCAL {name} = '{value}'" for name, value in SESSION.items() if not name.startswith("default_")
)
UNHURRIED = "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

_RACES = (
    asyncpg.UniqueViolationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,  # the connection is closed, or cannot be used any more
    asyncpg.InternalClientError,  # … or the driver has lost its place in it, as when it is used while it dies
    asyncpg.OperatorInterventionError,  # shutdown, cancelled by the administrator, cannot connect now
    asyncpg.InsufficientResourcesError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,  # a primary that was demoted
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.UndefinedTableError,  # not our schema, or not yet
    asyncpg.UndefinedColumnError,
    OSError,  # TimeoutError is one
)


Check = Callable[[Connection], Awaitable[None]]
"""Looks at a fresh connection; raises Unavailable unless it may be used."""


class LockedTooLong(Unavailable):
    """Somebody held a row for longer than the lock timeout. Nothing of the transaction is stored."""

    def __init__(self) -> None:
        super().__init__("the session is busy")


@contextmanager
def reachable() -> Iterator[None]:
    """Say Unavailable where the database does not answer, or is not ours; other errors of the driver go on."""
    try:
        yield
    except _GONE as error:
        raise Unavailable(reason(error)) from error


@contextmanager
def translated() -> Iterator[None]:
    """Let no driver's error out: RaceLost, Unavailable, or a KubeharnessError for a value that cannot be stored."""
    try:
        with reachable():
            yield
    except _RACES as error:
        raise RaceLost(type(error).__name__) from error
    except asyncpg.LockNotAvailableError as error:
        raise LockedTooLong from error
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        raise KubeharnessError(f"the database refuses a value ({type(error).__name__})") from error


async def connect(
    url: str, *, name: str, pooled: bool = False, command_timeout: float | None = COMMAND_SECONDS
) -> Connection:
    """Open a connection with our session settings, whatever the database's own are.

    Raises driver errors, and Unavailable for a DSN that cannot be read or asks for what the server does not know.
    """
    settings = {} if pooled else {**SESSION, "application_name": f"kubeharness {name}"}
    if not url.startswith(("postgresql://", "postgres://")):  # the driver takes what is empty for a socket of this host
        raise Unavailable(UNREADABLE)
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_SECONDS,
            command_timeout=command_timeout,
            server_settings=settings,
            statement_cache_size=0 if pooled else 200,
            max_cached_statement_lifetime=0,
            max_cacheable_statement_size=0,
        )
    except ValueError:  # of the driver, urllib or the codec of host names; it quotes what it could not read
        raise Unavailable(UNREADABLE) from None
    except _GONE:
        raise
    except asyncpg.PostgresError as error:  # such as a setting in the DSN that this server does not have
        raise Unavailable(f"the database refuses the connection ({type(error).__name__})") from None


class Line:
    """One pinned connection: used by one at a time, opened when first needed, replaced when it broke.

    While the database is away a caller gets Unavailable at once; one in a jittered, growing while tries anew.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str,
        pooled: bool = False,
        on_connect: Callable[[], None] = lambda: None,
        check: Check | None = None,
    ) -> None:
        self._url = url
        self._on_connect = on_connect
        self._check = check
        self._name = name
        self._pooled = pooled
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._why = ""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction, committed when the block ends. Unavailable at its end: maybe committed."""
        async with self._lock:
            with translated():
                connection = await self._begun()
                try:
                    yield connection
                except BaseException as error:
                    await self._roll_back(connection, error)
                    raise
                await self._commit(connection)

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[Connection]:
        """The connection for a single statement that is its own transaction, or for reads."""
        if self._pooled:  # two round trips of one statement may meet two servers, but for a transaction
            async with self.transaction() as connection:
                yield connection
            return
        async with self._lock:
            with translated():
                connection = await self._connected()
                try:
                    yield connection
                except (*_GONE, asyncio.CancelledError) as error:
                    self._drop(error)
                    raise

    async def aclose(self) -> None:
        """Close the connection; a next use would open another."""
        async with self._lock:
            self._drop()

    async def _begun(self) -> Connection:
        """A connection within a transaction; one that died while nobody used it is replaced unseen."""
        begin = BEGIN_POOLED if self._pooled else BEGIN
        if self._connection is not None:
            try:
                await self._connection.execute(begin)
            except _GONE as error:
                self._drop(error)
            except asyncio.CancelledError as error:
                self._drop(error)
                raise
            else:
                return self._connection
        connection = await self._connected()
        try:
            await connection.execute(begin)
        except BaseException as error:
            self._drop(error)
            raise
        return connection

    async def _commit(self, connection: Connection) -> None:
        """Commit. An answer that does not come leaves it open what happened: Unavailable says so (I5)."""
        try:
            said = await connection.execute(COMMIT)
        except BaseException as error:
            self._drop(error)
            raise
        if said != COMMIT:  # a statement failed and the block went on: Postgres rolled back and calls it no error
            raise RaceLost(f"commit was answered with {said}")

    async def _roll_back(self, connection: Connection, error: BaseException) -> None:
        """Leave the connection clean, or leave it."""
        if _is_end(error) or connection.is_closed():
            self._drop(error)
            return
        try:
            await connection.execute(ROLLBACK, timeout=ROLLBACK_SECONDS)
        except _GONE as lost:
            self._drop(lost)
        except asyncio.CancelledError as cancelled:
            self._drop(cancelled)
            raise

    async def _connected(self) -> Connection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._connection = None
        if time.monotonic() < self._not_before:
            raise Unavailable(self._why)
        try:
            self._connection = await self._opened()
        except (*_GONE, Unavailable) as error:
            self._why = error.why if isinstance(error, Unavailable) else reason(error)
            self._pause = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * self._pause))
            self._not_before = time.monotonic() + self._pause * random.uniform(0.5, 1.0)
            raise
        self._pause = 0.0
        self._on_connect()
        return self._connection

    async def _opened(self) -> Connection:
        """A connection that may be used: nothing is read or written on one that was not looked at."""
        connection = await connect(self._url, name=self._name, pooled=self._pooled)
        if self._check is None:
            return connection
        try:
            if self._pooled:  # two round trips may meet two servers, but for a transaction
                async with connection.transaction():
                    await self._check(connection)
            else:
                await self._check(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _drop(self, why: BaseException | None = None) -> None:
        """Forget the connection at once: the server rolls back what it had open."""
        connection, self._connection = self._connection, None
        if isinstance(why, Exception):
            log.warning("connection %r is replaced: %r", self._name, why)
        if connection is not None and not connection.is_closed():
            connection.terminate()


def _is_end(error: BaseException) -> bool:
    """Whether the connection cannot be trusted after this, translated or not."""
    if isinstance(error, LockedTooLong):
        return False
    return isinstance(error, (*_GONE, Unavailable, asyncio.CancelledError))


class Database:
    """The connections of one process: `writes` for transactions, one for reads. All in one event loop."""

    def __init__(self, url: str, *, pooled: bool = False, writes: int = 2, check: Check | None = None) -> None:
        self.url = url
        self.pooled = pooled
        self._check = check
        self.on_connect: Callable[[], None] = lambda: None
        """Called whenever a write connection was opened: what was known of the server may be wrong."""
        self._writes = [self.line(f"write {n}", on_connect=self._tell) for n in range(writes)]
        self._free = list(self._writes)
        self._taken = asyncio.Semaphore(writes)
        self._reads = self.line("read")

    def _tell(self) -> None:
        self.on_connect()

    def line(self, name: str, *, on_connect: Callable[[], None] = lambda: None) -> Line:
        """Another line, for a loop or a purpose of its own; whoever asks closes it."""
        return Line(self.url, name=name, pooled=self.pooled, on_connect=on_connect, check=self._check)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """A transaction on whichever write connection is free first."""
        async with self._taken:
            line = self._free.pop()
            try:
                async with line.transaction() as connection:
                    yield connection
            finally:
                self._free.append(line)

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[Connection]:
        """Whichever write connection is free first, for reads and one statement that is its own transaction."""
        async with self._taken:
            line = self._free.pop()
            try:
                async with line.statement() as connection:
                    yield connection
            finally:
                self._free.append(line)

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do some work in a transaction, again as a whole if another came first."""
        lost: RaceLost | None = None
        for _ in range(RACES):
            try:
                async with self.transaction() as connection:
                    return await work(connection)
            except RaceLost as race:
                lost = race
        raise Unavailable("the database is contended") from lost

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Connection]:
        """The read connection, for one statement."""
        async with self._reads.statement() as connection:
            yield connection

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """A connection of its own, for as long as one consistent view of everything is needed."""
        with translated():
            connection = await connect(self.url, name="snapshot", pooled=self.pooled, command_timeout=None)
            try:
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    await connection.execute(UNHURRIED)
                    yield connection
            finally:
                connection.terminate()

    async def aclose(self) -> None:
        """Close all of them."""
        for line in (*self._writes, self._reads):
            await line.aclose()
