"""The memory backend's configuration half: heads, revisions, components, checks. One event loop, so no lock."""

from collections.abc import Callable, Sequence

from kubeharness.core.errors import Conflict
from kubeharness.core.ids import RevisionId
from kubeharness.core.json import Json
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import (
    Acknowledgement,
    CheckLease,
    CheckPut,
    CheckResult,
    Component,
    Head,
    HeadWrite,
)
from kubeharness.store import checks, heads
from kubeharness.store.checks import CheckRow
from kubeharness.store.heads import HeadRow, Refusal


class MemoryConfiguration:
    """Configuration verbs over dicts."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.head_rows: dict[str, HeadRow] = {}
        self.revisions: dict[RevisionId, StoredRevision] = {}
        self._installation: str | None = None
        self._epoch = 0
        self._head_clock = 0
        self._components: dict[str, tuple[Component, int]] = {}
        self._refusals: dict[tuple[str, RevisionId], Refusal] = {}
        self._checks: dict[tuple[str, str, str], CheckRow] = {}
        self._check_clock = 0

    async def epoch(self, installation: str) -> int:
        """Take over as publisher."""
        self._installation = heads.bound(installation, self._installation)
        self._epoch += 1
        return self._epoch

    async def publish(self, epoch: int, heads_: Sequence[HeadWrite]) -> int:
        """Write heads and revisions."""
        heads.fenced(epoch, self._epoch)
        given = {write.revision.id: write.revision for write in heads_ if write.revision is not None}
        for write in heads_:
            if write.desired is not None and write.desired not in given and write.desired not in self.revisions:
                raise Conflict(f"revision {write.desired} is neither given nor stored")
        changed = heads.published(list(self.head_rows.values()), heads_, clock=self._head_clock)
        for revision_id, revision in given.items():
            self.revisions.setdefault(revision_id, revision)
        return self._store(changed)

    async def retire(self, epoch: int, uids: Sequence[str]) -> int:
        """Take heads out of service."""
        heads.fenced(epoch, self._epoch)
        rows = [self.head_rows[uid] for uid in uids if uid in self.head_rows]
        return self._store(heads.retired(rows, clock=self._head_clock))

    def _store(self, changed: Sequence[HeadRow]) -> int:
        if changed:
            self._head_clock += 1
            self.head_rows.update((row.head.uid, row) for row in changed)
        return self._head_clock

    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock."""
        found = [row.head for row in self.head_rows.values() if row.head.version > after]
        return sorted(found, key=lambda head: (head.version, head.namespace, head.name, head.uid))

    async def head_clock(self) -> int:
        """The version of the last publication that changed something."""
        return self._head_clock

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """A revision with its parts."""
        return self.revisions.get(revision)

    async def beat(self, component: Component) -> None:
        """A process lives."""
        now = self.clock()
        self._components[component.id] = (component, now)
        for id_, (_, at) in list(self._components.items()):
            if now - at > heads.FORGOTTEN_MS:
                del self._components[id_]

    async def refuse(self, component: str, revision: RevisionId, message: str) -> None:
        """A process could not load a revision."""
        self._refusals[component, revision] = Refusal(component=component, revision=revision, message=message)

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        """Who has loaded a head version."""
        now = self.clock()
        return heads.acknowledged(
            [component for component, at in self._components.values() if now - at < heads.LIVE_MS],
            list(self._refusals.values()),
            [row.head for row in self.head_rows.values() if row.head.version == version],
            version=version,
            pool=pool,
        )

    async def check_put(self, items: Sequence[CheckPut]) -> None:
        """Put questions."""
        for item in items:
            key = (item.kind, item.namespace, item.name)
            row = checks.put(self._checks.get(key), item, now=self.clock(), version=self._check_clock + 1)
            self._store_check(row)

    def _store_check(self, row: CheckRow | None) -> None:
        if row is not None:
            self._check_clock = max(self._check_clock, row.version)
            self._checks[row.key] = row

    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Take questions back."""
        for key in items:
            self._checks.pop(key, None)

    async def check_claim(self, *, owner: str, limit: int, lease_ms: int) -> Sequence[CheckLease]:
        """Lease due questions, the longest due first."""
        now = self.clock()
        due = sorted((row for row in self._checks.values() if checks.is_due(row, now=now)), key=lambda row: row.due)
        for row in due[:limit]:
            self._checks[row.key] = checks.leased(row, owner=owner, now=now, lease_ms=lease_ms)
        return [row.to_lease() for row in due[:limit]]

    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None:
        """Answer a question."""
        row = checks.answered(
            self._checks.get((lease.kind, lease.namespace, lease.name)),
            lease,
            ok=ok,
            reason=reason,
            message=message,
            result=result,
            now=self.clock(),
            version=self._check_clock + 1,
        )
        self._store_check(row)

    async def check_results(self, *, after: int) -> Sequence[CheckResult]:
        """Answers that changed after this check clock."""
        found = [row.to_result() for row in self._checks.values() if row.version > after]
        return sorted(found, key=lambda result: result.version)

    async def check_get(self, kind: str, namespace: str, name: str) -> CheckResult | None:
        """The last answer to a question."""
        row = self._checks.get((kind, namespace, name))
        return row.to_result() if row else None
