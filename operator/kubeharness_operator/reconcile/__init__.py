"""The use case for one key: look up, resolve, compile, publish, report. No kopf, no client, no SQL.

`Reconciler.work` handles one key; a repeat of it is harmless and writes nothing if nothing changed. `follow` keeps
asking the database for what comes back from workers and gateways, and rouses the keys concerned.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from kubeharness.core.errors import Conflict, KubeharnessError, Unavailable
from kubeharness_operator.objects import AGENTS, CONFIG_MAPS, KINDS, Key, Objects
from kubeharness_operator.ports import Cluster, ClusterError, EpochOver, RevisionPublisher
from kubeharness_operator.queue import WorkQueue
from kubeharness_operator.reconcile.acknowledgements import Acknowledgements
from kubeharness_operator.reconcile.agents import Agents
from kubeharness_operator.reconcile.checks import Checks
from kubeharness_operator.reconcile.heads import Heads
from kubeharness_operator.reconcile.lookups import Lookups
from kubeharness_operator.reconcile.reports import Reports
from kubeharness_operator.reconcile.sources import Sources
from kubeharness_operator.references import References

POLL_SECONDS = 2.0
POLL_PENDING_SECONDS = 1.0
AFTER_HINT_SECONDS = 0.5
AFTER_HINT_PENDING_SECONDS = 0.1
"""Hints that come in a burst, and in a busy fleet they never end, are followed once."""
REREAD_TICK_SECONDS = 5.0
RELEARN_SECONDS = 3.0

EXPECTED = (ClusterError, Unavailable, EpochOver)
"""What may happen to any key, and is no fault of ours: for the queue."""

log = logging.getLogger(__name__)


class Reconciler:
    """All that one operator process does with objects."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        publisher: RevisionPublisher,
        objects: Objects,
        queue: WorkQueue[Key],
        installation: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._queue = queue
        self._hint = asyncio.Event()
        self._references: References[Key, Key] = References()
        self._waiting: set[Key] = set()
        self._objects = objects
        self._publisher = publisher
        self.database_trouble = "it has not been asked yet"
        """Why the database cannot be used; empty if it can."""
        self.heads = Heads(publisher, installation)
        self.checks = Checks(publisher, queue.add)
        self.acknowledgements = Acknowledgements(publisher, queue.add)
        self.reports = Reports(objects, cluster)
        self._lookups = Lookups(objects, cluster)
        self._sources = Sources(
            objects=objects,
            checks=self.checks,
            reports=self.reports,
            rouse_naming=self._rouse_naming,
            now=now,
        )
        self._agents = Agents(
            objects=objects,
            lookups=self._lookups,
            references=self._references,
            heads=self.heads,
            checks=self.checks,
            acknowledgements=self.acknowledgements,
            reports=self.reports,
            now=now,
        )
        self.database_up = False
        """Whether the database answered when it was asked last."""

    def hint(self) -> None:
        """Something may have come back through the database: look soon."""
        self._hint.set()

    async def learn(self) -> None:
        """Ask what the server's CRDs have. Raises ClusterError."""
        if await self.reports.learn():
            log.info("the CRDs have all fields now: every status is looked at again")
            self._rouse(seen.key for plural in KINDS for seen in self._objects.of(plural))

    async def relearn(self) -> None:
        """Ask again for as long as the CRDs are older than we are, for ever."""
        while True:
            await asyncio.sleep(RELEARN_SECONDS)
            if self.reports.lacking:
                try:
                    await self.learn()
                except ClusterError as error:
                    log.info("the CRDs are asked for again: %s", error)

    async def work(self, key: Key) -> None:
        """Bring one key to where its object says it should be."""
        done = True
        if key.plural == AGENTS:
            done = await self._agents.work(key)
            if self.acknowledgements:
                self.hint()
        elif key.plural == CONFIG_MAPS:
            self._rouse_naming(key)
        else:
            done = await self._sources.work(key)
        if not done:
            self._waiting.add(key)

    def _rouse_naming(self, key: Key) -> None:
        self._rouse(self._references.naming(key))

    def _rouse(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._queue.add(key)

    # --- what comes back through the database ---------------------------------------------------------------------

    async def follow(self) -> None:
        """Take over, then follow answers and acknowledgements for ever; without a database, try again and again.

        Raises Conflict if the database belongs to another installation, EpochOver once another operator publishes.
        """
        while True:
            await self.look()
            if self.heads.over.is_set():
                raise EpochOver("another operator took over as publisher; this one ends")
            await self._wait(POLL_PENDING_SECONDS if self.acknowledgements else POLL_SECONDS)

    async def look(self) -> None:
        """Take over if that is not done, and rouse whoever the database has news for. Raises Conflict."""
        try:
            await self._publisher.ready()
            await self.heads.take_over()
            await self.checks.refresh()
            await self.acknowledgements.ask()
        except Conflict:
            raise
        except KubeharnessError as error:
            self._lost(error)
            return
        if not self.database_up:
            self.database_up = True
            self.database_trouble = ""
            log.info("the database answers")
        waiting, self._waiting = self._waiting, set()
        self._rouse(waiting)

    def _lost(self, error: KubeharnessError) -> None:
        """Only those that wait for the database are told."""
        why = error.why if isinstance(error, Unavailable) else str(error)
        if why != self.database_trouble:
            log.warning("the database cannot be used: %s", why)
        self.database_trouble = why
        self.database_up = False
        self.acknowledgements.lost()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        except TimeoutError:
            return
        self._hint.clear()
        await asyncio.sleep(AFTER_HINT_PENDING_SECONDS if self.acknowledgements else AFTER_HINT_SECONDS)

    async def drop_orphans(self) -> None:
        """Forget the checks that nobody needs; the caller knows that all objects were seen and dealt with."""
        try:
            await self.checks.drop_orphans()
        except Unavailable as error:
            log.info("orphaned checks stay for now: %s", error)

    # --- what no watch shows --------------------------------------------------------------------------------------

    async def reread(self) -> None:
        """Keep the ConfigMaps that are not watched fresh, for ever."""
        while True:
            await asyncio.sleep(REREAD_TICK_SECONDS)
            wanted = frozenset(key for key in self._references.things() if key.plural == CONFIG_MAPS)
            for key in await self._lookups.reread(wanted):
                self._rouse_naming(key)
