"""Records for the pure core's tests: a log is written as payloads, ids and seqs come by themselves."""

from datetime import UTC, datetime

from kubeharness.core.ids import CallId, ConversationId, RecordId, SubmissionId, TurnId, record_id
from kubeharness.core.messages import StopReason, TextPart
from kubeharness.core.records import (
    AssistantBody,
    AssistantMessageCompleted,
    AssistantToolCall,
    MessagePayload,
    Payload,
    Record,
    ToolOutcome,
)

LANE = ConversationId("conv_1")
SUBMISSION = SubmissionId("sub_1")


def log(*entries: Payload | tuple[str, Payload], submission: SubmissionId | None = SUBMISSION) -> list[Record]:
    """Records in order; an entry may be (turn, payload)."""
    out = []
    for seq, entry in enumerate(entries, 1):
        turn, payload = entry if isinstance(entry, tuple) else (None, entry)
        out.append(
            Record(
                id=record_id(1_700_000_000_000, seq, 0),
                seq=seq,
                conversation_id=LANE,
                session="default",
                submission_id=submission,
                turn_id=TurnId(turn) if turn else None,
                time=datetime(2026, 1, 1, tzinfo=UTC),
                payload=payload,
            )
        )
    return out


def completed(text: str = "", stop: StopReason = "stop") -> AssistantMessageCompleted:
    """A whole answer."""
    parts = (TextPart(text),) if text else ()
    return AssistantMessageCompleted(message=MessagePayload(body=AssistantBody(parts=parts, stop_reason=stop)))


def call(call_id: str, tool: str = "echo") -> AssistantToolCall:
    """A call of the model."""
    return AssistantToolCall(call_id=CallId(call_id), tool_name=tool, args={"n": None})


def outcome(call_id: str, content: str = "ok", *, error: bool = False) -> ToolOutcome:
    """The end of a call."""
    return ToolOutcome(call_id=CallId(call_id), tool_name="echo", content=content, is_error=error or None)


def ids(records: list[Record]) -> list[RecordId]:
    """Their ids."""
    return [record.id for record in records]
