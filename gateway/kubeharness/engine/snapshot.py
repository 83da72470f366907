"""A conversation as a reader wants to see it at once: what was said, folded from the log (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeharness.core import codec
from kubeharness.core.ids import ConversationId, SubmissionId
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import joined_text
from kubeharness.core.records import (
    AssistantMessageCompleted,
    AssistantToolCall,
    Compaction,
    Record,
    Signal,
    ToolOutcome,
    UserMessage,
)
from kubeharness.engine.ports import SubmissionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The projected conversation, what is open, and where to tail from."""

    conversation_id: ConversationId
    session: str
    messages: list[JsonObject] = field(default_factory=list)
    submissions: Sequence[SubmissionView] = ()
    """Unsettled ones, the head first."""
    offset: str | None = None
    """The id of the last record; None while nothing was said."""


def fold(records: Sequence[Record]) -> list[JsonObject]:
    """The messages of a log, oldest first; an assistant's calls stand with it, outcomes where they came."""
    messages: list[JsonObject] = []
    asked: dict[str, list[Json]] = {}
    for record in records:
        shown: JsonObject
        match record.payload:
            case UserMessage() as said:
                shown = {"role": "user", "content": said.body}
                if said.via is not None:
                    shown["via"] = said.via
                if said.undelivered:
                    shown["undelivered"] = True
            case Signal() as signal:
                about: JsonObject = {"type": signal.type, "sender": dict(signal.sender)}
                if signal.tag is not None:
                    about["tag"] = signal.tag
                shown = {"role": "signal", "content": signal.body, "signal": about}
            case AssistantMessageCompleted(message=message):
                calls: list[Json] = []
                shown = {"role": "assistant", "content": joined_text(message.body.parts)}
                shown["toolCalls"] = calls
                if message.body.stop_reason is not None:
                    shown["stopReason"] = message.body.stop_reason
                asked[record.turn_id or ""] = calls
            case AssistantToolCall() as call:
                asked.get(record.turn_id or "", []).append(
                    {"callId": call.call_id, "toolName": call.tool_name, "args": call.args}
                )
                continue
            case ToolOutcome() as outcome:
                shown = {"role": "tool", "content": outcome.content, "callId": outcome.call_id}
                shown["toolName"] = outcome.tool_name
                shown["isError"] = bool(outcome.is_error)
            case Compaction(summary=summary):
                shown = {"role": "summary", "content": summary}
            case _:
                continue
        shown["recordId"] = record.id
        if record.submission_id:
            shown["submissionId"] = record.submission_id
        shown["time"] = codec.wire_time(record.time)
        messages.append(shown)
    return messages


def final_text(records: Sequence[Record], submission: SubmissionId) -> str | None:
    """What the model said last in a submission; None if these records hold no completed message of it."""
    for record in reversed(records):
        if record.submission_id == submission and isinstance(record.payload, AssistantMessageCompleted):
            return joined_text(record.payload.message.body.parts)
    return None
