"""A memory store that fails as a test plans it: before a call is applied, or after, so that only its answer is lost."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId, ConversationId, RevisionId
from kubeharness.core.lane import Claimed
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import Loaded
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from kubeharness.store.verbs import Item, Result

T = TypeVar("T")


class FaultyStore(TransactionalStore):
    """Every verb of a lane's owner goes through `plan`; each answer takes a turn of the event loop, as real ones do."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.plan: dict[str, list[str]] = {}
        """Verb → what its next calls do: ok, before (Unavailable, not applied), after (applied, the answer is lost)."""
        self.down = False
        """Nothing is answered, nothing is applied."""
        self.calls: Counter[str] = Counter()
        self.busy = 0
        """Calls that are not answered yet."""

    async def execute(self, items: Sequence[Item]) -> list[Result]:
        """Appends, settlements, releases, admissions: named by their item's class."""
        return await self._faulty(type(items[0]).__name__.lower(), lambda: TransactionalStore.execute(self, items))

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """As planned."""
        return await self._faulty("load", lambda: TransactionalStore.load(self, conversation))

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """As planned; `gone` answers that there is none."""
        if self.plan.get("revision") == ["gone"]:
            return None
        return await self._faulty("revision", lambda: TransactionalStore.revision(self, revision))

    async def held(self, attempts: Sequence[AttemptId]) -> Sequence[Claimed]:
        """As planned."""
        return await self._faulty("held", lambda: TransactionalStore.held(self, attempts))

    async def reap(self, *, limit: int = 100) -> Sequence[ConversationId]:
        """As planned."""
        return await self._faulty("reap", lambda: TransactionalStore.reap(self, limit=limit))

    async def sweep(self, *, limit: int = 1000) -> Sequence[ConversationId]:
        """As planned."""
        return await self._faulty("sweep", lambda: TransactionalStore.sweep(self, limit=limit))

    async def claim(
        self,
        *,
        owner: str,
        pool: str,
        attempts: Sequence[AttemptId],
        lease_ms: int,
        failed: int,
        formats: Sequence[int],
        all_ready: bool = False,
    ) -> Sequence[Claimed]:
        """As planned."""
        return await self._faulty(
            "claim",
            lambda: TransactionalStore.claim(
                self,
                owner=owner,
                pool=pool,
                attempts=attempts,
                lease_ms=lease_ms,
                failed=failed,
                formats=formats,
                all_ready=all_ready,
            ),
        )

    async def _faulty(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        self.busy += 1
        try:
            await asyncio.sleep(0.001)
            planned = self.plan.get(verb)
            how = planned.pop(0) if planned else "ok"
            if self.down or how == "before":
                raise Unavailable("the database does not answer")
            answer = await call()
            if how == "after":
                raise Unavailable("the answer was lost")
            return answer
        finally:
            self.busy -= 1
