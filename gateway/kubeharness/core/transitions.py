"""The legal transitions of a lane, as pure functions from a lane to the next one, or a refusal.

Every store executes exactly these under its own lock; no rule about states is written anywhere else.
`now` is the store's clock in milliseconds.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from kubeharness.core.errors import (
    AlreadySettled,
    Conflict,
    LaneLost,
    NoRunInFlight,
    QueueFull,
    SettlementRefused,
)
from kubeharness.core.ids import AttemptId, RevisionId, TurnId
from kubeharness.core.lane import Counters, Lane, LaneState, LastWrite
from kubeharness.core.messages import Usage

MAX_DELAY_MS = 60_000
HANDOVERS_FOR_A_FAILURE = 10


class Event(StrEnum):
    """What can happen to a lane."""

    ADMIT = "admit"
    CLAIM = "claim"
    APPEND = "append"
    RENEW = "renew"
    SETTLE = "settle"
    RELEASE = "release"
    REAP = "reap"
    SWEEP = "sweep"
    CANCEL = "cancel"
    INBOX = "inbox"


LEGAL: dict[Event, frozenset[LaneState]] = {
    Event.ADMIT: frozenset(LaneState),
    Event.CLAIM: frozenset({LaneState.READY}),
    Event.APPEND: frozenset({LaneState.RUNNING}),
    Event.RENEW: frozenset({LaneState.RUNNING}),
    Event.SETTLE: frozenset({LaneState.RUNNING}),
    Event.RELEASE: frozenset({LaneState.RUNNING}),
    Event.REAP: frozenset({LaneState.RUNNING}),
    Event.SWEEP: frozenset({LaneState.DELAYED}),
    Event.CANCEL: frozenset(LaneState) - {LaneState.IDLE},
    Event.INBOX: frozenset(LaneState) - {LaneState.IDLE},
}
"""In which states an event may change a lane at all; the functions say under which further conditions."""


ReleaseCause = Literal["handover", "backoff", "blocked", "failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterChange:
    """What a write adds to the head's counters. `steps` > 0 means a completed message: tries start anew."""

    steps: int = 0
    corrective: int = 0
    compactions: int = 0
    children: int = 0
    usage: Usage | None = None

    def applied(self, to: Counters) -> Counters:
        """The counters after the write. Any append is progress: handovers start anew."""
        return replace(
            to,
            handovers=0,
            tries=0 if self.steps else to.tries,
            steps=to.steps + self.steps,
            corrective=to.corrective + self.corrective,
            compactions=to.compactions + self.compactions,
            children=to.children + self.children,
            usage=to.usage + self.usage if self.usage else to.usage,
        )


NO_CHANGE = CounterChange()


@dataclass(frozen=True, slots=True)
class Repeated:
    """The write was applied before: here is its place in the log."""

    write: LastWrite


def admit(lane: Lane, *, now: int, max_queued: int | None) -> Lane:
    """The next position is taken; an idle lane becomes ready with it as its head. Raises QueueFull."""
    position = lane.last_position + 1
    if max_queued is not None and lane.state is not LaneState.IDLE:
        queued = lane.last_position - lane.head - len(lane.cancelled_positions)
        if queued >= max_queued:
            raise QueueFull(max_queued)
    lane = replace(lane, last_position=position)
    if lane.state is LaneState.IDLE:
        lane = _headed(lane, position, now)
    return lane


def _headed(lane: Lane, position: int, now: int) -> Lane:
    """A fresh head: ready, with budgets unused."""
    return replace(
        lane,
        state=LaneState.READY,
        head=position,
        head_at=now,
        ready_at=now,
        not_before=None,
        deadline=None,
        claim=0,
        revision=None,
        counters=Counters(),
        cancel=None,
        last_error="",
    )


def claim(
    lane: Lane,
    *,
    now: int,
    attempt: AttemptId,
    owner: str,
    lease_ms: int,
    active: RevisionId,
    lifetime_ms: int,
) -> Lane | None:
    """Take a ready lane; None if it is not ready any more. Adds one failure, taken back unless the owner dies (I10)."""
    if lane.state is not LaneState.READY:
        return None
    waited = now - lane.ready_at if lane.counters.failures > 0 else 0
    deadline = lane.head_at + lifetime_ms if lane.deadline is None else lane.deadline + max(0, waited)
    return replace(
        lane,
        state=LaneState.RUNNING,
        attempt=attempt,
        owner=owner,
        lease_until=now + lease_ms,
        claim=lane.claim + 1,
        revision=lane.revision or active,
        deadline=deadline,
        not_before=None,
        write=LastWrite(attempt=attempt, number=0, base=lane.last_seq, count=0, milliseconds=lane.last_ms),
        counters=replace(lane.counters, failures=lane.counters.failures + 1),
    )


def fence(lane: Lane, attempt: AttemptId, number: int) -> Repeated | None:
    """Check that `attempt` holds the lane and that `number` is its next write (I5).

    Repeated if that very write is in the log already; raises LaneLost otherwise.
    """
    write = lane.write
    if write is not None and write.attempt == attempt and write.number == number and number > 0:
        return Repeated(write)
    if lane.attempt != attempt or write is None or write.attempt != attempt or number != write.number + 1:
        raise LaneLost(attempt)
    return None


def stamped(lane: Lane, *, now: int, count: int) -> Lane:
    """Number `count` records onto the log: seq and milliseconds never go back (I6)."""
    if count == 0:
        return lane
    return replace(lane, last_seq=lane.last_seq + count, last_ms=max(lane.last_ms, now))


def append(
    lane: Lane,
    *,
    now: int,
    attempt: AttemptId,
    number: int,
    lease_ms: int,
    records: int,
    opened: int = 0,
    closed: int = 0,
    consumed: int = 0,
    counters: CounterChange = NO_CHANGE,
    open_turn: TurnId | None,
) -> Lane | Repeated:
    """One numbered write of the owner. `open_turn` is the message left open after it, if any.

    Raises LaneLost, and Conflict if it closes or consumes what is not open (I8).
    """
    repeated = fence(lane, attempt, number)
    if repeated is not None:
        return repeated
    if closed > lane.open_calls + opened or consumed > lane.unread:
        raise Conflict("a write closes or consumes more than is open")
    written = stamped(lane, now=now, count=records)
    return replace(
        written,
        lease_until=now + lease_ms,
        write=LastWrite(
            attempt=attempt, number=number, base=lane.last_seq, count=records, milliseconds=written.last_ms
        ),
        counters=counters.applied(lane.counters),
        open_calls=lane.open_calls + opened - closed,
        unread=lane.unread - consumed,
        open_turn=open_turn,
    )


def renew(lane: Lane, *, now: int, attempt: AttemptId, lease_ms: int) -> Lane:
    """The owner is alive: its lease begins anew, also one that has run out and that nobody took. Raises LaneLost."""
    if lane.attempt != attempt:
        raise LaneLost(attempt)
    return replace(lane, lease_until=now + lease_ms)


def settle(
    lane: Lane,
    *,
    now: int,
    attempt: AttemptId,
    number: int,
    records: int,
    closes: int,
    drains: int,
    success: bool,
    ends_turn: bool = False,
) -> Lane | Repeated:
    """End the head and promote the next (I7). Names what it closes and drains; other counts refuse it.

    A success needs an empty inbox, no open call and no cancel flag; an open message must be ended by it (I12).
    Raises LaneLost, SettlementRefused.
    """
    repeated = fence(lane, attempt, number)
    if repeated is not None:
        return repeated
    check_closing(lane, closes=closes, drains=drains, ends_turn=ends_turn)
    if success and (lane.cancel is not None or lane.unread or lane.open_calls):
        raise SettlementRefused("a cancel, a message or a call came first")
    written = stamped(lane, now=now, count=records)
    write = LastWrite(attempt=attempt, number=number, base=lane.last_seq, count=records, milliseconds=written.last_ms)
    return promoted(replace(written, write=write), now=now)


def check_closing(lane: Lane, *, closes: int, drains: int, ends_turn: bool) -> None:
    """Refuse a settlement that does not name exactly what is open, or leaves a message without an end."""
    if closes != lane.open_calls:
        raise SettlementRefused(f"{lane.open_calls} calls are open, {closes} are closed")
    if drains != lane.unread:
        raise SettlementRefused(f"{lane.unread} messages are unread, {drains} are drained")
    if lane.open_turn is not None and not ends_turn:
        raise SettlementRefused(f"the message of turn {lane.open_turn} has no end")


def promoted(lane: Lane, *, now: int) -> Lane:
    """The head is settled: the next position that is not cancelled becomes head, or the lane is idle."""
    lane = replace(
        lane, attempt=None, owner=None, lease_until=None, open_calls=0, open_turn=None, unread=0, cancel=None
    )
    position = lane.head + 1
    while position in lane.cancelled_positions:
        position += 1
    left = tuple(p for p in lane.cancelled_positions if p > position)
    lane = replace(lane, cancelled_positions=left)
    if position <= lane.last_position:
        return _headed(lane, position, now)
    return replace(
        lane,
        state=LaneState.IDLE,
        head=0,
        not_before=None,
        deadline=None,
        revision=None,
        claim=0,
        counters=Counters(),
        last_error="",
        cancelled_positions=(),
    )


def release(
    lane: Lane,
    *,
    now: int,
    attempt: AttemptId,
    cause: ReleaseCause,
    delay_ms: int = 0,
    last_error: str = "",
    seen: int = 0,
) -> Lane:
    """Give the lane back. All but a failure take the claim's failure back (I10). Raises LaneLost.

    `last_error` overwrites if it is not empty. A cancel ends any delay; a message beyond the `seen`
    ones that of a back-off.
    """
    if lane.attempt != attempt:
        raise LaneLost(attempt)
    c = lane.counters
    match cause:
        case "handover" if c.handovers + 1 >= HANDOVERS_FOR_A_FAILURE:
            c = replace(c, handovers=0)
        case "handover":
            c = replace(c, handovers=c.handovers + 1, failures=c.failures - 1)
        case "backoff":
            c = replace(c, failures=c.failures - 1, tries=c.tries + 1, model_retries=c.model_retries + 1)
        case "blocked":
            c = replace(c, failures=c.failures - 1)
        case "failure":
            delay_ms = max(delay_ms, failure_delay_ms(c.failures))
    if lane.cancel is not None or (cause == "backoff" and lane.unread > seen):
        delay_ms = 0
    lane = replace(lane, counters=c, last_error=last_error or lane.last_error)
    return _given_back(lane, now=now, delay_ms=delay_ms)


def failure_delay_ms(failures: int) -> int:
    """Poison work waits longer each time: at once, 1 s, 2 s, 4 s … 60 s."""
    return 0 if failures <= 1 else int(min(MAX_DELAY_MS, 1000 * 2 ** min(failures - 2, 16)))


def _given_back(lane: Lane, *, now: int, delay_ms: int) -> Lane:
    lane = replace(lane, attempt=None, owner=None, lease_until=None)
    if delay_ms <= 0:
        return replace(lane, state=LaneState.READY, ready_at=now, not_before=None)
    until = now + delay_ms
    if lane.deadline is not None:
        until = max(now, min(until, lane.deadline))
    return replace(lane, state=LaneState.DELAYED, not_before=until)


def reap(lane: Lane, *, now: int) -> Lane | None:
    """Take a lane whose lease has run out from its owner; None if the owner renewed meanwhile."""
    if lane.state is not LaneState.RUNNING or lane.lease_until is None or lane.lease_until > now:
        return None
    lane = replace(lane, last_error=lane.last_error or "the worker that ran this was lost")
    delay = 0 if lane.cancel is not None else failure_delay_ms(lane.counters.failures)
    return _given_back(lane, now=now, delay_ms=delay)


def sweep(lane: Lane, *, now: int) -> Lane | None:
    """A delay that is over makes the lane ready; None if it is not over."""
    if lane.state is not LaneState.DELAYED or (lane.not_before or 0) > now:
        return None
    return replace(lane, state=LaneState.READY, ready_at=now, not_before=None)


def put_inbox(lane: Lane, *, now: int, session: str) -> Lane:
    """One more unread message of a run in flight: the head, once claimed, until settled. Raises NoRunInFlight."""
    if lane.state is LaneState.IDLE or lane.claim == 0:
        raise NoRunInFlight(session)
    return _woken(replace(lane, unread=lane.unread + 1), now=now)


def _woken(lane: Lane, *, now: int) -> Lane:
    if lane.state is LaneState.DELAYED:
        return replace(lane, state=LaneState.READY, ready_at=now, not_before=None)
    return lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelling:
    """What a cancel does to a lane."""

    lane: Lane
    settles: bool
    """The submission is settled by this very transaction; else the flag stands and its owner settles it."""


def cancel(
    lane: Lane,
    *,
    now: int,
    position: int,
    reason: str,
    closes: int,
    drains: int,
    records: int,
    submission: str,
    ends_turn: bool = False,
) -> Cancelling:
    """Cancel a submission: queued ones and an unclaimed head settle at once, a running head is flagged.

    Raises AlreadySettled, and SettlementRefused if what is open is not what is named.
    """
    if lane.state is LaneState.IDLE or position < lane.head or position in lane.cancelled_positions:
        raise AlreadySettled(submission)
    if position > lane.head:
        if closes or drains:
            raise SettlementRefused("a queued submission has nothing open")
        written = stamped(lane, now=now, count=records)
        settled = replace(written, cancelled_positions=tuple(sorted((*lane.cancelled_positions, position))))
        return Cancelling(lane=settled, settles=True)
    if lane.state is LaneState.RUNNING:
        return Cancelling(lane=replace(lane, cancel=lane.cancel or reason), settles=False)
    check_closing(lane, closes=closes, drains=drains, ends_turn=ends_turn)
    return Cancelling(lane=promoted(stamped(lane, now=now, count=records), now=now), settles=True)
