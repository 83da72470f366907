"""What a settlement writes: the drafts that close everything a submission leaves open, in their one order.

Pure composition. A worker's settlement and a gateway's cancel of an unclaimed head both call it, so a
submission looks the same in the log whoever ended it (I7, I8, I12).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import assert_never, cast

from kubeharness.core import codec
from kubeharness.core.ids import AttemptId, CallId, SubmissionId, TurnId
from kubeharness.core.lane import CallState, InboxMessage, Lane, OpenCall
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    Draft,
    OutcomeCause,
    Payload,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
    Via,
)


def turn_of(call: CallId) -> TurnId:
    """The turn that a call belongs to: its id is the turn's and an index."""
    return TurnId(call.rpartition(".")[0])


def closing_outcome(call: OpenCall, cause: OutcomeCause) -> ToolOutcome:
    """The one outcome of a call that its tool will never answer (I8, I9)."""
    match call.state:
        case CallState.STARTED:
            content = f"{cause.value}, may have run"
        case CallState.CHILD:
            content = f"{cause.value}, the child run was cancelled"
        case CallState.RECORDED | CallState.ASKED | CallState.APPROVED:
            content = f"{cause.value}, was not run"
        case _:
            assert_never(call.state)
    return ToolOutcome(call_id=call.call_id, tool_name=call.tool_name, content=content, is_error=True, cause=cause)


def closing_drafts(
    lane: Lane,
    calls: Sequence[OpenCall],
    inbox: Sequence[InboxMessage],
    *,
    settled: SubmissionSettled,
    submission: SubmissionId,
    session: str,
    cause: OutcomeCause = OutcomeCause.CANCELLED,
    aborted: AbortReason = AbortReason.CANCELLED,
    attempt: AttemptId | None = None,
    time: datetime,
    bits: Callable[[], int],
) -> list[Draft]:
    """The aborted message if one is open, one outcome a call, each unread message, the settlement last.

    `cause` and `aborted` say why calls and message have no end of their own. Unread messages are written as
    undelivered and listed on the settlement. `bits` gives the 16 random bits of each record's id.
    """

    def write(payload: Payload, turn: TurnId | None = None) -> Draft:
        return codec.draft(
            payload,
            conversation=lane.id,
            session=session,
            submission=submission,
            turn=turn,
            attempt=attempt,
            time=time,
            bits=bits(),
        )

    drafts: list[Draft] = []
    if lane.open_turn is not None:
        drafts.append(write(AssistantMessageAborted(turn_id=lane.open_turn, reason=aborted), turn=lane.open_turn))
    drafts += [write(closing_outcome(call, cause), turn=turn_of(call.call_id)) for call in calls]
    drafts += [
        write(UserMessage(body=message.body, via=cast("Via", message.via), undelivered=True))  # the inbox's own words
        for message in inbox
    ]
    drafts.append(write(replace(settled, undelivered=tuple(message.id for message in inbox))))
    return drafts
