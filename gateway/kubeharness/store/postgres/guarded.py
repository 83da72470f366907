"""A transaction of one statement: decide on lanes as they were read or left, and store if they still are so.

Rows beside a lane change only together with the lane (I7), so a lane that has kept its version vouches for them.
Whatever does not fit raises Stale before anything is stored, and is done again under locks.
"""

from collections.abc import Sequence

from kubeharness.core.ids import AttemptId, ConversationId
from kubeharness.core.lane import Lane
from kubeharness.engine.ports import Admission, Append, Settle
from kubeharness.store.backend import Candidate, Holdings, Need, Side, Writes
from kubeharness.store.postgres import locks
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.known import Knowledge
from kubeharness.store.postgres.sides import completed
from kubeharness.store.postgres.writes import Guard, write
from kubeharness.store.verbs import Item


class Stale(Exception):
    """A guarded write cannot be made, or did not fit: nothing is stored."""


def guardable(items: Sequence[Item]) -> bool:
    """Whether a guarded write may be tried: for what admits, and for what owners write."""
    return all(isinstance(item, Admission | Append | Settle) for item in items)


class GuardedTransaction:
    """A `store.backend.Transaction` as `verbs.execute` uses it, ended by its write. Raises driver errors."""

    def __init__(self, connection: Connection, knowledge: Knowledge, items: Sequence[Item]) -> None:
        self._connection = connection
        self._knowledge = knowledge
        admissions = [item for item in items if isinstance(item, Admission)]
        self._dispatches = {item.submission_id for item in admissions}
        self._others = {item.conversation_id for item in admissions}
        self._now: int | None = None
        self._asked: set[ConversationId] = set()
        self._lanes: dict[ConversationId, Lane] = {}
        self._versions: dict[ConversationId, int] = {}
        self._side = Side()
        self.sent = False
        """The write is on its way: without an answer nobody knows whether it is stored."""
        self.stored = False

    @property
    def now(self) -> int:
        """The database's clock as it was read, or as it is carried on; the guard bounds by how much it is behind."""
        assert self._now is not None, "the clock is read with the lanes"
        return self._now

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        """Lanes as this process left them or, without a lock, as they are. What is admitted to is always read."""
        self._asked = set(ids)
        self._now = self._knowledge.now()
        unknown = [id_ for id_ in ids if self._now is None or id_ in self._others or not self._recall(id_)]
        if unknown or self._dispatches:
            read = await locks.read_lanes(self._connection, unknown, sorted(self._dispatches))
            self._now = read.now
            self._knowledge.told(read.now)
            self._side.dispatches.update(read.dispatches)
            for lane, version in read.lanes:
                self._lanes[lane.id] = lane
                self._versions[lane.id] = version
        return self._lanes

    def _recall(self, id_: ConversationId) -> bool:
        known = self._knowledge.look(id_)
        if known is None:
            return False
        self._lanes[id_] = known.lane
        self._versions[id_] = known.version
        if known.head is not None:
            self._side.positions[id_, known.lane.head] = known.head
        return True

    async def side(self, need: Need) -> Side:
        """What is not there yet, by one statement."""
        need.dispatches -= self._dispatches
        self._side = await completed(self._connection, need, self._side)
        return self._side

    async def write(self, writes: Writes) -> None:
        """Store all of it if every lane still is what it was. Raises Stale."""
        if not self._asked <= {lane.id for lane in (*writes.lanes, *writes.lanes_new)}:
            raise Stale  # something was decided with no write that vouches for it
        self.sent = True
        self._knowledge.forget(self._asked)
        written = await write(self._connection, writes, self._lanes, guard=Guard(self._versions, self.now))
        if written is None:
            raise Stale
        self.stored = True
        self._knowledge.told(written.now)
        self._knowledge.learn(writes.lanes, written.version, self._side.positions)

    async def lock_candidates(
        self, *, pool: str, limit: int, failed: int, formats: Sequence[int], all_ready: bool
    ) -> Sequence[Candidate]:
        """Claims are made under locks."""
        raise Stale

    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        """Reaping is done under locks."""
        raise Stale

    async def lock_delayed(self, limit: int) -> Sequence[Lane]:
        """Sweeping is done under locks."""
        raise Stale

    async def lock_held(self, attempts: Sequence[AttemptId], *, skip_locked: bool) -> Holdings:
        """What is held is asked under locks."""
        raise Stale
