"""The store of clusters: the verbs over Postgres, micro-batched, with renewal apart."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from kubeharness.core.ids import AttemptId
from kubeharness.engine.ports import Renewal
from kubeharness.store import verbs
from kubeharness.store.migrate import check_schema
from kubeharness.store.postgres.backend import PostgresBackend
from kubeharness.store.postgres.batcher import Batcher
from kubeharness.store.postgres.beside import beside
from kubeharness.store.postgres.database import Database
from kubeharness.store.postgres.renewal import Renew, renew, renewing
from kubeharness.store.store import TransactionalStore

WRITES = 2

log = logging.getLogger(__name__)


class PostgresStore(TransactionalStore):
    """`engine.ports.Store` over Postgres, in one event loop; what `renewer` opens may run in another."""

    def __init__(self, database: Database, *, batched: bool = True) -> None:
        backend = PostgresBackend(database)
        super().__init__(backend)
        self._database = database
        self._renewals = database.line("renew")
        guarded = None if database.pooled else backend.guarded  # a pooler's next server may be another
        self._batcher = Batcher(backend.transaction, super().execute, guarded) if batched else None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, pooled: bool = False, batched: bool = True) -> AsyncIterator["PostgresStore"]:
        """A store for as long as the block lasts; connections are made when they are first needed.

        `pooled`: a transaction pooler stands between (slower: nothing stays prepared). Without `batched`, each
        call has a transaction of its own.
        """
        if pooled:
            log.warning("a transaction pooler is said to stand before Postgres: nothing stays prepared, all is slower")
        store = cls(Database(url, pooled=pooled, writes=WRITES, check=check_schema), batched=batched)
        try:
            async with store._serving():
                yield store
        finally:
            await store.aclose()

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        batcher = self._batcher
        if batcher is None:
            yield
            return
        async with beside(*(batcher.serve() for _ in range(WRITES))):
            try:
                yield
            finally:
                await batcher.close()

    async def execute(self, items: Sequence[verbs.Item]) -> list[verbs.Result]:
        """Answer a batch of items, merged with those of other callers (I14)."""
        if self._batcher is None:
            return await super().execute(items)
        return await self._batcher.execute(items)

    async def renew(self, *, owner: str, attempts: Sequence[AttemptId], lease_ms: int) -> Sequence[Renewal]:
        """Extend the leases of these attempts, on a connection apart from the writes."""
        return await renew(self._renewals, attempts, lease_ms)

    def renewer(self, *, lease_ms: int) -> AbstractAsyncContextManager[Renew]:
        """A renewal with a connection of its own, in whatever event loop it is entered in."""
        return renewing(self._database.line("renew"), lease_ms=lease_ms)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._renewals.aclose()
        await super().aclose()
