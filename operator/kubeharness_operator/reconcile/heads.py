"""What is published: our copy of the heads, and the only hands that write them.

Without a database nothing is known and nothing is written, and nobody but those who wait for it is disturbed. The
epoch fences: once another operator took over, every write of ours is refused and `over` is set.
"""

import asyncio
import logging

from kubeharness.core.codec import load_revision
from kubeharness.core.errors import Conflict, Unavailable
from kubeharness.core.ids import RevisionId
from kubeharness.core.revision import AgentRevision
from kubeharness_operator.ports import EpochOver, Head, HeadWrite, RevisionPublisher

log = logging.getLogger(__name__)


class Heads:
    """The heads by uid. Raises Unavailable from every method that needs the database, while there is none."""

    def __init__(self, publisher: RevisionPublisher, installation: str) -> None:
        self._publisher = publisher
        self._installation = installation
        self._epoch: int | None = None
        self._clock = 0
        self._heads: dict[str, Head] = {}
        self._revisions: dict[RevisionId, AgentRevision] = {}
        self.over = asyncio.Event()
        """Set for good once another operator publishes."""

    @property
    def known(self) -> bool:
        """Whether the database has told what is published; stays so when it goes away."""
        return self._epoch is not None

    async def take_over(self) -> None:
        """Become the publisher and learn all heads; nothing happens if that was done before.

        Raises Conflict if the database belongs to another installation.
        """
        if self._epoch is not None:
            return
        epoch = await self._publisher.epoch(self._installation)
        await self._refresh()
        self._epoch = epoch
        log.info("publishing as %s in epoch %d; %d heads are known", self._installation, epoch, len(self._heads))

    def get(self, uid: str) -> Head | None:
        """The head of one Agent object, in force or not yet; None if there is none or it is retired."""
        head = self._heads.get(uid)
        return None if head is None or head.retired else head

    def standing(self) -> list[Head]:
        """All that are not retired."""
        return [head for head in self._heads.values() if not head.retired]

    def at(self, namespace: str, name: str) -> list[Head]:
        """Those that are not retired and stand under this name."""
        return [head for head in self.standing() if (head.namespace, head.name) == (namespace, name)]

    async def publish(self, write: HeadWrite) -> Head:
        """Have this head stand as written, without a write if it does already."""
        head = self.get(write.uid)
        if head is not None and _stands(head, write):
            return head
        try:
            await self._publisher.publish(self._fence(), [write])
        except Conflict as error:
            raise self._fenced(error) from error
        await self._refresh()
        return self._heads[write.uid]

    async def retire(self, uids: list[str]) -> None:
        """Take heads out of service; what runs on them finishes."""
        try:
            await self._publisher.retire(self._fence(), uids)
        except Conflict as error:
            raise self._fenced(error) from error
        await self._refresh()

    async def revision(self, id: RevisionId) -> AgentRevision | None:
        """A published revision; None if it is not there any more."""
        if id not in self._revisions:
            stored = await self._publisher.revision(id)
            if stored is None:
                return None
            self._revisions[id] = load_revision(stored)
        return self._revisions[id]

    def _fence(self) -> int:
        if self._epoch is None:
            raise Unavailable("the database has not answered yet, so nothing can be published")
        return self._epoch

    def _fenced(self, error: Conflict) -> EpochOver:
        self.over.set()
        return EpochOver(str(error))

    async def _refresh(self) -> None:
        for head in await self._publisher.heads(after=self._clock):
            self._heads[head.uid] = head
            self._clock = max(self._clock, head.version)
        in_force = {head.active for head in self._heads.values()}
        self._revisions = {name: revision for name, revision in self._revisions.items() if name in in_force}
        for uid in [uid for uid, head in self._heads.items() if head.retired]:
            del self._heads[uid]


def _stands(head: Head, write: HeadWrite) -> bool:
    active = write.desired if write.activate else head.active
    return (head.generation, head.desired, head.active, head.note) == (
        *(write.generation, write.desired, active, write.note),
    )
