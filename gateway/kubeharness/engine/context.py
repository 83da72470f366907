"""What a claim's model reads: small pure pieces between records and the loop's messages."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kubeharness.core.ids import CallId, RecordId
from kubeharness.core.lane import Claimed, InboxMessage, OpenCall
from kubeharness.core.messages import (
    MessagePart,
    ProviderMessage,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolResult,
    joined_text,
)
from kubeharness.core.projection import tool_call
from kubeharness.core.records import AssistantToolCall, Record, Signal, ToolOutcome, UserMessage
from kubeharness.core.text import as_object, clean_json, clean_text, cut_text

RESULT_BYTES = 262_144


def spoken(said: Sequence[InboxMessage]) -> list[ProviderMessage]:
    """What people said, as the model reads it."""
    return [ProviderMessage(role="user", content=clean_text(message.body)) for message in said]


def call_payload(call: ToolCall) -> AssistantToolCall:
    """A call, clean already, as it is recorded."""
    return AssistantToolCall(
        call_id=CallId(call.id),
        tool_name=call.name,
        args=call.arguments,
        thought_signature=call.thought_signature,
        provider_call_id=call.provider_call_id,
        raw_args=call.raw_arguments,
    )


def clean_message(message: ProviderMessage) -> ProviderMessage:
    """A model's message as it is recorded, so that the next request says what a later one will read (I15)."""
    parts = clean_parts(message)
    return replace(
        message,
        content=joined_text(parts),
        parts=parts,
        model=clean_text(message.model) if message.model is not None else None,
        tool_calls=tuple(_clean_call(call) for call in message.tool_calls),
    )


def _clean_call(call: ToolCall) -> ToolCall:
    return replace(
        call,
        name=clean_text(call.name),
        arguments=as_object(clean_json(call.arguments)) or {},
        raw_arguments=clean_text(call.raw_arguments) if call.raw_arguments is not None else None,
        provider_call_id=clean_text(call.provider_call_id) if call.provider_call_id is not None else None,
    )


def bounded(result: ToolResult) -> tuple[ToolResult, int | None]:
    """A result as it is recorded and as the model reads it, clean and cut, and its size in bytes if it was cut."""
    content, size = cut_text(clean_text(result.content), RESULT_BYTES)
    data = as_object(clean_json(result.data)) if result.data is not None else None
    if data is not None and (told := len(json.dumps(data, ensure_ascii=False).encode())) > RESULT_BYTES:
        data, size = None, size or told
    return replace(result, content=content, data=data), size


def in_call_order(messages: Sequence[ProviderMessage]) -> list[ProviderMessage]:
    """The outcomes after each assistant message in the order of its calls (C34).

    They stand otherwise only where a claim runs what a dead attempt left open: what it finds finished comes first.
    """
    ordered: list[ProviderMessage] = []
    order: dict[str | None, int] = {}
    start = 0
    for message in messages:
        if message.role != "tool":
            ordered[start:] = sorted(ordered[start:], key=lambda m: order.get(m.tool_call_id, len(order)))
            order = {call.id: place for place, call in enumerate(message.tool_calls)}
            start = len(ordered) + 1
        ordered.append(message)
    ordered[start:] = sorted(ordered[start:], key=lambda m: order.get(m.tool_call_id, len(order)))
    return ordered


def clean_parts(message: ProviderMessage) -> tuple[MessagePart, ...]:
    """Text is cleaned; what is signed or opaque keeps the received bytes (I15)."""
    cleaned: list[MessagePart] = []
    for part in message.parts or ((TextPart(message.content),) if message.content else ()):
        match part:
            case TextPart(text=text):
                cleaned.append(TextPart(clean_text(text)))
            case ThinkingPart(text=text, signature=None):
                cleaned.append(ThinkingPart(clean_text(text)))
            case _:
                cleaned.append(part)
    return tuple(cleaned)


def as_record(payload: UserMessage | Signal | ToolOutcome, claimed: Claimed, index: int) -> Record:
    """A repaired record as context: its place is the end, its id is not needed for that."""
    return Record(
        id=RecordId(f"repaired-{index}"),
        seq=0,
        conversation_id=claimed.lane.id,
        session=claimed.key.session,
        submission_id=claimed.submission_id,
        time=datetime.fromtimestamp(0, UTC),
        payload=payload,
    )


def with_pending(
    messages: list[ProviderMessage], context: Sequence[Record], pending: Sequence[OpenCall]
) -> list[ProviderMessage]:
    """Give the last assistant message its calls back that still need a result: the loop runs them first."""
    wanted = {call.call_id for call in pending}
    calls = [r.payload for r in context if isinstance(r.payload, AssistantToolCall)]
    restored = [tool_call(call) for call in calls if call.call_id in wanted]
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            asked = {call.id: call for call in (*messages[index].tool_calls, *restored)}
            order = [call.call_id for call in calls if call.call_id in asked]
            messages[index] = replace(messages[index], tool_calls=tuple(asked[i] for i in order))
            break
    return messages


def pending_calls(messages: Sequence[ProviderMessage], run: Sequence[CallId]) -> tuple[ToolCall, ...]:
    """The calls of the last assistant message that the loop runs first."""
    wanted = set(run)
    for message in reversed(messages):
        if message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id in wanted)
    return ()
