"""What this process knows of lanes without asking: their last version, as it committed it, and the database's clock.

Knowledge may be stale. It is used for writes alone, and those are guarded by the version (`writes.GUARD`).
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubeharness.core.ids import ConversationId
from kubeharness.core.lane import Lane, LaneState
from kubeharness.store.backend import SubmissionRow

Place = tuple[ConversationId, int]
MOST_LANES = 4096
CLOCK_SECONDS = 5.0
"""How long one look at the database's clock is carried on by our own monotonic one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A lane as this process left it, and which version of its row that is."""

    lane: Lane
    version: int
    head: SubmissionRow | None = None
    """The submission at its head, which never changes."""


class Knowledge:
    """The running lanes that this process has written last; forgotten once they stop, or a connection was replaced.

    A new connection may lead to a server that has lost commits and gives their transaction ids anew.
    """

    def __init__(self) -> None:
        self._lanes: OrderedDict[ConversationId, Known] = OrderedDict()
        self._clock: tuple[int, float] | None = None

    def look(self, conversation: ConversationId) -> Known | None:
        """What is known of a lane."""
        return self._lanes.get(conversation)

    def now(self) -> int | None:
        """The database's clock, never ahead of it; None if it was not looked at lately."""
        if self._clock is None:
            return None
        milliseconds, at = self._clock
        passed = time.monotonic() - at
        return milliseconds + int(passed * 1000) if passed < CLOCK_SECONDS else None

    def told(self, now: int) -> None:
        """The database's clock was this, a moment ago."""
        self._clock = (now, time.monotonic())

    def learn(self, lanes: Iterable[Lane], version: int, heads: Mapping[Place, SubmissionRow]) -> None:
        """These lanes were committed in this version."""
        for lane in lanes:
            known = self._lanes.pop(lane.id, None)
            if lane.state is not LaneState.RUNNING:
                continue
            head = heads.get((lane.id, lane.head)) or (known.head if known and known.lane.head == lane.head else None)
            self._lanes[lane.id] = Known(lane=lane, version=version, head=head)
            if len(self._lanes) > MOST_LANES:
                self._lanes.popitem(last=False)

    def forget(self, conversations: Iterable[ConversationId]) -> None:
        """These have another version by now, or their commit is unknown."""
        for conversation in conversations:
            self._lanes.pop(conversation, None)

    def forget_all(self) -> None:
        """A connection was made."""
        self._lanes.clear()
        self._clock = None
