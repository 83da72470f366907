"""What the rows of one conversation must agree on: pure (I1–I5, I7, I8, I10)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeharness.core.ids import ConversationId, SubmissionId
from kubeharness.core.lane import Lane, LaneState, OpenCall
from kubeharness.store.backend import (
    AttemptRow,
    ConversationRow,
    DispatchRow,
    InboxRow,
    SettlementRow,
    SubmissionRow,
)
from kubeharness.store.logrules import LogRules, Violation


@dataclass(slots=True)
class Evidence:
    """All that is stored of one conversation, but for its log."""

    id: ConversationId
    conversation: Sequence[ConversationRow] = ()
    lanes: Sequence[Lane] = ()
    submissions: Sequence[SubmissionRow] = ()
    settlements: Sequence[SettlementRow] = ()
    attempts: Sequence[AttemptRow] = ()
    dispatches: Sequence[DispatchRow] = ()
    calls: Sequence[OpenCall] = ()
    inbox: Sequence[InboxRow] = ()
    violations: list[Violation] = field(default_factory=list)

    def wrong(self, invariant: str, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(invariant, self.id, what))

    @property
    def settled(self) -> set[SubmissionId]:
        """Submissions whose settlement is stored."""
        return {row.submission_id for row in self.settlements}


def check_rows(evidence: Evidence, log: LogRules) -> list[Violation]:
    """Everything that is wrong with the rows, given what the log says."""
    e = evidence
    purged = not e.conversation and not e.lanes and not e.submissions and log.last is None
    if purged:
        return []  # only dispatch keys are left, which outlive their data (I2)
    if len(e.conversation) != 1 or len(e.lanes) != 1:
        e.wrong("I1", f"{len(e.conversation)} conversation rows and {len(e.lanes)} lanes")
        return e.violations
    lane = e.lanes[0]
    _admission(e, lane)
    _queue(e, lane)
    _ownership(e, lane)
    _settlements(e, log)
    _counters(e, lane, log)
    return e.violations


def _admission(e: Evidence, lane: Lane) -> None:
    positions = [row.position for row in e.submissions]
    if positions != list(range(1, len(positions) + 1)) or len(positions) != lane.last_position:
        e.wrong("I2", f"positions {_short(positions)} and a lane at {lane.last_position}")
    digests = {row.submission_id: row.digest for row in e.dispatches}
    for row in e.submissions:
        if digests.get(row.id) != row.digest:
            e.wrong("I2", f"{row.id} and its dispatch key do not agree")
    if len(digests) != len(e.submissions):
        e.wrong("I2", f"{len(digests)} dispatch keys for {len(e.submissions)} submissions")


def _short(positions: Sequence[int]) -> str:
    return str(list(positions)) if len(positions) < 10 else f"{positions[0]} … {positions[-1]} ({len(positions)})"


def _queue(e: Evidence, lane: Lane) -> None:
    """The head is the oldest unsettled submission, and the lane lists those cancelled behind it (I3)."""
    settled = e.settled
    unsettled = [row.position for row in e.submissions if row.id not in settled]
    idle = lane.state is LaneState.IDLE
    if (unsettled[0] if unsettled else 0) != lane.head or idle != (not unsettled):
        e.wrong("I3", f"the lane is {lane.state} at {lane.head}, the oldest unsettled is {unsettled[:1]}")
    behind = [row.position for row in e.submissions if row.position > lane.head and row.id in settled]
    if not idle and list(lane.cancelled_positions) != behind:
        e.wrong("I3", f"the lane steps over {list(lane.cancelled_positions)}, settled are {behind}")


def _ownership(e: Evidence, lane: Lane) -> None:
    running = lane.state is LaneState.RUNNING
    fields = (lane.attempt, lane.owner, lane.lease_until)
    if any((value is not None) != running for value in fields):
        e.wrong("I4", f"the lane is {lane.state} with attempt, owner, lease {fields}")
    claims: dict[int, list[int]] = {}
    for attempt in e.attempts:
        claims.setdefault(attempt.position, []).append(attempt.claim)
    for position, ordinals in claims.items():
        if ordinals != list(range(1, len(ordinals) + 1)):
            e.wrong("I4", f"position {position} was claimed {ordinals}")
    if lane.head and lane.claim != len(claims.get(lane.head, ())):
        e.wrong("I4", f"the head was claimed {lane.claim} times, with {len(claims.get(lane.head, ()))} attempts")
    newest = [row for row in e.attempts if (row.position, row.claim) == (lane.head, lane.claim)]
    if running and lane.attempt not in {row.id for row in newest}:
        e.wrong("I4", f"attempt {lane.attempt} has no row")
    pinned = {row.position: row.revision for row in e.submissions}
    for attempt in e.attempts:
        if pinned.get(attempt.position) != attempt.revision:
            e.wrong("I4", f"attempt {attempt.id} ran {attempt.revision}, pinned is {pinned.get(attempt.position)}")
    write = lane.write
    if write is not None and (write.base + write.count > lane.last_seq or (running and write.attempt != lane.attempt)):
        e.wrong("I5", f"the last write, {write.number} of {write.attempt}, is not of this lane")


def _settlements(e: Evidence, log: LogRules) -> None:
    """One record a settled submission and one row a record, at the same place (I7)."""
    rows = {row.submission_id: row for row in e.settlements}
    positions = {row.id: row.position for row in e.submissions}
    claims = {row.position: 0 for row in e.submissions}
    for attempt in e.attempts:
        claims[attempt.position] = claims.get(attempt.position, 0) + 1
    if len(rows) != len(e.settlements):
        e.wrong("I7", "a submission has two settlements")
    for submission, row in rows.items():
        if positions.get(submission) != row.position:
            e.wrong("I7", f"the settlement of {submission} is at position {row.position}")
        if log.settled.get(submission) != row.record:
            e.wrong("I7", f"the settlement of {submission} is not record {row.record.seq}")
        if claims.get(row.position) != row.attempts:
            e.wrong("I4", f"{submission} settled with {row.attempts} attempts, {claims.get(row.position)} are stored")
    for submission in log.settled.keys() - rows.keys():
        e.wrong("I7", f"{submission} has a settled record and no settlement")


def _counters(e: Evidence, lane: Lane, log: LogRules) -> None:
    """The lane's counters are what the side rows and the log say."""
    last = log.last
    at = (last.seq, last.milliseconds) if last else (0, 0)
    if lane.last_seq != at[0] and lane.last_seq != lane.pruned_to:
        e.wrong("I6", f"the lane counts to {lane.last_seq}, the log to {at[0]}")
    if lane.last_ms < at[1]:
        e.wrong("I6", f"the lane is at {lane.last_ms} ms, the log at {at[1]}")
    ledger = {call.call_id for call in e.calls}
    if lane.open_calls != len(e.calls):
        e.wrong("I8", f"the lane counts {lane.open_calls} open calls, the ledger has {len(e.calls)}")
    if ledger != set(log.open_calls):
        e.wrong("I8", f"the ledger has {sorted(ledger)}, without an outcome are {sorted(log.open_calls)}")
    unread = sum(not row.consumed for row in e.inbox)
    if lane.unread != unread:
        e.wrong("I7", f"the lane counts {lane.unread} unread messages, the inbox has {unread}")
    if lane.open_turn != log.open_turn:
        e.wrong("I12", f"the lane has turn {lane.open_turn} open, the log {log.open_turn}")
    counts = lane.counters
    if min(counts.failures, counts.handovers, counts.tries, counts.steps, counts.model_retries) < 0:
        e.wrong("I10", "a counter is below zero")
    if counts.failures > lane.claim or (lane.state is LaneState.RUNNING and counts.failures < 1):
        e.wrong("I10", f"{counts.failures} failures of {lane.claim} claims, {lane.state}")
