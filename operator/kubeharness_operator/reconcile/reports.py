"""Writes a status where it changed, and an Event where that is news. Nothing else of ours writes to the API server."""

import logging
from collections.abc import Mapping

from kubeharness.core.json import JsonObject
from kubeharness_operator.conditions import Status, pruned, same, transitions
from kubeharness_operator.objects import KINDS, Objects, Seen
from kubeharness_operator.ports import (
    Cluster,
    ClusterError,
    Conflicted,
    NamespaceLeaving,
    NotServed,
    ObjectEvent,
    SchemaMismatch,
)
from kubeharness_operator.reconcile.served import lacking

log = logging.getLogger(__name__)


class Reports:
    """The way of a status to the API server."""

    def __init__(self, objects: Objects, cluster: Cluster) -> None:
        self._objects = objects
        self._cluster = cluster
        self._schemas: Mapping[str, JsonObject] = {}
        self.lacking = ""
        """Which fields the server's CRDs lack, if any: they are older than we are."""
        self.written = 0
        """How many statuses were written."""

    async def learn(self) -> bool:
        """Ask what the server takes: fields of a status that it lacks are left out. Raises NotServed.

        Returns whether it takes all now, and did not when it was asked before.
        """
        served = await self._cluster.schemas()
        self._schemas = {plural: _status(schema) for plural, schema in served.items()}
        before, self.lacking = self.lacking, lacking(served)
        if self.lacking and self.lacking != before:
            log.warning("%s", self.lacking)
        return bool(before) and not self.lacking

    async def report(self, seen: Seen, status: Status) -> None:
        """Have the object say this. Raises ClusterError: try again, the object was read anew where that helps."""
        if seen.key.plural not in self._schemas:
            raise NotServed(f"it is not known yet what the server takes as status of {seen.key.plural}")
        status = pruned(status, self._schemas[seen.key.plural])
        if same(status, seen.status):
            return
        try:
            stored = await self._cluster.apply_status(*seen.key, version=seen.version, status=status)
        except Conflicted:
            await self._read_again(seen)
            raise
        except SchemaMismatch:
            await self.learn()
            raise
        self.written += 1
        if stored is None:
            self._objects.forget(seen.key, seen.uid)
            return
        self._objects.refresh(seen.key.plural, stored)
        await self._tell(seen, status)

    async def _read_again(self, seen: Seen) -> None:
        """The watch will bring the newer state too, unless it is deaf."""
        document = await self._cluster.get(*seen.key)
        if document is None:
            self._objects.forget(seen.key, seen.uid)
        else:
            self._objects.put(seen.key.plural, document)

    async def _tell(self, seen: Seen, status: Status) -> None:
        """An Event is worth one try: it never delays or repeats a status."""
        for transition in transitions(status, seen.status):
            event = ObjectEvent(
                kind=KINDS[seen.key.plural],
                namespace=seen.key.namespace,
                name=seen.key.name,
                uid=seen.uid,
                version=seen.version,
                warning=transition.warning,
                reason=transition.reason,
                message=transition.message,
            )
            try:
                await self._cluster.record(event)
            except NamespaceLeaving:
                return  # with all that is in it: nobody will read of it there
            except ClusterError as error:
                log.warning("no Event for %s: %s", seen.key, error)


def _status(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    status = properties.get("status") if isinstance(properties, dict) else None
    return status if isinstance(status, dict) else {"x-kubernetes-preserve-unknown-fields": True}
