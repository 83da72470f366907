"""Objects as they are now: from the watches, else from the API server, so that nothing is missing by mere delay.

A watch may show an Agent before what it names, above all at the start. So an object that no watch has shown is
asked for before it is called missing. ConfigMaps without our label are never shown: those are read again now and then.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kubeharness_operator.objects import CONFIG_MAPS, Document, Key, Objects
from kubeharness_operator.ports import Cluster, ClusterError

REREAD_SECONDS = 60.0
REREAD_MISSING_SECONDS = 10.0


@dataclass(slots=True)
class _Read:
    document: Document | None
    at: float

    @property
    def version(self) -> str:
        return self.document["metadata"]["resourceVersion"] if self.document else ""


class Lookups:
    """Finds objects by key. Raises ClusterError where it has to ask and gets no answer."""

    def __init__(self, objects: Objects, cluster: Cluster, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._objects = objects
        self._cluster = cluster
        self._clock = clock
        self._config_maps: dict[Key, _Read] = {}

    async def find(self, key: Key) -> Document | None:
        """The object under this key; None if there is none."""
        seen = self._objects.get(key)
        if seen is not None:
            return seen.document
        if key.plural == CONFIG_MAPS:
            return await self._config_map(key)
        return await self.find_now(key)

    async def find_now(self, key: Key) -> Document | None:
        """The object as the API server has it at this moment, taken in as if a watch had shown it."""
        document = await self._cluster.get(*key)
        if document is not None:
            self._objects.put(key.plural, document)
        return document

    async def _config_map(self, key: Key) -> Document | None:
        read = self._config_maps.get(key)
        if read is None:
            read = self._config_maps[key] = _Read(await self._cluster.get(*key), self._clock())
        return read.document

    async def reread(self, wanted: frozenset[Key]) -> set[Key]:
        """Read those unlabelled ConfigMaps anew whose time has come; returns the ones that changed.

        A read that fails leaves what was read before. What is not wanted any more is forgotten.
        """
        for key in [key for key in self._config_maps if key not in wanted or self._objects.get(key)]:
            del self._config_maps[key]
        changed: set[Key] = set()
        for key, read in list(self._config_maps.items()):
            age = self._clock() - read.at
            if age < (REREAD_MISSING_SECONDS if read.document is None else REREAD_SECONDS):
                continue
            try:
                fresh = _Read(await self._cluster.get(*key), self._clock())
            except ClusterError:
                continue
            if fresh.version != read.version:
                changed.add(key)
            self._config_maps[key] = fresh
        return changed
