"""Revisions and tool catalogues, loaded once and kept: a claim asks no database for what cannot change."""

from collections import OrderedDict

from kubeharness.core import codec
from kubeharness.core.errors import NotFound
from kubeharness.core.ids import RevisionId
from kubeharness.core.json import Json
from kubeharness.core.revision import AgentRevision
from kubeharness.engine.ports import Clock, Head, Store

KEPT = 1000
CATALOGUE_SECONDS = 5.0


class Revisions:
    """A bounded cache of revisions by id, and of catalogues for a few seconds."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._revisions: OrderedDict[RevisionId, AgentRevision] = OrderedDict()
        self._catalogues: dict[tuple[str, str], tuple[float, Json]] = {}

    async def get(self, revision: RevisionId) -> AgentRevision:
        """The revision. Raises NotFound if the store lacks it, ValueError or KeyError if it cannot be read."""
        known = self._revisions.get(revision)
        if known is not None:
            self._revisions.move_to_end(revision)
            return known
        stored = await self._store.revision(revision)
        if stored is None:
            raise NotFound(f"revision {revision}")
        loaded = codec.load_revision(stored)
        self._revisions[revision] = loaded
        while len(self._revisions) > KEPT:
            self._revisions.popitem(last=False)
        return loaded

    async def prepare(self, head: Head) -> None:
        """Load what a head will need before its version is acknowledged."""
        for revision in {head.active, head.desired}:
            if revision is not None:
                await self.get(revision)

    async def catalogue(self, namespace: str, server: str) -> Json:
        """The last good answer of a tool server's discovery; None if there is none yet."""
        now = self._clock.monotonic()
        known = self._catalogues.get((namespace, server))
        if known is not None and now - known[0] < CATALOGUE_SECONDS:
            return known[1]
        found = await self._store.check_get("tools", namespace, server)
        result = found.result if found is not None else None
        if result is not None:
            self._catalogues[namespace, server] = (now, result)
        return result
