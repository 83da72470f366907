"""What a claim does first, decided from durable evidence alone: the table of engine.md, section 11.

cancel flag                              → settle cancelled
completed, no calls, nothing unread      → settle from the log, even past a budget (I11)
failures or lifetime over                → settle with the code, zero model calls (I10)
no input record                          → the first append writes it
a message left open                      → mark it aborted (I12)
open calls                               → run, run again, or "interrupted" (I9)
every call closed, steps used up         → settle max_steps_reached
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kubeharness.core.ids import CallId, SubmissionId, TurnId
from kubeharness.core.lane import CallState, Lane, OpenCall
from kubeharness.core.records import (
    AssistantMessageCompleted,
    AssistantToolCall,
    Record,
    SettledCode,
    Signal,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.revision import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleNow:
    """End the submission; None as code means success with the logged answer."""

    code: SettledCode | None
    error: str | None = None
    attempts_back: bool = False
    """The claim's own failure is taken back: this claim ran nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """Repair what is listed, then run the loop."""

    write_input: bool = False
    abort_turn: TurnId | None = None
    interrupt: tuple[OpenCall, ...] = ()
    run: tuple[CallId, ...] = ()
    """In call order."""
    run_started: tuple[CallId, ...] = ()
    """Those of `run` that the ledger already says are started."""


Plan = SettleNow | GoOn


def classify(
    *,
    lane: Lane,
    submission: SubmissionId,
    records: Sequence[Record],
    calls: Sequence[OpenCall],
    unread: int,
    durability: Durability,
    now: int,
) -> Plan:
    """Say what this claim must do. Always answers."""
    own = [record for record in records if record.submission_id == submission]
    if lane.cancel is not None:
        return SettleNow(code=SettledCode.CANCELLED, error=lane.cancel)

    last = last_word(own)
    if last is not None and not calls and unread == 0 and lane.open_turn is None:
        code, error = verdict(last)
        return SettleNow(code=code, error=error)

    over = lane.counters.failures > durability.max_attempts
    if over:
        said = lane.last_error or "each attempt ended without a word"
        return SettleNow(
            code=SettledCode.ATTEMPT_BUDGET_EXHAUSTED,
            error=f"gave up after {durability.max_attempts} failed attempts: {said}",
            attempts_back=True,
        )
    if lane.deadline is not None and now >= lane.deadline:
        said = f": {lane.last_error}" if lane.last_error else ""
        return SettleNow(
            code=SettledCode.TIMEOUT_EXCEEDED,
            error=f"not done within {durability.submission_timeout_seconds} s{said}",
            attempts_back=True,
        )
    if lane.counters.model_retries > durability.model_retries:
        return SettleNow(code=SettledCode.RUN_FAILED, error=lane.last_error or "the model failed too often")

    has_input = any(is_input(record) for record in own)
    order = [r.payload.call_id for r in own if isinstance(r.payload, AssistantToolCall)]
    ranked = sorted(calls, key=lambda c: order.index(c.call_id) if c.call_id in order else len(order))
    runnable = tuple(c for c in ranked if _may_run(c))
    interrupted = tuple(c for c in ranked if c.state is CallState.STARTED and not c.idempotent)
    if has_input and not calls and unread == 0 and lane.counters.steps >= durability.max_turns:
        return SettleNow(code=SettledCode.MAX_STEPS_REACHED, error=max_steps_error(durability))
    return GoOn(
        write_input=not has_input,
        abort_turn=lane.open_turn,
        interrupt=interrupted,
        run=tuple(c.call_id for c in runnable),
        run_started=tuple(c.call_id for c in runnable if c.state is CallState.STARTED),
    )


def max_steps_error(durability: Durability) -> str:
    """The sentence of `max_steps_reached`."""
    return f"the model still asked for tools after {durability.max_turns} turns (durability.maxTurns)"


def _may_run(call: OpenCall) -> bool:
    if call.state in (CallState.RECORDED, CallState.APPROVED):
        return True
    return call.state is CallState.STARTED and call.idempotent


def is_input(record: Record) -> bool:
    """The record that the submission's own message became."""
    match record.payload:
        case UserMessage(via=via):
            return via in (None, "dispatch")
        case Signal():
            return True
        case _:
            return False


def last_word(own: Sequence[Record]) -> AssistantMessageCompleted | None:
    """The submission's final answer: a completed message without calls that nothing was said after."""
    for record in reversed(own):
        match record.payload:
            case AssistantMessageCompleted() as completed:
                asked = any(
                    isinstance(other.payload, AssistantToolCall) and other.turn_id == record.turn_id for other in own
                )
                return None if asked else completed
            case UserMessage() | Signal() | ToolOutcome() | AssistantToolCall():
                return None
            case _:
                continue
    return None


def verdict(completed: AssistantMessageCompleted) -> tuple[SettledCode | None, str | None]:
    """How a run with this last message ends: a cut or refused answer is never taken as complete (C35)."""
    match completed.message.body.stop_reason:
        case "stop" | "tool_calls" | None:
            return None, None
        case "length":
            return SettledCode.RUN_FAILED, "the answer was cut at the model's output limit (model.maxTokens)"
        case "refusal":
            return SettledCode.REFUSED, "the model refused to answer"
        case "content_filter":
            return SettledCode.REFUSED, "the provider's content filter stopped the answer"
        case other:
            return SettledCode.RUN_FAILED, f"the model stopped for an unknown reason ({other})"
