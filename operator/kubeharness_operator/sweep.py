"""Complete lists against what the watches showed and what is published: relists and restarts lose DELETED events.

Runs 10 s after the start, 10 s after a watch listed anew, and every 5 minutes. Decides nothing itself: whatever
differs is read again, or its key is worked on, and that asks the API server about the one object.
"""

import asyncio
import logging
from collections.abc import Sequence

from kubeharness_operator.objects import AGENTS, KINDS, Key, Objects, Seen
from kubeharness_operator.ports import Cluster, ClusterError, ObjectMeta
from kubeharness_operator.queue import WorkQueue
from kubeharness_operator.reconcile import Reconciler

SOON_SECONDS = 10.0
EVERY_SECONDS = 300.0
LAG_SECONDS = 5.0
"""What a watch may be behind a list before it counts as deaf."""
RETRY_SECONDS = 30.0

log = logging.getLogger(__name__)


class Sweep:
    """The sweeper of one operator process."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        objects: Objects,
        queue: WorkQueue[Key],
        reconciler: Reconciler,
        namespaces: Sequence[str],
        soon: float = SOON_SECONDS,
        every: float = EVERY_SECONDS,
        lag: float = LAG_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._objects = objects
        self._queue = queue
        self._reconciler = reconciler
        self._namespaces = namespaces
        self._soon, self._every, self._lag = soon, every, lag
        self._due = 0.0
        self._moved = asyncio.Event()
        self.deaf = 0
        """Sweeps in a row that found objects which no watch had shown."""
        self.trouble = ""
        """Why the last sweep did not come to its end; empty if it did."""
        self.ended = 0
        """Sweeps that came to their end."""

    def soon(self) -> None:
        """A watch listed anew, so it may have missed a deletion."""
        due = asyncio.get_running_loop().time() + self._soon
        if due < self._due:
            self._due = due
            self._moved.set()

    async def run(self) -> None:
        """Sweep for ever; a list that fails is tried again."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._soon
        while True:
            while (left := self._due - loop.time()) > 0:
                await self._wait(left)
            self._due = loop.time() + self._every
            try:
                await self.once()
                self.trouble = ""
            except ClusterError as error:
                log.warning("sweep: %s", error)
                self.trouble = str(error)
                self._due = min(self._due, loop.time() + RETRY_SECONDS)

    async def _wait(self, seconds: float) -> None:
        self._moved.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return

    async def once(self) -> None:
        """One sweep over all kinds. Raises ClusterError if a list is not complete."""
        await self._reconciler.learn()  # the CRDs may be others by now
        missed = 0
        for plural in KINDS:
            missed += await self._kind(plural)
        self.deaf = self.deaf + 1 if missed else 0
        if not missed and self._reconciler.database_up and self._queue.settled:
            await self._reconciler.drop_orphans()  # every object was seen and dealt with, so all needs are known
        self.ended += 1

    async def _kind(self, plural: str) -> int:
        """Returns how many objects no watch had shown."""
        seen_before = list(self._objects.of(plural))
        published_before = self._reconciler.heads.standing() if plural == AGENTS else []
        listed = await self._listed(plural)
        uids = {meta.uid for meta in listed}
        for seen in seen_before:
            if seen.uid not in uids:
                self._objects.forget(seen.key, seen.uid)
                self._queue.add(seen.key)
        for head in published_before:
            if head.uid not in uids and self._serves(head.namespace):
                self._queue.add(Key(plural, head.namespace, head.name))
        if not self._behind(plural, listed):
            return 0
        await asyncio.sleep(self._lag)
        missed = 0
        for meta in self._behind(plural, listed):
            document = await self._cluster.get(plural, meta.namespace, meta.name)
            if document is not None:  # else it is gone by now, and that was shown
                missed += 1
                log.warning("the watch has not shown %s %s/%s", plural, meta.namespace, meta.name)
                self._queue.add(self._objects.put(plural, document))
        return missed

    async def _listed(self, plural: str) -> Sequence[ObjectMeta]:
        if not self._namespaces:
            return await self._cluster.list_metadata(plural, None)
        return [meta for namespace in self._namespaces for meta in await self._cluster.list_metadata(plural, namespace)]

    def _serves(self, namespace: str) -> bool:
        return not self._namespaces or namespace in self._namespaces

    def _behind(self, plural: str, listed: Sequence[ObjectMeta]) -> list[ObjectMeta]:
        """Objects of a list of which the watches have not shown as much, or nothing."""
        return [meta for meta in listed if _is_behind(self._objects.get(Key(plural, meta.namespace, meta.name)), meta)]


def _is_behind(seen: Seen | None, meta: ObjectMeta) -> bool:
    if seen is None:
        return True
    if seen.version == meta.version:
        return False
    return not (seen.version.isdecimal() and meta.version.isdecimal()) or int(seen.version) < int(meta.version)
