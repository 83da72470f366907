"""Which concrete parts make an operator, built from settings. Knows no kopf: that is the command line's.

There is one replica (Recreate), so there is no Lease and no `leader.py`: the epoch fences, and an operator that
another has taken over from ends by itself.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kubeharness.core.errors import Conflict
from kubeharness.core.ids import RevisionId
from kubeharness.core.revision import StoredRevision
from kubeharness.store.migrate import check_schema
from kubeharness.store.postgres.checks import Checks
from kubeharness.store.postgres.database import Database
from kubeharness.store.postgres.notify import PostgresWaker
from kubeharness.store.postgres.revisions import Publisher
from kubeharness_operator.cluster import KubernetesCluster, load_configuration
from kubeharness_operator.health import Health, serving
from kubeharness_operator.news import PodEvents
from kubeharness_operator.objects import AGENTS, CONFIG_MAPS, KINDS, Key, Objects
from kubeharness_operator.ports import Acknowledgement, CheckPut, CheckResult, Cluster, EpochOver, Head, HeadWrite
from kubeharness_operator.queue import WorkQueue
from kubeharness_operator.reconcile import EXPECTED, Reconciler
from kubeharness_operator.settings import OperatorSettings
from kubeharness_operator.sweep import Sweep

if TYPE_CHECKING:
    from typing import Any

WORKERS = 16
RESTART_SECONDS = 5

log = logging.getLogger(__name__)


class PostgresPublisher:
    """`ports.RevisionPublisher` over the store's two halves, with a hint to all who load after each write.

    What we write has the fields of the engine's dataclasses and is read by its attributes alone; the engine's own
    module is not the operator's to import, hence the casts. A test holds the fields together.
    """

    def __init__(self, database: Database, waker: PostgresWaker) -> None:
        self._database = database
        self._waker = waker
        self._revisions = Publisher(database)
        self._checks = Checks(database)

    async def ready(self) -> None:
        """Ask the database for its schema."""
        async with self._database.read() as connection:
            await check_schema(connection)

    async def epoch(self, installation: str) -> int:
        """Take over as publisher; the database is another installation's: Conflict."""
        return await self._revisions.epoch(installation)

    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction."""
        clock = await self._revisions.publish(epoch, cast("Any", heads))
        self._waker.touched((), work=True)
        return clock

    async def retire(self, epoch: int, uids: Sequence[str]) -> int:
        """Take heads out of service."""
        clock = await self._revisions.retire(epoch, uids)
        self._waker.touched((), work=True)
        return clock

    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock."""
        return await self._revisions.heads(after=after)

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """A revision with its parts."""
        return await self._revisions.revision(revision)

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        """Who has loaded a head version."""
        return await self._revisions.acknowledged(version=version, pool=pool)

    async def check_put(self, items: Sequence[CheckPut]) -> None:
        """Put questions."""
        await self._checks.check_put(cast("Any", items))
        self._waker.touched((), work=True)

    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Take questions back."""
        await self._checks.check_drop(items)

    async def check_results(self, *, after: int) -> Sequence[CheckResult]:
        """Answers that changed after this check clock."""
        return await self._checks.check_results(after=after)


@dataclass(slots=True)
class Watched:
    """When the watches showed something last."""

    events: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The parts of one process."""

    settings: OperatorSettings
    health: Health
    cluster: Cluster
    objects: Objects
    queue: WorkQueue[Key]
    reconciler: Reconciler
    sweep: Sweep
    watched: Watched

    def noticed(self, listed: bool) -> None:
        """A watch showed something; after a list something may be gone unseen."""
        self.watched.events += 1
        self.watched.at = time.monotonic()
        if listed:
            self.sweep.soon()

    async def check_served(self) -> None:
        """Raises ClusterError, naming what is missing, unless the server serves our kinds and lets us list them."""
        await self.reconciler.learn()
        for plural in (*KINDS, CONFIG_MAPS):
            for namespace in self.settings.namespaces or (None,):
                await self.cluster.check_list(plural, namespace)

    def leading(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What runs from the start: it needs nothing of the API server."""
        return (self.reconciler.follow, PodEvents(self.cluster, self.health, self.settings).run)

    def working(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What runs once the CRDs are served."""
        return (
            lambda: self.queue.run(self.reconciler.work, workers=WORKERS),
            self.reconciler.reread,
            self.reconciler.relearn,
            self.sweep.run,
        )

    def figures(self) -> Mapping[str, float]:
        """The metrics."""
        reconciler = self.reconciler
        return {
            "watch_events_total": self.watched.events,
            "watch_event_age_seconds": time.monotonic() - self.watched.at if self.watched.at else 0.0,
            "sweeps_total": self.sweep.ended,
            "deaf_sweeps": self.sweep.deaf,
            "agents": sum(1 for _ in self.objects.of(AGENTS)),
            "agents_pending": len(reconciler.acknowledgements),
            "queue_length": len(self.queue),
            "reconciles_total": self.queue.worked,
            "reconcile_failures_total": self.queue.failed,
            "status_writes_total": reconciler.reports.written,
            "database_up": float(reconciler.database_up),
        }


@asynccontextmanager
async def operator(settings: OperatorSettings) -> AsyncIterator[Operator]:
    """An operator whose health port answers; nothing else of it runs yet. Connections close with the block."""
    health = Health()
    url, direct = settings.database(), settings.direct()
    async with (
        serving(health, host=settings.health_host, port=settings.health_port) as port,
        PostgresWaker.open(direct) as waker,
    ):
        log.info("health on port %d", port)
        cluster = KubernetesCluster(await load_configuration(), instance=settings.installation_id)
        database = Database(url, pooled=settings.database_pooled, check=check_schema)
        objects = Objects()
        queue: WorkQueue[Key] = WorkQueue(expected=EXPECTED)
        reconciler = Reconciler(
            cluster=cluster,
            publisher=PostgresPublisher(database, waker),
            objects=objects,
            queue=queue,
            installation=settings.installation_id,
        )
        parts = Operator(
            settings=settings,
            health=health,
            cluster=cluster,
            objects=objects,
            queue=queue,
            reconciler=reconciler,
            sweep=Sweep(
                cluster=cluster,
                objects=objects,
                queue=queue,
                reconciler=reconciler,
                namespaces=settings.namespaces,
            ),
            watched=Watched(),
        )
        waker.on_work(reconciler.hint)
        health.gauges, health.deaf = parts.figures, lambda: parts.sweep.deaf
        health.trouble = lambda: parts.sweep.trouble
        health.database = lambda: reconciler.database_trouble
        health.lacking = lambda: reconciler.reports.lacking
        try:
            yield parts
        finally:
            await cluster.aclose()
            await database.aclose()


async def enduring(job: Callable[[], Awaitable[None]]) -> None:
    """Run an endless job until we are cancelled ourselves; what it did not expect is logged, and it goes on.

    Only a database that is another's ends the process: Conflict, EpochOver.
    When kopf ends it cancels every task that was born while it ran, also such as a library of ours had started to
    wait for: what reaches the job then looks like its own cancellation and is none.
    """
    while True:
        try:
            await job()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.info("a job was interrupted by the end of the watches; it goes on")
        except (Conflict, EpochOver):
            raise
        except Exception:
            log.exception("a job failed; it starts again in %d s", RESTART_SECONDS)
            await asyncio.sleep(RESTART_SECONDS)
