"""I1–I12, as far as what is stored can show them, checked over any database: read-only, in one snapshot.

It ends every crash test, chaos run and benchmark. Memory is bounded by the rows of one conversation; its log is
read a record at a time.
"""

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from kubeharness.core.ids import ConversationId
from kubeharness.engine.ports import Store
from kubeharness.store.backend import Backend, Snapshot
from kubeharness.store.logrules import LogRules, Violation
from kubeharness.store.rowrules import Evidence, check_rows
from kubeharness.store.store import TransactionalStore

T = TypeVar("T")


async def verify(store: Store) -> list[Violation]:
    """All violations; none is what one wants to see. Raises Unavailable."""
    if not isinstance(store, TransactionalStore):
        raise TypeError(f"{type(store).__name__} has no backend to look into")
    return await verify_backend(store.backend)


async def verify_backend(backend: Backend) -> list[Violation]:
    """The same for a backend."""
    async with backend.snapshot() as snapshot:
        return await _verify(snapshot)


class _Walk(Generic[T]):
    """An ordered walk, taken conversation by conversation."""

    def __init__(self, rows: AsyncIterator[T], of: Callable[[T], ConversationId]) -> None:
        self._rows = rows
        self._of = of
        self._next: T | None = None

    async def begin(self) -> None:
        """Read the first row."""
        self._next = await anext(self._rows, None)

    @property
    def at(self) -> ConversationId | None:
        """The conversation of the next row."""
        return None if self._next is None else self._of(self._next)

    async def each(self, conversation: ConversationId) -> AsyncIterator[T]:
        """The rows of this conversation."""
        while self._next is not None and self._of(self._next) == conversation:
            yield self._next
            self._next = await anext(self._rows, None)

    async def all(self, conversation: ConversationId) -> list[T]:
        """The same, as a list."""
        return [row async for row in self.each(conversation)]


async def _verify(snapshot: Snapshot) -> list[Violation]:
    conversations = _Walk(snapshot.conversations(), lambda row: row.id)
    lanes = _Walk(snapshot.lanes(), lambda lane: lane.id)
    submissions = _Walk(snapshot.submissions(), lambda row: row.conversation)
    settlements = _Walk(snapshot.settlements(), lambda row: row.conversation)
    attempts = _Walk(snapshot.attempts(), lambda row: row.conversation)
    dispatches = _Walk(snapshot.dispatches(), lambda row: row.conversation)
    records = _Walk(snapshot.records(), lambda row: row.conversation)
    calls = _Walk(snapshot.calls(), lambda call: call.conversation)
    inbox = _Walk(snapshot.inbox(), lambda row: row.message.conversation)
    walks = (conversations, lanes, submissions, settlements, attempts, dispatches, records, calls, inbox)
    for walk in walks:
        await walk.begin()
    violations: list[Violation] = []
    while ids := [walk.at for walk in walks if walk.at is not None]:
        id_ = min(ids)
        evidence = Evidence(
            id=id_,
            conversation=await conversations.all(id_),
            lanes=await lanes.all(id_),
            submissions=await submissions.all(id_),
            settlements=await settlements.all(id_),
            attempts=await attempts.all(id_),
            dispatches=await dispatches.all(id_),
            calls=await calls.all(id_),
            inbox=await inbox.all(id_),
        )
        log = LogRules(
            conversation=id_,
            positions={row.id: row.position for row in evidence.submissions},
            pruned_to=evidence.lanes[0].pruned_to if evidence.lanes else 0,
        )
        async for row in records.each(id_):
            log.feed(row.record)
        violations += [*log.violations, *check_rows(evidence, log)]
    return violations
