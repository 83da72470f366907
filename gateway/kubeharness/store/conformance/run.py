"""A claimed lane in a case's hands: its records, its numbered writes, its settlement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import (
    AttemptId,
    CallId,
    ConversationId,
    InboxId,
    SubmissionId,
    TurnId,
)
from kubeharness.core.lane import CallState, Claimed, OpenCall
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    AssistantMessageStarted,
    AssistantToolCall,
    Draft,
    OutcomeCause,
    Payload,
    RunWarning,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.transitions import NO_CHANGE, CounterChange, ReleaseCause
from kubeharness.engine.ports import (
    Append,
    Appended,
    Release,
    Settle,
    UsageRow,
)
from kubeharness.store.conformance.answers import LEASE_MS, good

if TYPE_CHECKING:
    from kubeharness.store.conformance.world import World


@dataclass(slots=True)
class Run:
    """A claimed lane, and the numbers of its writes."""

    world: "World"
    claimed: Claimed
    number: int = 0

    @property
    def conversation(self) -> ConversationId:
        """Its conversation."""
        return self.claimed.lane.id

    @property
    def attempt(self) -> AttemptId:
        """Its attempt."""
        return self.claimed.attempt

    @property
    def submission(self) -> SubmissionId:
        """Its submission."""
        return self.claimed.submission_id

    def draft(self, payload: Payload, *, turn: TurnId | None = None) -> Draft:
        """A record of this submission."""
        return self.world.draft(payload, self.claimed.key, submission=self.submission, turn=turn, attempt=self.attempt)

    def text(self, body: str = "hello") -> Draft:
        """An input record."""
        return self.draft(UserMessage(body=body, via="dispatch"))

    def steered(self, body: str = "psst", *, undelivered: bool | None = None) -> Draft:
        """The record of a message that was put into the run."""
        return self.draft(UserMessage(body=body, via="steer", undelivered=undelivered))

    def begun(self, turn: TurnId) -> Draft:
        """The record that opens a message."""
        return self.draft(AssistantMessageStarted(model="m"), turn=turn)

    def note(self, message: str = "note") -> Draft:
        """A record that means nothing."""
        return self.draft(RunWarning(code="test", message=message))

    def call(self, call: str, *, state: CallState = CallState.STARTED, idempotent: bool = False) -> OpenCall:
        """A ledger row."""
        return OpenCall(
            call_id=CallId(call),
            conversation=self.conversation,
            submission_id=self.submission,
            tool_name="clock",
            state=state,
            idempotent=idempotent,
        )

    def called(self, *calls: OpenCall) -> list[Draft]:
        """Their records."""
        return [self.draft(AssistantToolCall(call_id=call.call_id, tool_name=call.tool_name)) for call in calls]

    def outcome(self, call: str) -> Draft:
        """The outcome of a call."""
        return self.draft(
            ToolOutcome(call_id=CallId(call), tool_name="clock", content="12", cause=OutcomeCause.INTERRUPTED)
        )

    def write(
        self,
        *drafts: Draft,
        opened: Sequence[OpenCall] = (),
        closed: Sequence[str] = (),
        started: Sequence[str] = (),
        consumed: Sequence[str] = (),
        counters: CounterChange = NO_CHANGE,
        open_turn: TurnId | None = None,
        usage: UsageRow | None = None,
        lease_ms: int = LEASE_MS,
    ) -> Append:
        """The next numbered write."""
        self.number += 1
        return Append(
            conversation=self.conversation,
            attempt=self.attempt,
            number=self.number,
            lease_ms=lease_ms,
            drafts=drafts,
            opened=opened,
            closed=[CallId(call) for call in closed],
            started=[CallId(call) for call in started],
            consumed=[InboxId(message) for message in consumed],
            counters=counters,
            open_turn=open_turn,
            usage=usage,
        )

    async def begin(self) -> Appended:
        """The input record: what each run writes first."""
        return await self.append(self.write(self.text()))

    async def append(self, item: Append) -> Appended:
        """Append, which must be accepted."""
        return good((await self.world.store.append([item]))[0])

    async def try_append(self, item: Append) -> Appended | KubeharnessError:
        """Append, and take the answer as it is. A refused write has not used up its number."""
        (result,) = await self.world.store.append([item])
        if isinstance(result, KubeharnessError):
            self.number -= 1
        return result

    def aborted(self, turn: TurnId) -> Draft:
        """The end of a dead try."""
        return self.draft(AssistantMessageAborted(turn_id=turn, reason=AbortReason.ATTEMPT_DIED), turn=turn)

    def ending(
        self,
        *before: Draft,
        success: bool = True,
        closes: Sequence[str] = (),
        drains: Sequence[str] = (),
        submission: SubmissionId | None = None,
    ) -> Settle:
        """The settlement, as the next numbered write."""
        self.number += 1
        return Settle(
            conversation=self.conversation,
            attempt=self.attempt,
            number=self.number,
            submission_id=submission or self.submission,
            drafts=[*before, self.draft(settled(success))],
            closes=[CallId(call) for call in closes],
            drains=[InboxId(message) for message in drains],
            success=success,
        )

    async def settle(self, item: Settle | None = None) -> Appended:
        """Settle, which must be accepted."""
        return good((await self.world.store.settle([item or self.ending()]))[0])

    async def try_settle(self, item: Settle) -> Appended | KubeharnessError:
        """Settle, and take the answer as it is."""
        (result,) = await self.world.store.settle([item])
        if isinstance(result, KubeharnessError):
            self.number -= 1
        return result

    def back(self, cause: ReleaseCause, *, delay_ms: int = 0, last_error: str = "") -> Release:
        """A release."""
        return Release(
            conversation=self.conversation,
            attempt=self.attempt,
            cause=cause,
            delay_ms=delay_ms,
            last_error=last_error,
        )

    async def release(self, cause: ReleaseCause, *, delay_ms: int = 0, last_error: str = "") -> None:
        """Give the lane back, which must be accepted."""
        item = self.back(cause, delay_ms=delay_ms, last_error=last_error)
        good((await self.world.store.release([item]))[0])


def settled(success: bool) -> SubmissionSettled:
    """The end of a submission."""
    if success:
        return SubmissionSettled(status=SettledStatus.SUCCEEDED)
    return SubmissionSettled(status=SettledStatus.FAILED, error="it failed", error_code=SettledCode.RUN_FAILED)
