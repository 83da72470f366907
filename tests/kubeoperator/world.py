"""A reconciler in a small world: an API server of dicts, the memory store, and a watch that shows what is put."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from kubeharness.core.errors import Unavailable
from kubeharness.core.json import JsonObject
from kubeharness.engine.ports import Component
from kubeharness.store.memory import memory_store
from kubeharness.store.store import TransactionalStore
from kubeharness_operator.objects import CONFIG_MAPS, KINDS, Key, Objects
from kubeharness_operator.ports import (
    ClusterUnavailable,
    Conflicted,
    Document,
    NotServed,
    ObjectEvent,
    ObjectMeta,
    RevisionPublisher,
)
from kubeharness_operator.queue import WorkQueue
from kubeharness_operator.reconcile import EXPECTED, Reconciler

PLURALS = {kind: plural for plural, kind in KINDS.items()} | {"ConfigMap": CONFIG_MAPS}
ANYTHING: JsonObject = {"x-kubernetes-preserve-unknown-fields": True}


class DictCluster:
    """`ports.Cluster` over dicts: versions, conflicts, uids; no schema."""

    def __init__(self) -> None:
        self.documents: dict[Key, Document] = {}
        self.events: list[ObjectEvent] = []
        self.status_writes: list[Key] = []
        self.gets: list[Key] = []
        self.down = False
        self.served = True
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)

    def apply(self, document: Document, namespace: str = "ns") -> tuple[str, Document]:
        """As `kubectl apply`: a generation for each new spec."""
        plural = PLURALS[document["kind"]]
        name = document["metadata"]["name"]
        key = Key(plural, namespace, name)
        old = self.documents.get(key)
        metadata = {
            **document["metadata"],
            "namespace": namespace,
            "uid": old["metadata"]["uid"] if old else f"uid-{next(self._uids)}",
            "resourceVersion": str(next(self._versions)),
        }
        generation = old["metadata"].get("generation", 0) if old else 0
        changed = old is None or old.get("spec") != document.get("spec")
        metadata["generation"] = generation + changed
        self.documents[key] = {**document, "metadata": metadata, "status": old.get("status", {}) if old else {}}
        return plural, self.documents[key]

    def delete(self, key: Key) -> Document:
        return self.documents.pop(key)

    def _answer(self) -> None:
        if self.down:
            raise ClusterUnavailable("GET: no answer")
        if not self.served:
            raise NotServed("GET: 404 page not found")

    async def schemas(self) -> Mapping[str, JsonObject]:
        self._answer()
        return dict.fromkeys(KINDS, ANYTHING)

    async def get(self, plural: str, namespace: str, name: str) -> Document | None:
        await asyncio.sleep(0)
        self._answer()
        self.gets.append(Key(plural, namespace, name))
        return self.documents.get(Key(plural, namespace, name))

    async def apply_status(
        self, plural: str, namespace: str, name: str, *, version: str, status: JsonObject
    ) -> Document | None:
        await asyncio.sleep(0)
        self._answer()
        key = Key(plural, namespace, name)
        document = self.documents.get(key)
        if document is None:
            return None
        if document["metadata"]["resourceVersion"] != version:
            raise Conflicted("PATCH: 409")
        metadata = {**document["metadata"], "resourceVersion": str(next(self._versions))}
        self.documents[key] = {**document, "metadata": metadata, "status": status}
        self.status_writes.append(key)
        return self.documents[key]

    async def check_list(self, plural: str, namespace: str | None) -> None:
        self._answer()

    async def list_metadata(self, plural: str, namespace: str | None) -> Sequence[ObjectMeta]:
        await asyncio.sleep(0)
        self._answer()
        return [
            ObjectMeta(key.namespace, key.name, item["metadata"]["uid"], item["metadata"]["resourceVersion"])
            for key, item in self.documents.items()
            if key.plural == plural and namespace in (None, key.namespace)
        ]

    async def record(self, event: ObjectEvent) -> None:
        self._answer()
        self.events.append(event)


class Switchable:
    """A store that can be away."""

    def __init__(self, store: TransactionalStore) -> None:
        self._store = store
        self.down = False
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.down:
                raise Unavailable("the database does not answer")
            self.calls.append(name)
            return await verb(*args, **kwargs)

        return call


class World:
    """Everything that one reconciler touches, and a fleet of one worker and one gateway."""

    def __init__(self, *, cluster: DictCluster | None = None, store: TransactionalStore | None = None) -> None:
        self.cluster = cluster or DictCluster()
        self.clock_ms = 1_000_000
        self.store = store or memory_store(lambda: self.clock_ms)
        self.database = Switchable(self.store)
        self.objects = Objects()
        self.queue: WorkQueue[Key] = WorkQueue(first_delay=0.01, longest_delay=0.05, expected=EXPECTED)
        self.reconciler = Reconciler(
            cluster=self.cluster,
            publisher=cast("RevisionPublisher", self.database),
            objects=self.objects,
            queue=self.queue,
            installation="test",
        )
        self.missing: set[str] = set()

    def show(self, document: Document, *, listed: bool = False) -> None:
        """A watch shows an object."""
        self.queue.add(self.objects.put(PLURALS[document["kind"]], document, listed=listed))

    def apply(self, *documents: Document, namespace: str = "ns", shown: bool = True) -> None:
        for document in documents:
            _, stored = self.cluster.apply(document, namespace)
            if shown:
                self.show(stored)

    def delete(self, kind: str, name: str, *, shown: bool = True) -> None:
        key = Key(PLURALS[kind], "ns", name)
        document = self.cluster.delete(key)
        if shown:
            self.queue.add(self.objects.remove(key.plural, document))

    def list_all(self) -> None:
        """What a restarted watch shows."""
        for document in list(self.cluster.documents.values()):
            self.show(document, listed=True)

    def status(self, kind: str, name: str, namespace: str = "ns") -> Any:
        return self.cluster.documents[Key(PLURALS[kind], namespace, name)]["status"]

    def said(self, kind: str, name: str, of: str, namespace: str = "ns") -> tuple[str, str]:
        """Status and reason of a condition; empty if there is none."""
        for item in self.status(kind, name, namespace).get("conditions", ()):
            if item["type"] == of:
                return item["status"], item["reason"]
        return "", ""

    async def load(self, *, workers: int = 1, gateways: int = 1, applied: int | None = None) -> None:
        """The fleet has loaded all heads, or as much as said."""
        clock = await self.store.head_clock() if applied is None else applied
        for role, count in (("worker", workers), ("gateway", gateways)):
            for number in range(count):
                await self.store.beat(
                    Component(id=f"{role}{number}", role=role, pool="shared", formats=(1,), applied=clock)
                )
        self.reconciler.hint()

    async def answer(self) -> None:
        """The worker answers all checks that are due."""
        for lease in await self.store.check_claim(owner="w", limit=100, lease_ms=1000):
            bad = lease.name in self.missing
            reason = "SecretNotFound" if lease.kind == "secret" else "ToolServerUnreachable"
            await self.store.check_done(
                lease,
                ok=not bad,
                reason=reason if bad else "",
                message=f"{lease.name} is not there" if bad else "",
                result=None if lease.kind == "secret" else [],
            )
        self.reconciler.hint()

    def pass_time(self, seconds: int) -> None:
        """The store's clock goes on: checks become due again."""
        self.clock_ms += 1000 * seconds

    async def settled(self) -> None:
        """Everything seen is dealt with, and what the database told too."""
        async with asyncio.timeout(5):
            for _ in range(2):
                await self.reconciler.look()
                while not self.queue.settled:
                    await asyncio.sleep(0.002)

    async def all_well(self) -> None:
        """Answer, load, settle: the fleet is healthy."""
        await self.settled()
        await self.answer()
        await self.settled()
        await self.load()
        await self.settled()

    @asynccontextmanager
    async def working(self) -> AsyncIterator["World"]:
        """The queue is worked on; `settled` follows the database by hand, so that no test waits for a poll."""
        await self.reconciler.learn()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.queue.run(self.reconciler.work, workers=4))
            yield self
            running.cancel()
