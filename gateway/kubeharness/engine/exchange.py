"""Follows the loop: each event becomes a record before the next step begins; steering enters at the seams."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from kubeharness.core.errors import (
    KubeharnessError,
    ProviderAuth,
    ProviderError,
    ProviderOverflow,
    ProviderTransient,
    SettlementRefused,
)
from kubeharness.core.events import (
    AgentCompleted,
    AgentError,
    AgentEvent,
    CompletionDelta,
    CompletionEnd,
    InputRequired,
    MaxStepsReached,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)
from kubeharness.core.ids import CallId
from kubeharness.core.lane import CallState, Claimed, InboxMessage, OpenCall
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall
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
from kubeharness.core.text import clean_json, clean_text, cut_text
from kubeharness.core.transitions import CounterChange
from kubeharness.engine.batch import ParallelBatch, starts_at_once
from kubeharness.engine.closing import closing_outcome, turn_of
from kubeharness.engine.context import call_payload, clean_parts, spoken
from kubeharness.engine.crashpoints import CrashPoint
from kubeharness.engine.endings import Done, Ending, Fail, GiveBack, Stopped
from kubeharness.engine.ports import Toolbox, UsageRow
from kubeharness.engine.recorder import Recorder
from kubeharness.engine.seams import Correlation
from kubeharness.engine.services import Services
from kubeharness.engine.settlement import Settlement
from kubeharness.engine.turns import TurnProvider

RESULT_BYTES = 262_144
BACKOFF_CAP_SECONDS = 60.0

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
        self.calls: dict[CallId, OpenCall] = {}
        """The ledger of this submission, as this attempt knows it."""
        self._final: _Final | None = None

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
        try:
            provider = self._s.models.provider(
                revision,
                api_key=await read_key(revision, False),
                failed_tries=self.claimed.lane.counters.tries,
            )
        except ProviderError as refused:
            return self._failed(revision, str(refused), refused)
        turns = TurnProvider(
            provider,
            claimed=self.claimed,
            revision=revision,
            recorder=self._recorder,
        )
        batch = ParallelBatch(
            tasks,
            begin=self._begin,
            started=lambda call: self.calls[CallId(call.id)].state is CallState.STARTED,
            sequential=lambda name: toolbox.policy(name)[1],
        )
        loop = AgentLoop(turns, batch=batch, seam=self._seam)
        read_again = False
        while True:
            context = AgentLoopContext(
                messages, max_steps=max(0, revision.durability.max_turns - self._recorder.steps), pending_calls=pending
            )
            pending = ()
            last = await self._follow(loop, context, toolbox, turns, revision)
            match last:
                case AgentCompleted():
                    ending = await self._complete()
                    if ending is not None:
                        return ending
                    messages.extend(spoken(await self.consume(followups=True)))
                case AgentError(error=ProviderAuth()) if not read_again and revision.provider.api_key is not None:
                    read_again = True
                    await self.abort_open_turn(AbortReason.STREAM_BROKEN)
                    fresh = await read_key(revision, True)
                    turns.inner = self._s.models.provider(revision, api_key=fresh, failed_tries=turns.failed_tries)
                case AgentError(message=message, error=error):
                    return self._failed(revision, message, error)
                case InputRequired(call, result):
                    return Fail(code=SettledCode.INPUT_REQUIRED, error=f"tool {call.name} asks: {result.content}")
                case _:
                    return Fail(code=SettledCode.MAX_STEPS_REACHED, error=max_steps_error(revision.durability))

    async def _follow(
        self, loop: AgentLoop, context: AgentLoopContext, toolbox: Toolbox, turns: TurnProvider, revision: AgentRevision
    ) -> AgentEvent:
        last: AgentEvent = MaxStepsReached()
        events = loop.run(context, toolbox)
        try:
            async for event in events:
                last = event
                await self._record(event, turns, revision, toolbox)
                if self._recorder.cancel is not None:
                    raise Stopped(Fail(code=SettledCode.CANCELLED, error=self._recorder.cancel))
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator; tools still running stop now
        return last

    async def _record(self, event: AgentEvent, turns: TurnProvider, revision: AgentRevision, toolbox: Toolbox) -> None:
        match event:
            case CompletionDelta(text):
                await self._recorder.fragment(AssistantTextDelta, text, turns.turn)
            case ReasoningDelta(text):
                await self._recorder.fragment(AssistantThinkingDelta, text, turns.turn)
            case CompletionEnd(message=message):
                await self._record_completed(message, turns, revision, toolbox)
            case ToolCallStart(call):
                self._s.seams.tell("tool_call_started", replace(self._at, call=CallId(call.id)), call.name)
                self._s.crash.reach(CrashPoint.MID_TOOL)
            case ToolCallEnd(call, result):
                content, cut_from = cut_text(clean_text(result.content), RESULT_BYTES)
                outcome = ToolOutcome(
                    call_id=CallId(call.id),
                    tool_name=call.name,
                    content=content,
                    data=clean_json(result.data) if result.data is not None else None,
                    is_error=True if result.is_error else None,
                    cause=OutcomeCause(result.cause) if result.cause else None,
                    truncated_from=cut_from,
                )
                drafts = [self._recorder.draft(outcome, turn_of(CallId(call.id)))]
                await self._recorder.write(drafts, closed=[CallId(call.id)])
                del self.calls[CallId(call.id)]
                self._s.seams.tell("tool_call_ended", replace(self._at, call=CallId(call.id)), call.name)
                self._s.crash.reach(CrashPoint.AFTER_OUTCOME)
            case _:
                pass

    async def _record_completed(
        self, message: ProviderMessage, turns: TurnProvider, revision: AgentRevision, toolbox: Toolbox
    ) -> None:
        body = AssistantBody(
            parts=clean_parts(message), stop_reason=message.stop_reason, model=message.model, usage=message.usage
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
        self.calls |= {call.call_id: call for call in opened}
        self._s.crash.reach(CrashPoint.CALLS_RECORDED)

    async def _begin(self, call: ToolCall) -> None:
        call_id = CallId(call.id)
        await self._recorder.write(started=[call_id])
        self.calls[call_id] = replace(self.calls[call_id], state=CallState.STARTED)

    # seams and ends

    async def _seam(self) -> Sequence[ProviderMessage]:
        if self._recorder.cancel is not None:
            raise Stopped(Fail(code=SettledCode.CANCELLED, error=self._recorder.cancel))
        if self._s.draining.is_set() and self._final is None:
            raise Stopped(GiveBack(cause="handover"))
        if not self._recorder.unread:
            return ()
        return spoken(await self.consume(followups=self._final is not None))

    async def consume(self, *, followups: bool) -> list[InboxMessage]:
        """Move messages from the inbox into the log; a followup waits for the end of the exchange."""
        loaded = await self._s.store.load(self.claimed.lane.id)
        inbox = loaded.inbox if loaded else ()
        said = [message for message in inbox if followups or message.via == "steer"]
        if not said:
            self._recorder.unread = 0  # a followup waits for the end, where the settlement is refused over it
            return []
        await self._write_final()
        drafts = [
            self._recorder.draft(UserMessage(body=message.body, via="steer" if message.via == "steer" else "followup"))
            for message in said
        ]
        await self._recorder.write(drafts, consumed=[message.id for message in said])
        self._s.crash.reach(CrashPoint.INBOX_CONSUMED)
        return said

    async def _write_final(self) -> None:
        final, self._final = self._final, None
        if final is None:
            return
        usage = final.usage.usage if final.usage else None
        await self._recorder.write(
            final.drafts, counters=CounterChange(steps=1, usage=usage), open_turn=None, usage=final.usage
        )
        self._s.crash.reach(CrashPoint.AFTER_COMPLETED)

    async def _complete(self) -> Ending | None:
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
            await self._write_final()
            if self._recorder.cancel is not None:
                return Fail(code=SettledCode.CANCELLED, error=self._recorder.cancel)
            return None
        self._s.crash.reach(CrashPoint.AFTER_SETTLE)
        self._s.seams.tell("submission_settled", self._at, "succeeded")
        return Done()

    def _failed(self, revision: AgentRevision, message: str, error: Exception | None) -> Ending:
        lane = self.claimed.lane
        match error:
            case None | ProviderTransient():
                if lane.counters.model_retries + 1 > revision.durability.model_retries:
                    return Fail(code=SettledCode.RUN_FAILED, error=message, aborted=AbortReason.STREAM_BROKEN)
                after = error.retry_after if isinstance(error, ProviderTransient) else None
                if after is None:
                    after = random.uniform(0, min(BACKOFF_CAP_SECONDS, 2.0**lane.counters.tries))
                return GiveBack(cause="backoff", delay_ms=int(after * 1000), last_error=message)
            case ProviderOverflow():
                return Fail(code=SettledCode.CONTEXT_TOO_LARGE, error=message, aborted=AbortReason.STREAM_BROKEN)
            case ProviderAuth():
                ref = revision.provider.api_key
                named = f" (Secret {self.claimed.key.namespace}/{ref.name} key {ref.key!r})" if ref else ""
                return Fail(code=SettledCode.RUN_FAILED, error=f"{message}{named}", aborted=AbortReason.STREAM_BROKEN)
            case KubeharnessError():
                return Fail(code=SettledCode.RUN_FAILED, error=message, aborted=AbortReason.STREAM_BROKEN)
            case _:
                raise error

    async def abort_open_turn(self, reason: AbortReason) -> None:
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
        for call in cut:
            del self.calls[call.call_id]
