"""Follows the loop: each event becomes a record before the next step begins; steering enters at the seams."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from kubeharness.core.errors import ProviderAuth, ProviderError, SettlementRefused
from kubeharness.core.events import (
    AgentCompleted,
    AgentError,
    AgentEvent,
    CompletionDelta,
    CompletionEnd,
    CompletionStart,
    InputRequired,
    MaxStepsReached,
    ReasoningDelta,
    ReasoningStart,
    ToolCallEnd,
    ToolCallStart,
)
from kubeharness.core.ids import CallId, TurnId
from kubeharness.core.lane import CallState, Claimed, InboxMessage, OpenCall
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult
from kubeharness.core.records import (
    AbortReason,
    AssistantBody,
    AssistantMessageAborted,
    AssistantMessageCompleted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    Draft,
    MessagePayload,
    OutcomeCause,
    SettledCode,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.recovery import max_steps_error, verdict
from kubeharness.core.revision import AgentRevision
from kubeharness.core.transitions import CounterChange
from kubeharness.engine.batch import ParallelBatch, starts_at_once
from kubeharness.engine.closing import closing_outcome, turn_of
from kubeharness.engine.context import bounded, call_payload, spoken
from kubeharness.engine.crashpoints import CrashPoint
from kubeharness.engine.endings import Done, Ending, Fail, GiveBack, Stopped, cancelled
from kubeharness.engine.faults import ending_after
from kubeharness.engine.ports import Toolbox, UsageRow
from kubeharness.engine.recorder import Recorder, until_answered
from kubeharness.engine.seams import Correlation, Operation
from kubeharness.engine.services import Services
from kubeharness.engine.settlement import Settlement
from kubeharness.engine.turns import TurnProvider

ReadKey = Callable[[AgentRevision, bool], Awaitable[str | None]]
"""Reads the provider's key; the flag says to pass the cache by."""


@dataclass(slots=True)
class _Final:
    """The answer just given, not yet written: it shares the settlement's write."""

    drafts: list[Draft] = field(default_factory=list)
    usage: UsageRow | None = None
    message: AssistantMessageCompleted | None = None


class Exchange:
    """One attempt's conversation with its model and tools, as it becomes durable."""

    def __init__(
        self, *, claimed: Claimed, services: Services, recorder: Recorder, settlement: Settlement, at: Correlation
    ) -> None:
        self.claimed = claimed
        self._s = services
        self._recorder = recorder
        self._settlement = settlement
        self._at = at
        self._final: _Final | None = None
        self._told: TurnId | None = None

    @property
    def calls(self) -> dict[CallId, OpenCall]:
        """The ledger of this submission, as this attempt knows it."""
        return self._recorder.calls

    @property
    def answered(self) -> bool:
        """An answer is given and not yet written."""
        return self._final is not None

    @property
    def final_drafts(self) -> list[Draft]:
        """The answer that is given and not yet written."""
        return self._final.drafts if self._final else []

    @property
    def final_usage(self) -> UsageRow | None:
        """What that answer cost."""
        return self._final.usage if self._final else None

    async def converse(
        self,
        tasks: asyncio.TaskGroup,
        *,
        revision: AgentRevision,
        toolbox: Toolbox,
        messages: list[ProviderMessage],
        pending: Sequence[ToolCall],
        read_key: ReadKey,
    ) -> Ending:
        """Run turns until the submission is settled, or say how the attempt must end."""
        tools = _Tools(toolbox)
        turns = TurnProvider(claimed=self.claimed, revision=revision, recorder=self._recorder)
        batch = ParallelBatch(
            tasks,
            begin=self._begin,
            started=lambda call: self.calls[CallId(call.id)].state is CallState.STARTED,
            sequential=lambda name: toolbox.policy(name)[1],
            around=self._around_tool,
        )
        loop = AgentLoop(turns, batch=batch, seam=self._seam)
        read_again_at: int | None = None
        fresh = False
        while True:
            last: AgentEvent
            key = await read_key(revision, fresh)
            try:
                turns.inner = self._s.models.provider(revision, api_key=key, failed_tries=turns.failed_tries)
            except ProviderError as refused:
                last = AgentError(str(refused), refused)
            else:
                left = max(0, revision.durability.max_turns - self._recorder.steps)
                context = AgentLoopContext(messages, max_steps=left, pending_calls=pending)
                pending = ()
                last = await self._follow(loop, context, tools, turns, revision)
            fresh = False
            match last:
                case AgentCompleted():
                    ending = await self.complete()
                    if ending is not None:
                        return ending
                    said = spoken(await self.consume(followups=True))
                    if not said:  # what refused the settlement is not there any more: the log holds the answer
                        return GiveBack(cause="handover")
                    messages.extend(said)
                case AgentError(error=ProviderAuth()) if (
                    revision.provider.api_key is not None and read_again_at != self._recorder.steps
                ):
                    fresh, read_again_at = True, self._recorder.steps  # once a turn: a long run may meet two rotations
                    await self.abort_open_turn(AbortReason.STREAM_BROKEN)
                case AgentError(message=message, error=error):
                    return ending_after(
                        error,
                        message,
                        claimed=self.claimed,
                        revision=revision,
                        failed_tries=turns.failed_tries,
                        chance=random.random(),
                    )
                case InputRequired(call, result):
                    return Fail(code=SettledCode.INPUT_REQUIRED, error=f"tool {call.name} asks: {result.content}")
                case _:
                    return Fail(code=SettledCode.MAX_STEPS_REACHED, error=max_steps_error(revision.durability))

    async def _follow(
        self, loop: AgentLoop, context: AgentLoopContext, tools: "_Tools", turns: TurnProvider, revision: AgentRevision
    ) -> AgentEvent:
        last: AgentEvent = MaxStepsReached()
        events = loop.run(context, tools)
        try:
            async for event in events:
                last = event
                self._tell(event, turns)
                await self._record(event, turns, revision, tools)
                if self._recorder.cancel is not None:
                    raise Stopped(cancelled(self._recorder.cancel))
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator; tools still running stop now
        return last

    def _tell(self, event: AgentEvent, turns: TurnProvider) -> None:
        """Let observers know of turns and their fragments."""
        match event:
            case CompletionStart() | ReasoningStart() if self._told != turns.turn:
                self._told = turns.turn
                self._s.seams.tell("turn_started", replace(self._at, turn=turns.turn))
            case CompletionDelta(text) | ReasoningDelta(text):
                self._s.seams.tell("delta", replace(self._at, turn=turns.turn), text)
            case CompletionEnd(message=message):
                self._s.seams.tell("turn_ended", replace(self._at, turn=turns.turn), message.stop_reason or "")
            case _:
                pass

    async def _record(self, event: AgentEvent, turns: TurnProvider, revision: AgentRevision, tools: "_Tools") -> None:
        match event:
            case CompletionDelta(text):
                await self._recorder.fragment(AssistantTextDelta, text, turns.turn)
            case ReasoningDelta(text):
                await self._recorder.fragment(AssistantThinkingDelta, text, turns.turn)
            case CompletionEnd(message=message):
                await self._record_completed(message, turns, revision, tools.box)
            case ToolCallStart(call):
                self._s.seams.tell("tool_call_started", replace(self._at, call=CallId(call.id)), call.name)
                self._s.crash.reach(CrashPoint.MID_TOOL)
            case ToolCallEnd(call, result):
                outcome = ToolOutcome(
                    call_id=CallId(call.id),
                    tool_name=call.name,
                    content=result.content,
                    data=result.data,
                    is_error=True if result.is_error else None,
                    cause=OutcomeCause(result.cause) if result.cause else None,
                    truncated_from=tools.cut.pop(call.id, None),
                )
                drafts = [self._recorder.draft(outcome, turn_of(CallId(call.id)))]
                await self._recorder.write(drafts, closed=[CallId(call.id)])
                self._s.seams.tell("tool_call_ended", replace(self._at, call=CallId(call.id)), call.name)
                self._s.crash.reach(CrashPoint.AFTER_OUTCOME)
            case _:
                pass

    async def _record_completed(
        self, message: ProviderMessage, turns: TurnProvider, revision: AgentRevision, toolbox: Toolbox
    ) -> None:
        body = AssistantBody(
            parts=message.parts, stop_reason=message.stop_reason, model=message.model, usage=message.usage
        )
        completed = AssistantMessageCompleted(message=MessagePayload(body=body))
        drafts = [self._recorder.draft(completed, turns.turn)]
        usage = (
            UsageRow(
                turn_id=turns.turn,
                model=message.model or revision.model.name,
                provider=revision.provider.name,
                usage=message.usage,
            )
            if message.usage
            else None
        )
        if not message.tool_calls:
            self._final = _Final(drafts, usage, completed)
            return
        at_once = starts_at_once(message.tool_calls, sequential=lambda name: toolbox.policy(name)[1])
        opened = [
            OpenCall(
                call_id=CallId(call.id),
                conversation=self.claimed.lane.id,
                submission_id=self.claimed.submission_id,
                tool_name=call.name,
                state=CallState.STARTED if call.id in at_once else CallState.RECORDED,
                idempotent=toolbox.policy(call.name)[0],
            )
            for call in message.tool_calls
        ]
        drafts += [self._recorder.draft(call_payload(call), turns.turn) for call in message.tool_calls]
        await self._recorder.write(
            drafts,
            opened=opened,
            counters=CounterChange(steps=1, usage=message.usage),
            open_turn=None,
            usage=usage,
        )
        self._s.crash.reach(CrashPoint.CALLS_RECORDED)

    async def _begin(self, call: ToolCall) -> None:
        await self._recorder.write(started=[CallId(call.id)])

    async def _around_tool(self, call: ToolCall, run: Callable[[], Awaitable[None]]) -> None:
        at = replace(self._at, turn=turn_of(CallId(call.id)), call=CallId(call.id))
        await self._s.seams.around(Operation(kind="tool", at=at, name=call.name), run)

    # seams and ends

    async def _seam(self) -> Sequence[ProviderMessage]:
        if self._recorder.cancel is not None:
            raise Stopped(cancelled(self._recorder.cancel))
        if self._s.draining.is_set() and self._final is None:
            raise Stopped(GiveBack(cause="handover"))
        if not self._recorder.unread:
            return ()
        return spoken(await self.consume(followups=self._final is not None))

    async def inbox(self) -> Sequence[InboxMessage]:
        """What is unread."""
        lane = self.claimed.lane.id
        return await until_answered(lambda: self._s.store.inbox(lane), what=f"attempt {self.claimed.attempt}, inbox")

    async def consume(self, *, followups: bool) -> list[InboxMessage]:
        """Move messages from the inbox into the log; a followup waits for the end of the exchange."""
        inbox = await self.inbox()
        said = [message for message in inbox if followups or message.via == "steer"]
        if not said:
            self._recorder.unread = 0  # a followup waits for the end, where the settlement is refused over it
            return []
        await self.write_final()
        drafts = [
            self._recorder.draft(UserMessage(body=message.body, via="steer" if message.via == "steer" else "followup"))
            for message in said
        ]
        await self._recorder.write(drafts, consumed=[message.id for message in said])
        self._s.crash.reach(CrashPoint.INBOX_CONSUMED)
        return said

    async def write_final(self) -> None:
        """Make the answer durable by itself: something keeps it from settling the submission in one write."""
        final, self._final = self._final, None
        if final is None:
            return
        usage = final.usage.usage if final.usage else None
        await self._recorder.write(
            final.drafts, counters=CounterChange(steps=1, usage=usage), open_turn=None, usage=final.usage
        )
        self._s.crash.reach(CrashPoint.AFTER_COMPLETED)

    async def complete(self) -> Ending | None:
        """Settle with the answer; None if somebody said something first."""
        final = self._final
        if final is None or final.message is None:
            return GiveBack(cause="failure", last_error="the loop ended without an answer")
        code, error = verdict(final.message)
        if code is not None:
            return Fail(code=code, error=error or code.value)
        self._s.crash.reach(CrashPoint.BEFORE_SETTLE)
        try:
            await self._settlement.succeed(final.drafts, usage=final.usage)
        except SettlementRefused:
            await self.write_final()
            if self._recorder.cancel is not None:
                return cancelled(self._recorder.cancel)
            return None
        self._s.crash.reach(CrashPoint.AFTER_SETTLE)
        self._s.seams.tell("submission_settled", self._at, "succeeded")
        return Done()

    async def abort_open_turn(self, reason: AbortReason) -> None:
        """Write what was streamed, and that it has no end (I12)."""
        await self._recorder.write()
        turn = self._recorder.open_turn
        if turn is not None:
            draft = self._recorder.draft(AssistantMessageAborted(turn_id=turn, reason=reason), turn)
            await self._recorder.write([draft], open_turn=None)
        self._final = None

    async def close(self, calls: Sequence[OpenCall], cause: OutcomeCause) -> None:
        """What was cut off may have run; what never started stays for the next attempt (I9)."""
        cut = [call for call in calls if call.state is CallState.STARTED and not call.idempotent]
        if not cut:
            return
        drafts = [self._recorder.draft(closing_outcome(call, cause), turn_of(call.call_id)) for call in cut]
        await self._recorder.write(drafts, closed=[call.call_id for call in cut])


class _Tools:
    """The attempt's tools, with results as they are recorded: what the log keeps is what the model reads (I15)."""

    def __init__(self, box: Toolbox) -> None:
        self.box = box
        self.cut: dict[str, int] = {}
        """Call → the original size of a result that was cut."""

    def definitions(self) -> Sequence[ToolDefinition]:
        return self.box.definitions()

    async def execute(self, call: ToolCall) -> ToolResult:
        try:
            result = await self.box.execute(call)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is feedback for the model
            result = ToolResult(f"{type(error).__name__}: {error}", is_error=True)
        result, size = bounded(result)
        if size is not None:
            self.cut[call.id] = size
        return result
