"""Our stores as the conformance suite takes them: with a clock that the test holds."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kubeharness.engine.ports import Store
from kubeharness.store.backend import Backend
from kubeharness.store.memory import MemoryBackend
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
