"""Our stores as the conformance suite takes them: with a clock that the test holds."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg

from kubeharness.engine.ports import Store
from kubeharness.store.backend import Backend
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.postgres.store import PostgresStore
from kubeharness.store.sqlite.store import sqlite_backend
from kubeharness.store.store import TransactionalStore

START_MS = 1_790_000_000_000


class HeldClock:
    """A clock that stands until it is told."""

    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now

    async def advance(self, milliseconds: int) -> None:
        self.now += milliseconds

    async def step_back(self, milliseconds: int) -> None:
        self.now -= milliseconds


class MemorySubject(HeldClock):
    """The memory store; `wrap` puts something in front of it."""

    def __init__(
        self,
        backend: Callable[[Callable[[], int]], Backend] = MemoryBackend,
        wrap: Callable[[Backend], Store] = TransactionalStore,
    ) -> None:
        super().__init__()
        self.backend = backend(self)
        self._wrap = wrap
        self.store = wrap(self.backend)

    async def another(self) -> Store:
        return self._wrap(self.backend)


class SqliteSubject(HeldClock):
    """A file, and as many stores on it as are asked for."""

    def __init__(self, path: Path, handles: AsyncExitStack) -> None:
        super().__init__()
        self._path = path
        self._handles = handles
        self.store: Store

    async def another(self) -> Store:
        backend = await sqlite_backend(self._path, clock=self, synchronous="OFF")
        self._handles.push_async_callback(backend.aclose)
        return TransactionalStore(backend)


@asynccontextmanager
async def memory_subject() -> AsyncIterator[MemorySubject]:
    yield MemorySubject()


@asynccontextmanager
async def sqlite_subject(path: Path) -> AsyncIterator[SqliteSubject]:
    async with AsyncExitStack() as handles:
        subject = SqliteSubject(path, handles)
        subject.store = await subject.another()
        yield subject


class PostgresSubject:
    """A database whose clock nobody can hold: stored times are moved in its place."""

    def __init__(self, url: str, handles: AsyncExitStack, hand: asyncpg.Connection) -> None:
        self._url = url
        self._handles = handles
        self._hand = hand
        self.store: Store

    async def another(self) -> Store:
        return await self._handles.enter_async_context(PostgresStore.open(self._url))

    async def advance(self, milliseconds: int) -> None:
        for statement in AGE:
            await self._hand.execute(statement, milliseconds)

    async def step_back(self, milliseconds: int) -> None:
        await self._hand.execute("UPDATE lane SET last_ms = last_ms + $1", milliseconds)


AGE = (
    """UPDATE lane SET lease_until = lease_until - $1, not_before = not_before - $1, deadline = deadline - $1,
                       ready_at = ready_at - $1, head_at = head_at - $1""",
    "UPDATE probe_check SET due_at = due_at - $1, lease_until = lease_until - $1",
    "UPDATE component SET beat_at = beat_at - $1",
)


@asynccontextmanager
async def postgres_subject(url: str) -> AsyncIterator[PostgresSubject]:
    hand = await asyncpg.connect(url)
    try:
        async with AsyncExitStack() as handles:
            subject = PostgresSubject(url, handles, hand)
            subject.store = await subject.another()
            yield subject
    finally:
        await hand.close()
