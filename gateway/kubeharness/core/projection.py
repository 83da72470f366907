"""From the active path to the messages that a model reads.

Context is user messages, signals, completed assistant messages with their calls, outcomes and compactions; deltas,
aborted tries and messages that were marked undelivered (their senders were told so) are not. A call never stands
without its outcome, and outcomes stand in call order (I8, C01).
"""

from collections.abc import Sequence
from html import escape

from kubeharness.core.ids import TurnId
from kubeharness.core.messages import OpaquePart, ProviderMessage, ToolCall, ToolResult, joined_text
from kubeharness.core.records import (
    AssistantMessageCompleted,
    AssistantToolCall,
    Compaction,
    Record,
    Signal,
    ToolOutcome,
    UserMessage,
)


def project(path: Sequence[Record], *, provider: str | None = None) -> list[ProviderMessage]:
    """The messages of a path. `provider` is the one that reads them: opaque parts of others are dropped."""
    outcomes = {r.payload.call_id: r.payload for r in path if isinstance(r.payload, ToolOutcome)}
    calls: dict[TurnId | None, list[AssistantToolCall]] = {}
    for record in path:
        if isinstance(record.payload, AssistantToolCall):
            calls.setdefault(record.turn_id, []).append(record.payload)

    messages: list[ProviderMessage] = []
    for record in path:
        match record.payload:
            case UserMessage(undelivered=True):
                pass
            case UserMessage(body=body):
                messages.append(ProviderMessage(role="user", content=body))
            case Signal() as signal:
                messages.append(ProviderMessage(role="user", content=render_signal(signal)))
            case Compaction(summary=summary):
                messages.append(ProviderMessage(role="user", content=f"<summary>\n{summary}\n</summary>"))
            case AssistantMessageCompleted() as completed:
                asked = [call for call in calls.get(record.turn_id, ()) if call.call_id in outcomes]
                messages.append(assistant_message(completed, asked, provider=provider))
                messages.extend(outcome_message(outcomes[call.call_id]) for call in asked)
            case _:
                pass
    return messages


def assistant_message(
    completed: AssistantMessageCompleted, calls: Sequence[AssistantToolCall], *, provider: str | None = None
) -> ProviderMessage:
    """What the model said in one turn."""
    body = completed.message.body
    parts = tuple(p for p in body.parts if not isinstance(p, OpaquePart) or provider in (None, p.provider))
    return ProviderMessage(
        role="assistant",
        content=joined_text(parts),
        parts=parts,
        tool_calls=tuple(tool_call(call) for call in calls),
        stop_reason=body.stop_reason,
        model=body.model,
        usage=body.usage,
    )


def tool_call(call: AssistantToolCall) -> ToolCall:
    """A recorded call as the loop runs it and a provider replays it."""
    return ToolCall(
        id=call.call_id,
        name=call.tool_name,
        arguments=call.args,
        provider_call_id=call.provider_call_id,
        raw_arguments=call.raw_args,
        thought_signature=call.thought_signature,
    )


def outcome_message(outcome: ToolOutcome) -> ProviderMessage:
    """The return trip, as `loop.tool_message` makes it while the run is alive."""
    result = outcome_result(outcome)
    return ProviderMessage(
        role="tool",
        content=f"{'error' if result.is_error else 'success'}: {result.content}",
        tool_call_id=outcome.call_id,
    )


def outcome_result(outcome: ToolOutcome) -> ToolResult:
    """A recorded outcome as a result."""
    return ToolResult(content=outcome.content, is_error=bool(outcome.is_error))


def render_signal(signal: Signal) -> str:
    """A tagged block with escaped attributes and body: nobody's activity can pass for the principal's words."""
    attributes = {"type": signal.type, **{f"sender-{k}": v for k, v in sorted(signal.sender.items())}}
    if signal.tag is not None:
        attributes["tag"] = signal.tag
    rendered = "".join(f' {_name(name)}="{escape(value)}"' for name, value in attributes.items())
    return f"<signal{rendered}>\n{escape(signal.body, quote=False)}\n</signal>"


def _name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
