"""Writes a status where it changed, and an Event where that is news. Nothing else of ours writes to the API server."""

import logging
from collections.abc import Mapping

from kubeharness.core.json import JsonObject
from kubeharness.kinds.agent import AgentStatus
from kubeharness.kinds.common import Part
from kubeharness.kinds.modelprovider import ModelProviderStatus
from kubeharness.kinds.toolserver import ToolServerStatus
from kubeharness_operator.conditions import Status, pruned, same, transitions
from kubeharness_operator.objects import AGENTS, KINDS, PROVIDERS, TOOL_SERVERS, Objects, Seen
from kubeharness_operator.ports import (
    Cluster,
    ClusterError,
    Conflicted,
    NotServed,
    ObjectEvent,
    SchemaMismatch,
)

log = logging.getLogger(__name__)

_STATUSES: Mapping[str, type[Part]] = {
    AGENTS: AgentStatus,
    PROVIDERS: ModelProviderStatus,
    TOOL_SERVERS: ToolServerStatus,
}


class Reports:
    """The way of a status to the API server."""

    def __init__(self, objects: Objects, cluster: Cluster) -> None:
        self._objects = objects
        self._cluster = cluster
        self._schemas: Mapping[str, JsonObject] = {}
        self.lacking = ""
        """Which fields of a status the server does not take, if any: its CRDs are older than we are."""
        self.written = 0
        """How many statuses were written."""

    async def learn(self) -> Mapping[str, JsonObject]:
        """Ask what the server takes as status: fields that it lacks are left out. Raises NotServed."""
        self._schemas = await self._cluster.status_schemas()
        lacking = _lacking(self._schemas)
        if lacking and lacking != self.lacking:
            log.warning("%s; upgrade the CRDs", lacking)
        self.lacking = lacking
        return self._schemas

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
            except ClusterError as error:
                log.warning("no Event for %s: %s", seen.key, error)


def _lacking(schemas: Mapping[str, JsonObject]) -> str:
    """What we would write and the server would not take, as a sentence."""
    found = []
    for plural, status in _STATUSES.items():
        schema = schemas.get(plural, {})
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            continue
        served = schema.get("properties")
        ours = {field.alias or name for name, field in status.model_fields.items()}
        missing = sorted(ours - set(served if isinstance(served, dict) else ()))
        if missing:
            found.append(f"{plural} lack status fields {', '.join(missing)}")
    return "; ".join(found)
