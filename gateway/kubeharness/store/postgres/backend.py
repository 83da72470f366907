"""Postgres as a `store.backend.Backend`: transactions of a few round trips, plain reads, the configuration.

A verb costs BEGIN, one lock, at most one read of side rows, one write, COMMIT; or, where the batcher may try it, at
most two reads and a guarded write. Nothing about states is decided here.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from kubeharness.core.ids import AttemptId, ConversationId, SubmissionId
from kubeharness.core.lane import Lane
from kubeharness.engine.ports import Loaded, Page
from kubeharness.store.backend import Candidate, Found, Holdings, Need, Side, Writes
from kubeharness.store.migrate import check_schema
from kubeharness.store.postgres import locks, reads
from kubeharness.store.postgres.checks import Checks
from kubeharness.store.postgres.database import Connection, Database, translated
from kubeharness.store.postgres.guarded import GuardedTransaction
from kubeharness.store.postgres.known import Knowledge
from kubeharness.store.postgres.locks import Locked, LowWater
from kubeharness.store.postgres.revisions import Publisher
from kubeharness.store.postgres.sides import completed
from kubeharness.store.postgres.walks import PostgresSnapshot
from kubeharness.store.postgres.writes import Written, write
from kubeharness.store.verbs import Item


class PostgresTransaction:
    """An open transaction on one of the write connections."""

    def __init__(self, connection: Connection, low_water: LowWater, knowledge: Knowledge) -> None:
        self._connection = connection
        self._low_water = low_water
        self._knowledge = knowledge
        self._now: int | None = None
        self._side = Side()
        self._written: tuple[Sequence[Lane], Written] | None = None
        self._before: dict[ConversationId, Lane] = {}

    @property
    def now(self) -> int:
        """The database's clock after the last lock."""
        assert self._now is not None, "the clock is read with a lock"
        return self._now

    def _learn(self, locked: Locked) -> list[Lane]:
        self._now = locked.now
        self._before.update((lane.id, lane) for lane in locked.lanes)
        return locked.lanes

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        """Lock and read these lanes in id order."""
        with translated():
            lanes = self._learn(await locks.lock_lanes(self._connection, ids))
        return {lane.id: lane for lane in lanes}

    async def lock_candidates(
        self, *, pool: str, limit: int, failed: int, formats: Sequence[int], all_ready: bool
    ) -> Sequence[Candidate]:
        """Lock ready lanes, the oldest first."""
        with translated():
            locked, candidates, self._side = await locks.lock_candidates(
                self._connection,
                self._low_water,
                pool=pool,
                limit=limit,
                failed=failed,
                formats=formats,
                all_ready=all_ready,
            )
        self._learn(locked)
        return candidates

    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        """Lock running lanes whose lease is over."""
        with translated():
            return self._learn(await locks.lock_expired(self._connection, limit))

    async def lock_delayed(self, limit: int) -> Sequence[Lane]:
        """Lock delayed lanes whose time has come."""
        with translated():
            return self._learn(await locks.lock_delayed(self._connection, limit))

    async def lock_held(self, attempts: Sequence[AttemptId], *, skip_locked: bool) -> Holdings:
        """Lock what these attempts hold."""
        with translated():
            locked, holdings = await locks.lock_held(self._connection, attempts, skip_locked=skip_locked)
        self._learn(locked)
        return holdings

    async def side(self, need: Need) -> Side:
        """Read side rows."""
        with translated():
            self._side = await completed(self._connection, need, self._side)
        return self._side

    async def write(self, writes: Writes) -> None:
        """Store all of it."""
        with translated():
            self._knowledge.forget(lane.id for lane in writes.lanes)
            written = await write(self._connection, writes, self._before)
        if written is not None:
            self._written = (writes.lanes, written)

    def committed(self) -> None:
        """It is committed: from now on this process knows its lanes."""
        if self._written is not None:
            lanes, written = self._written
            self._knowledge.told(written.now)
            self._knowledge.learn(lanes, written.version, self._side.positions)


class PostgresBackend(Publisher, Checks):
    """One database, seen by one process in one event loop."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.database = database
        self._low_water = LowWater()
        self._knowledge = Knowledge()
        database.on_connect = self._knowledge.forget_all

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        """A transaction, committed at the end of its block."""
        async with self.database.transaction() as connection:
            tx = PostgresTransaction(connection, self._low_water, self._knowledge)
            yield tx
        tx.committed()

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[Callable[[Sequence[Item]], GuardedTransaction]]:
        """A write connection, and what makes a transaction of one statement on it."""
        async with self.database.statement() as connection:
            yield lambda items: GuardedTransaction(connection, self._knowledge, items)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PostgresSnapshot]:
        """One view of everything."""
        async with self.database.snapshot() as connection:
            yield PostgresSnapshot(connection)

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq."""
        async with self.database.read() as connection:
            return await reads.page(connection, conversation, after=after, limit=limit)

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose log has grown."""
        async with self.database.read() as connection:
            return await reads.moved(connection, watched)

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """What an attempt starts from."""
        async with self.database.read() as connection:
            return await reads.load(connection, conversation)

    async def find(self, submission: SubmissionId) -> Found | None:
        """A submission with all that its state derives from."""
        async with self.database.read() as connection:
            return await reads.find(connection, submission)

    async def find_unsettled(self, conversation: ConversationId, *, limit: int) -> Sequence[Found]:
        """From the head on, those without a settlement."""
        async with self.database.read() as connection:
            return await reads.find_unsettled(connection, conversation, limit=limit)

    async def ready(self) -> None:
        """Raises Unavailable if the database does not answer or its schema is not ours."""
        async with self.database.read() as connection:
            await check_schema(connection)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.database.aclose()
