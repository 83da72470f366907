"""The transition table: in whatever order things happen, a lane keeps its promises and leaves no state it may not."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core import transitions
from kubeharness.core.errors import (
    AlreadySettled,
    Conflict,
    KubeharnessError,
    LaneLost,
    NoRunInFlight,
    QueueFull,
    SettlementRefused,
)
from kubeharness.core.ids import AttemptId, ConversationId, RevisionId, TurnId
from kubeharness.core.lane import Lane, LaneState
from kubeharness.core.messages import Usage
from kubeharness.core.transitions import LEGAL, CounterChange, Event, ReleaseCause, Repeated
from support.properties import patient

NOW = 1_000_000
LEASE_MS = 30_000
LIFETIME_MS = 600_000
OWNER = AttemptId("att_owner")
STRANGER = AttemptId("att_stranger")
CAUSES: tuple[ReleaseCause, ...] = ("handover", "backoff", "blocked", "failure")

Outcome: TypeAlias = Lane | None
"""The lane after an event; None where it was answered that nothing changes."""


def fresh() -> Lane:
    return Lane(id=ConversationId("conv_1"), incarnation="uid-1")


def admitted(lane: Lane, times: int = 1, *, now: int = NOW) -> Lane:
    for _ in range(times):
        lane = transitions.admit(lane, now=now, max_queued=None)
    return lane


def claimed(lane: Lane, attempt: AttemptId = OWNER, *, now: int = NOW) -> Lane:
    taken = transitions.claim(
        lane,
        now=now,
        attempt=attempt,
        owner="w",
        lease_ms=LEASE_MS,
        active=RevisionId("sha256:r"),
        lifetime_ms=LIFETIME_MS,
    )
    assert taken is not None
    return taken


def appended(lane: Lane, attempt: AttemptId = OWNER, *, now: int = NOW, number: int = 1, records: int = 1) -> Lane:
    after = transitions.append(
        lane, now=now, attempt=attempt, number=number, lease_ms=LEASE_MS, records=records, open_turn=None
    )
    assert isinstance(after, Lane)
    return after


def in_state(state: LaneState) -> Lane:
    """A lane with a head and one queued behind it, in a state; states of later releases are set by hand."""
    if state is LaneState.IDLE:
        return fresh()
    lane = admitted(fresh(), 2)
    match state:
        case LaneState.READY:
            return lane
        case LaneState.RUNNING:
            return claimed(lane)
        case LaneState.DELAYED:
            return transitions.release(claimed(lane), now=NOW, attempt=OWNER, cause="backoff", delay_ms=5_000)
        case _:
            return replace(transitions.release(claimed(lane), now=NOW, attempt=OWNER, cause="handover"), state=state)


def _settle(lane: Lane) -> Outcome:
    after = transitions.settle(lane, now=NOW, attempt=OWNER, number=1, records=1, closes=0, drains=0, success=True)
    return after if isinstance(after, Lane) else None


def _cancel(lane: Lane) -> Outcome:
    return transitions.cancel(
        lane, now=NOW, position=1, reason="why", closes=0, drains=0, records=1, submission="sub_1"
    ).lane


LATER = NOW + LIFETIME_MS
EVENTS: dict[Event, Callable[[Lane], Outcome]] = {
    Event.ADMIT: lambda lane: transitions.admit(lane, now=NOW, max_queued=None),
    Event.CLAIM: lambda lane: transitions.claim(
        lane,
        now=NOW,
        attempt=STRANGER,
        owner="w",
        lease_ms=LEASE_MS,
        active=RevisionId("sha256:r"),
        lifetime_ms=LIFETIME_MS,
    ),
    Event.APPEND: appended,
    Event.RENEW: lambda lane: transitions.renew(lane, now=NOW + 1, attempt=OWNER, lease_ms=LEASE_MS),
    Event.SETTLE: _settle,
    Event.RELEASE: lambda lane: transitions.release(lane, now=NOW, attempt=OWNER, cause="handover"),
    Event.REAP: lambda lane: transitions.reap(lane, now=LATER),
    Event.SWEEP: lambda lane: transitions.sweep(lane, now=LATER),
    Event.CANCEL: _cancel,
    Event.INBOX: lambda lane: transitions.put_inbox(lane, now=NOW, session="default"),
}


def test_the_table_names_every_event() -> None:
    assert set(LEGAL) == set(Event) == set(EVENTS)


@pytest.mark.parametrize("state", LaneState)
@pytest.mark.parametrize("event", Event)
def test_an_event_changes_a_lane_only_where_the_table_says(event: Event, state: LaneState) -> None:
    lane = in_state(state)
    if event is Event.INBOX and state is LaneState.READY:
        lane = transitions.release(claimed(lane), now=NOW, attempt=OWNER, cause="handover")  # in flight: was claimed
    try:
        after = EVENTS[event](lane)
    except KubeharnessError:
        after = None

    assert (after is not None and after != lane) == (state in LEGAL[event])


# --- any sequence of events ---------------------------------------------------------------------------------


class History:
    """A lane and what must never be taken back of it."""

    def __init__(self) -> None:
        self.lane = fresh()
        self.now = NOW
        self.attempts: list[AttemptId] = []
        self.number = 0
        self.settled: set[int] = set()

    def step(self, event: str, n: int) -> None:
        before = self.lane
        try:
            after = self.play(event, n)
        except (LaneLost, SettlementRefused, Conflict, QueueFull, NoRunInFlight, AlreadySettled):
            after = None
        if isinstance(after, Lane):
            self.lane = after
        self.check(before)

    def owner(self, n: int) -> AttemptId:
        """Mostly the last attempt, at times one before."""
        return self.attempts[-1 if n % 5 else n % len(self.attempts)] if self.attempts else STRANGER

    def play(self, event: str, n: int) -> Lane | Repeated | None:
        lane, now, owner = self.lane, self.now, self.owner(n)
        match event:
            case "admit":
                return transitions.admit(lane, now=now, max_queued=None if n % 3 else 2)
            case "claim" if lane.state is LaneState.READY:
                self.attempts.append(AttemptId(f"att_{len(self.attempts)}"))
                self.number = 0
                return claimed(lane, self.attempts[-1], now=now)
            case "append":
                return self.write(owner, n)
            case "settle":
                return self.settle(owner, n)
            case "release":
                return transitions.release(lane, now=now, attempt=owner, cause=CAUSES[n % 4], delay_ms=n * 1_000)
            case "renew":
                return transitions.renew(lane, now=now, attempt=owner, lease_ms=LEASE_MS)
            case "reap":
                return transitions.reap(lane, now=now)
            case "sweep":
                return transitions.sweep(lane, now=now)
            case "inbox":
                return transitions.put_inbox(lane, now=now, session="default")
            case "cancel":
                return self.cancel(n)
            case "time":
                self.now += n * 7_000
            case "clock back":
                self.now -= n * 100
        return None

    def write(self, owner: AttemptId, n: int) -> Lane | Repeated:
        after = transitions.append(
            self.lane,
            now=self.now,
            attempt=owner,
            number=self.number + (1 if n % 7 else 0),
            lease_ms=LEASE_MS,
            records=n % 4,
            opened=n % 2,
            closed=n % 3 == 1,
            consumed=n % 5 == 1,
            counters=CounterChange(steps=n % 2, usage=Usage(input=n)),
            open_turn=TurnId("1.1.1") if n % 4 == 3 else None,
        )
        self.number += isinstance(after, Lane)
        return after

    def settle(self, owner: AttemptId, n: int) -> Lane | Repeated:
        lane, exact = self.lane, n % 4 > 0
        after = transitions.settle(
            lane,
            now=self.now,
            attempt=owner,
            number=self.number + 1,
            records=1,
            closes=lane.open_calls if exact else n,
            drains=lane.unread,
            success=n % 2 == 0,
            ends_turn=exact,
        )
        if isinstance(after, Lane):
            self.settled.add(lane.head)
        return after

    def cancel(self, n: int) -> Lane:
        lane = self.lane
        position = lane.head + n % 4
        if position > lane.last_position:
            raise AlreadySettled("none")  # a store finds no such submission
        head = position == lane.head
        done = transitions.cancel(
            lane,
            now=self.now,
            position=position,
            reason="why",
            closes=lane.open_calls if head else 0,
            drains=lane.unread if head else 0,
            records=1,
            submission="sub",
            ends_turn=True,
        )
        if done.settles:
            assert position not in self.settled
            self.settled.add(position)
        return done.lane

    def check(self, before: Lane) -> None:
        lane = self.lane
        counters = lane.counters
        assert lane.last_seq >= before.last_seq
        assert lane.last_ms >= before.last_ms
        assert lane.last_position >= before.last_position
        assert min(counters.failures, counters.tries, counters.model_retries, lane.open_calls, lane.unread) >= 0
        assert counters.failures <= lane.claim
        assert 0 <= counters.handovers < transitions.HANDOVERS_FOR_A_FAILURE
        running = lane.state is LaneState.RUNNING
        assert [lane.attempt is not None, lane.owner is not None, lane.lease_until is not None] == [running] * 3
        assert (lane.not_before is not None) == (lane.state is LaneState.DELAYED)
        assert (lane.deadline is not None) == (lane.revision is not None) == (lane.claim > 0)
        unsettled = [p for p in range(1, lane.last_position + 1) if p not in self.settled]
        assert lane.head == (unsettled[0] if unsettled else 0), "the head is the oldest that is not settled (I3)"
        assert (lane.state is LaneState.IDLE) == (not unsettled)
        behind = [p for p in self.settled if lane.head and p > lane.head]
        assert list(lane.cancelled_positions) == sorted(behind)
        if lane.head != before.head:
            assert (lane.open_calls, lane.unread, lane.open_turn, lane.cancel) == (0, 0, None, None)


EVENT_NAMES = ("admit", "claim", "append", "settle", "release", "renew", "reap", "sweep", "inbox", "cancel", "time")


@patient
@given(
    st.lists(
        st.tuples(st.sampled_from((*EVENT_NAMES, "claim", "append", "clock back")), st.integers(0, 20)), max_size=60
    )
)
def test_a_lane_keeps_its_promises_whatever_happens(events: list[tuple[str, int]]) -> None:
    history = History()
    for event, n in events:
        history.step(event, n)


@patient
@given(st.lists(st.tuples(st.sampled_from(EVENT_NAMES), st.integers(1, 20)), max_size=15))
def test_an_attempt_that_lost_its_lane_changes_nothing(events: list[tuple[str, int]]) -> None:
    history = History()
    history.lane = claimed(admitted(fresh(), 2), OWNER)
    history.lane = claimed(transitions.release(history.lane, now=NOW, attempt=OWNER, cause="handover"), STRANGER)
    history.attempts = [STRANGER]
    for event, n in events:
        history.step(event, n)
        for write in (EVENTS[Event.APPEND], EVENTS[Event.SETTLE], EVENTS[Event.RELEASE], EVENTS[Event.RENEW]):
            with pytest.raises(LaneLost):
                write(history.lane)


# --- single promises ----------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.sampled_from(CAUSES))
def test_only_a_failure_keeps_the_claims_failure(claims: int, cause: ReleaseCause) -> None:
    lane = admitted(fresh())
    now = NOW
    for n in range(claims):
        lane = claimed(lane, AttemptId(f"att_{n}"), now=now)
        lane = transitions.release(lane, now=now, attempt=AttemptId(f"att_{n}"), cause=cause)
        now += transitions.MAX_DELAY_MS
        lane = transitions.sweep(lane, now=now) or lane

    assert lane.counters.failures == (claims if cause == "failure" else 0)


@given(st.integers(0, 40), st.integers(0, 40))
def test_delays_grow_up_to_a_minute(fewer: int, more: int) -> None:
    fewer, more = sorted((fewer, more))

    assert transitions.failure_delay_ms(fewer) <= transitions.failure_delay_ms(more) <= transitions.MAX_DELAY_MS


@given(st.integers(0, 10**7), st.sampled_from(CAUSES))
def test_no_delay_goes_beyond_the_deadline(delay_ms: int, cause: ReleaseCause) -> None:
    lane = claimed(admitted(fresh()))
    lane = transitions.release(lane, now=NOW, attempt=OWNER, cause=cause, delay_ms=delay_ms)

    assert lane.deadline is not None
    assert lane.not_before is None or lane.not_before <= lane.deadline


@given(st.integers(0, 5), st.integers(1, 5))
def test_a_repeat_is_known_until_the_next_claim(records: int, waits: int) -> None:
    lane = appended(claimed(admitted(fresh())), records=records)
    write = lane.write
    assert write is not None
    lane = transitions.release(lane, now=NOW, attempt=OWNER, cause="handover")
    for _ in range(waits):
        assert transitions.fence(lane, OWNER, 1) == Repeated(write)
    lane = claimed(lane, STRANGER)

    with pytest.raises(LaneLost):
        transitions.fence(lane, OWNER, 1)


@given(st.sets(st.integers(2, 9)), st.integers(1, 9))
def test_promotion_never_meets_a_cancelled_position(cancelled: set[int], last: int) -> None:
    lane = replace(admitted(fresh(), last), cancelled_positions=tuple(sorted(p for p in cancelled if p <= last)))
    after = transitions.promoted(lane, now=NOW)

    left = [p for p in range(2, last + 1) if p not in cancelled]
    assert after.head == (left[0] if left else 0)
    assert after.state is (LaneState.READY if left else LaneState.IDLE)


@pytest.mark.parametrize(
    ("closes", "drains", "ends_turn"), [(0, 1, True), (2, 1, True), (1, 0, True), (1, 2, True), (1, 1, False)]
)
def test_a_settlement_that_names_other_counts_is_refused(closes: int, drains: int, ends_turn: bool) -> None:
    lane = replace(claimed(admitted(fresh())), open_calls=1, unread=1, open_turn=TurnId("1.1.1"))

    def settle(closes: int, drains: int, *, ends_turn: bool) -> Lane | Repeated:
        return transitions.settle(
            lane,
            now=NOW,
            attempt=OWNER,
            number=1,
            records=1,
            closes=closes,
            drains=drains,
            success=False,
            ends_turn=ends_turn,
        )

    with pytest.raises(SettlementRefused):
        settle(closes, drains, ends_turn=ends_turn)
    assert isinstance(settle(1, 1, ends_turn=True), Lane)


def test_a_claim_moves_the_deadline_only_by_a_wait_with_earlier_failures() -> None:
    lane = claimed(admitted(fresh()), now=NOW + 10_000)
    assert lane.deadline == NOW + LIFETIME_MS, "the first wait is the head's own time"
    lane = transitions.release(lane, now=NOW + 20_000, attempt=OWNER, cause="handover")
    lane = claimed(lane, now=NOW + 30_000)
    assert lane.deadline == NOW + LIFETIME_MS, "and so is a wait without failures"
    lane = transitions.release(lane, now=NOW + 40_000, attempt=OWNER, cause="failure")
    lane = claimed(lane, now=NOW + 90_000)

    assert lane.deadline == NOW + LIFETIME_MS + 50_000
