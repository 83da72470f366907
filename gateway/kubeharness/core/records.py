"""The durable log: the envelope of a record and one payload class a kind.

`docs/reference/records.md` has the JSON. Unknown kinds and fields are tolerated by readers; payload text is clean
before it gets here (I15).
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal

from kubeharness.core.ids import AttemptId, CallId, ConversationId, RecordId, SubmissionId, TurnId
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import MessagePart, StopReason, Usage


class Kind(StrEnum):
    """The kinds of this release; also the SSE event names."""

    CONVERSATION_CREATED = "conversation_created"
    USER_MESSAGE = "user_message"
    SIGNAL = "signal"
    ASSISTANT_MESSAGE_STARTED = "assistant_message_started"
    ASSISTANT_TEXT_DELTA = "assistant_text_delta"
    ASSISTANT_THINKING_DELTA = "assistant_thinking_delta"
    ASSISTANT_MESSAGE_COMPLETED = "assistant_message_completed"
    ASSISTANT_MESSAGE_ABORTED = "assistant_message_aborted"
    ASSISTANT_TOOL_CALL = "assistant_tool_call"
    TOOL_OUTCOME = "tool_outcome"
    COMPACTION = "compaction"
    TASK_SPAWNED = "task_spawned"
    INPUT_REQUESTED = "input_requested"
    INPUT_RECEIVED = "input_received"
    WARNING = "warning"
    SUBMISSION_SETTLED = "submission_settled"


class OutcomeCause(StrEnum):
    """Why a call has an outcome that its tool did not give."""

    INTERRUPTED = "interrupted"
    TIMEOUT = "timeout"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    BLOCKED = "blocked"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TOO_LARGE = "too_large"


class AbortReason(StrEnum):
    """Why a message has no end."""

    ATTEMPT_DIED = "attempt_died"
    STREAM_BROKEN = "stream_broken"
    CANCELLED = "cancelled"


class SettledStatus(StrEnum):
    """How a submission ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class SettledCode(StrEnum):
    """Why it failed (engine.md, section 10)."""

    RUN_FAILED = "run_failed"
    ATTEMPT_BUDGET_EXHAUSTED = "attempt_budget_exhausted"
    TIMEOUT_EXCEEDED = "timeout_exceeded"
    SETTLEMENT_INDETERMINATE = "settlement_indeterminate"
    RESULT_SCHEMA_INVALID = "result_schema_invalid"
    CANCELLED_BY_PARENT = "cancelled_by_parent"
    MAX_STEPS_REACHED = "max_steps_reached"
    CANCELLED = "cancelled"
    AGENT_DELETED = "agent_deleted"
    CONTEXT_TOO_LARGE = "context_too_large"
    REFUSED = "refused"
    INPUT_REQUIRED = "input_required"


Via = Literal["dispatch", "steer", "followup", "corrective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentRef:
    """Bytes that live outside of the log, by digest (`sha256:…`); size in bytes."""

    digest: str
    media_type: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """The link of a child conversation to the record that spawned it."""

    conversation_id: ConversationId
    spawn_record_id: RecordId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRef:
    """The place in another conversation that this one goes on from."""

    conversation_id: ConversationId
    record_id: RecordId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationCreated:
    """The first record of each log."""

    kind: ClassVar[Kind] = Kind.CONVERSATION_CREATED
    agent: str
    instance: str
    session: str
    namespace: str = ""
    parent_ref: ParentRef | None = None
    fork_of: ForkRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A direct message of the principal, or one that was steered in."""

    kind: ClassVar[Kind] = Kind.USER_MESSAGE
    body: str
    attachments: tuple[AttachmentRef, ...] = ()
    via: Via | None = None
    undelivered: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One participant's activity in a conversation of many; never the principal's voice."""

    kind: ClassVar[Kind] = Kind.SIGNAL
    type: str
    body: str
    sender: dict[str, str] = field(default_factory=dict)
    tag: str | None = None
    attachments: tuple[AttachmentRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessageStarted:
    """The model began to answer; `try_` is 1 plus the failed tries of this turn."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_MESSAGE_STARTED
    model: str
    message_type: str = "text"
    try_: int | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTextDelta:
    """A batched fragment of visible text."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_TEXT_DELTA
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantThinkingDelta:
    """A batched fragment of reasoning."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_THINKING_DELTA
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantBody:
    """Our body of a completed message."""

    parts: tuple[MessagePart, ...] = ()
    stop_reason: StopReason | None = None
    model: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePayload:
    """The seed's wrapping of a message."""

    role: str = "assistant"
    type: str = "text"
    body: AssistantBody


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessageCompleted:
    """The whole answer of one turn, calls apart."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_MESSAGE_COMPLETED
    message: MessagePayload


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantMessageAborted:
    """A dead try: its deltas are never context (I12)."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_MESSAGE_ABORTED
    turn_id: TurnId
    reason: AbortReason


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantToolCall:
    """A call that the model asked for, in the model's order."""

    kind: ClassVar[Kind] = Kind.ASSISTANT_TOOL_CALL
    call_id: CallId
    tool_name: str
    args: JsonObject = field(default_factory=dict)
    thought_signature: str | None = None
    provider_call_id: str | None = None
    raw_args: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """The one outcome of a call (I8)."""

    kind: ClassVar[Kind] = Kind.TOOL_OUTCOME
    call_id: CallId
    tool_name: str
    content: str = ""
    data: Json = None
    is_error: bool | None = None
    cause: OutcomeCause | None = None
    attachments: tuple[AttachmentRef, ...] = ()
    truncated_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A summary that becomes the root of the active branch, with the kept entry under it."""

    kind: ClassVar[Kind] = Kind.COMPACTION
    summary: str
    first_kept_entry_id: RecordId | None = None
    start_idx: int = 0
    end_idx: int = 0
    usage: Usage | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWarning:
    """Something that a reader should know and that stopped nothing."""

    kind: ClassVar[Kind] = Kind.WARNING
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionSettled:
    """The end of a submission; exactly one each (I7)."""

    kind: ClassVar[Kind] = Kind.SUBMISSION_SETTLED
    status: SettledStatus
    error: str | None = None
    error_code: SettledCode | None = None
    result: Json = None
    usage: Usage | None = None
    attempts: int | None = None
    failures: int | None = None
    undelivered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPayload:
    """A kind that this release does not read; carried as it came."""

    kind: str
    payload: Json


Payload = (
    ConversationCreated
    | UserMessage
    | Signal
    | AssistantMessageStarted
    | AssistantTextDelta
    | AssistantThinkingDelta
    | AssistantMessageCompleted
    | AssistantMessageAborted
    | AssistantToolCall
    | ToolOutcome
    | Compaction
    | RunWarning
    | SubmissionSettled
    | UnknownPayload
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entry of a conversation's log. `seq` and `id` are given by the append (I6)."""

    id: RecordId
    seq: int
    conversation_id: ConversationId
    session: str
    submission_id: SubmissionId | None = None
    turn_id: TurnId | None = None
    attempt_id: AttemptId | None = None
    time: datetime
    payload: Payload

    @property
    def kind(self) -> str:
        """The kind on the wire."""
        return str(self.payload.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A record before its append: the wire JSON without its id, and the 16 random bits of the id.

    A repeat of the same write repeats the same bits, so the ids of an unknown commit can be told (I5).
    """

    kind: str
    body: bytes
    bits: int
    submission_id: SubmissionId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record as it is kept and framed: nothing is serialised twice."""

    seq: int
    milliseconds: int
    bits: int
    kind: str
    body: bytes
