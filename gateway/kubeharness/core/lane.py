"""A lane: one row per session that is its queue, lease, fence and offset counter at once.

Times are milliseconds of the store's clock (Postgres' own in a cluster), never a pod's (I4).
"""

from dataclasses import dataclass, field
from enum import StrEnum

from kubeharness.core.ids import (
    AttemptId,
    CallId,
    ConversationId,
    InboxId,
    RevisionId,
    SessionKey,
    SubmissionId,
    TurnId,
)
from kubeharness.core.messages import Usage

NO_USAGE = Usage()


class LaneState(StrEnum):
    """Where a session stands."""

    IDLE = "idle"
    READY = "ready"
    DELAYED = "delayed"
    RUNNING = "running"
    WAITING = "waiting"
    HELD = "held"


class CallState(StrEnum):
    """What the ledger knows of an open call (I9)."""

    RECORDED = "recorded"
    ASKED = "asked"
    APPROVED = "approved"
    STARTED = "started"
    CHILD = "child"


class SubmissionState(StrEnum):
    """Derived: settled if its settlement is stored; the lane's state if it is the head; else queued."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Budgets of the lane's head, changed only by the statement that makes the transition (I10)."""

    failures: int = 0
    """Claims that nobody took back."""
    handovers: int = 0
    """In a row, without an append between them."""
    model_retries: int = 0
    tries: int = 0
    """Failed tries of the turn at hand; a completed message resets it."""
    steps: int = 0
    """Completed model turns."""
    corrective: int = 0
    compactions: int = 0
    children: int = 0
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """The last numbered write of an attempt, so that its repeat is answered from the lane alone (I5)."""

    attempt: AttemptId
    number: int
    base: int
    """seq before its first record."""
    count: int
    milliseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The lane's row. The submission at `head` is the only one that may be claimed (I3)."""

    id: ConversationId
    incarnation: str
    pool: str = "shared"
    fair_key: str = ""
    state: LaneState = LaneState.IDLE
    head: int = 0
    """Position of the oldest unsettled submission; 0 when idle."""
    last_position: int = 0
    cancelled_positions: tuple[int, ...] = ()
    """Queued positions that are settled already; promotion steps over them."""
    last_seq: int = 0
    last_ms: int = 0
    load_seq: int = 0
    """Context is loaded from the records after this one."""
    pruned_to: int = 0
    attempt: AttemptId | None = None
    """Set only while claimed: the fence (I5)."""
    owner: str | None = None
    lease_until: int | None = None
    claim: int = 0
    """Ordinal of the head's claims."""
    write: LastWrite | None = None
    revision: RevisionId | None = None
    """Pinned by the head's first claim."""
    head_at: int = 0
    ready_at: int = 0
    not_before: int | None = None
    deadline: int | None = None
    counters: Counters = Counters()
    open_calls: int = 0
    open_turn: TurnId | None = None
    """A message that was started and neither completed nor aborted."""
    unread: int = 0
    cancel: str | None = None
    """The reason, if the head is asked to stop."""
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A row of the ledger: a recorded call that has no outcome yet (I8)."""

    call_id: CallId
    conversation: ConversationId
    submission_id: SubmissionId
    tool_name: str
    state: CallState
    idempotent: bool = False
    """Declared so when the call was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """A message on its way into a run (section 5)."""

    id: InboxId
    conversation: ConversationId
    via: str
    """steer or followup."""
    body: str
    digest: str
    principal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A lane in the hands of its owner, with what a run starts from."""

    lane: Lane
    key: SessionKey
    submission_id: SubmissionId
    position: int
    attempt: AttemptId
    revision: RevisionId
    message: bytes
    """`codec.decode_message` reads it."""
    now: int
    """The store's clock at the claim; `lane.deadline - now` is what is left."""
    labels: dict[str, str] = field(default_factory=dict)
    traceparent: str | None = None
