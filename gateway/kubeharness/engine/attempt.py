"""One attempt: load, classify, repair, run the loop, end. Each step's how is in another file.

Writes nothing once the lane is lost (I5); whatever it does, the lane is settled, released, or left to the reaper.
"""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from kubeharness.core import codec
from kubeharness.core.errors import (
    KubeharnessError,
    LaneLost,
    ProviderAuth,
    ProviderOverflow,
    ProviderTransient,
    SecretMissing,
    SettlementRefused,
    ToolServerUnreachable,
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
from kubeharness.core.ids import CallId, RecordId
from kubeharness.core.json import Json
from kubeharness.core.lane import CallState, Claimed, InboxMessage, OpenCall
from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import MessagePart, ProviderMessage, TextPart, ThinkingPart, ToolCall
from kubeharness.core.projection import project, tool_call
from kubeharness.core.records import (
    AbortReason,
    AssistantBody,
    AssistantMessageAborted,
    AssistantMessageCompleted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    AssistantToolCall,
    Draft,
    MessagePayload,
    OutcomeCause,
    Record,
    SettledCode,
    Signal,
    ToolOutcome,
    UserMessage,
    Warning_,
)
from kubeharness.core.recovery import GoOn, SettleNow, classify, last_word, max_steps_error, verdict
from kubeharness.core.reducer import reduce
from kubeharness.core.revision import AgentRevision
from kubeharness.core.text import as_object, clean_json, clean_text, cut_text
from kubeharness.core.transitions import CounterChange, ReleaseCause
from kubeharness.engine.batch import ParallelBatch, starts_at_once
from kubeharness.engine.closing import closing_outcome, turn_of
from kubeharness.engine.crashpoints import CrashPoint, CrashPoints
from kubeharness.engine.ports import (
    Clock,
    Loaded,
    Models,
    Release,
    Renewal,
    SecretSource,
    Store,
    Toolbox,
    Toolboxes,
    UsageRow,
    Waker,
)
from kubeharness.engine.recorder import Recorder
from kubeharness.engine.revisions import Revisions
from kubeharness.engine.seams import Correlation, Operation, Seams
from kubeharness.engine.settlement import Settlement
from kubeharness.engine.turns import TurnProvider

log = logging.getLogger(__name__)

ErrorT = TypeVar("ErrorT", bound=BaseException)
ExceptionT = TypeVar("ExceptionT", bound=BaseException)

RESULT_BYTES = 262_144
ENDING_SECONDS = 10.0
BLOCKED_MS = 2_000
BACKOFF_CAP_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What every attempt of a worker shares."""

    store: Store
    waker: Waker
    clock: Clock
    secrets: SecretSource
    models: Models
    toolboxes: Toolboxes
    revisions: Revisions
    lease_ms: int
    crash: CrashPoints
    seams: Seams
    draining: asyncio.Event
    """Set: hand over at the next seam."""
    leave_now: asyncio.Event
    """Set: the drain is over, hand over where you stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Settle with a code."""

    code: SettledCode
    error: str
    cause: OutcomeCause = OutcomeCause.CANCELLED
    aborted: AbortReason = AbortReason.CANCELLED
    ran: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Release the lane."""

    cause: ReleaseCause
    delay_ms: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Settled already, or not ours any more."""


Ending = Fail | GiveBack | Done


class Stopped(Exception):
    """Control: what must end the run from outside of it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(type(ending).__name__)
        self.ending = ending


@dataclass(slots=True)
class _Final:
    """The answer just given, not yet written: it shares the settlement's write."""

    drafts: list[Draft] = field(default_factory=list)
    usage: UsageRow | None = None
    message: AssistantMessageCompleted | None = None


class Attempt:
    """Drives one claimed lane to its outcome."""

    def __init__(self, claimed: Claimed, services: Services) -> None:
        self.claimed = claimed
        self._s = services
        self._recorder = Recorder(
            claimed,
            store=services.store,
            waker=services.waker,
            clock=services.clock,
            lease_ms=services.lease_ms,
            crash=services.crash,
        )
        self._settlement = Settlement(
            claimed=claimed, store=services.store, recorder=self._recorder, clock=services.clock
        )
        self._calls: dict[CallId, OpenCall] = {}
        self._final: _Final | None = None
        self._stop = asyncio.Event()
        self._stop_ending: Ending = Done()
        self._at = Correlation(conversation=claimed.lane.id, submission=claimed.submission_id, attempt=claimed.attempt)

    # what the lease thread tells

    def learn(self, renewal: Renewal) -> None:
        """Take what a renewal said; called on the loop's thread, returns at once."""
        if renewal.lost:
            self._stop_with(Done())
        elif not renewal.skipped:
            self._recorder.unread = max(self._recorder.unread, renewal.unread)
            if renewal.cancel is not None:
                self._stop_with(Fail(code=SettledCode.CANCELLED, error=renewal.cancel))

    def _stop_with(self, ending: Ending) -> None:
        if not self._stop.is_set():
            self._stop_ending = ending
            self._stop.set()

    async def _until_stopped(self) -> None:
        deadline = self.claimed.lane.deadline
        left = None if deadline is None else max(0.0, (deadline - self.claimed.now) / 1000)
        try:
            async with asyncio.timeout(left), asyncio.TaskGroup() as waits:
                leave = waits.create_task(self._leave())
                await self._stop.wait()
                leave.cancel()
        except TimeoutError:
            raise Stopped(
                Fail(
                    code=SettledCode.TIMEOUT_EXCEEDED, error="not done within its lifetime", cause=OutcomeCause.TIMEOUT
                )
            ) from None
        raise Stopped(self._stop_ending)

    async def _leave(self) -> None:
        await self._s.leave_now.wait()
        self._stop_with(GiveBack(cause="handover"))

    # the run

    async def run(self) -> None:
        """Drive the attempt to its outcome. Raises nothing but CancelledError."""
        ending: Ending = Done()
        try:
            await self._s.seams.around(Operation(kind="attempt", at=self._at), self._within)
            return
        except* Stopped as stopped:
            ending = _first(stopped, Stopped).ending
        except* LaneLost:
            log.warning("attempt %s lost its lane; nothing more is written", self.claimed.attempt)
        except* (SecretMissing, ToolServerUnreachable) as blocked:
            why = _first(blocked, KubeharnessError)
            ending = GiveBack(cause="blocked", delay_ms=BLOCKED_MS, last_error=str(why))
        except* Exception as group:
            error = _first(group, Exception)
            log.error("attempt %s failed", self.claimed.attempt, exc_info=error)
            ending = GiveBack(cause="failure", last_error=f"{type(error).__name__}: {error}")
        await self._end(ending)

    async def _within(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._recorder.flush_in_time(), name="flush"),
                tasks.create_task(self._until_stopped(), name="watch"),
            ]
            ending = await self._drive(tasks)
            for helper in helpers:
                helper.cancel()
            await self._finish(ending)

    async def _end(self, ending: Ending) -> None:
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                await self._finish(ending)
        except LaneLost:
            log.warning("attempt %s lost its lane while ending", self.claimed.attempt)
        except (KubeharnessError, TimeoutError) as error:
            log.warning("attempt %s could not be ended, its lease will run out: %s", self.claimed.attempt, error)

    async def _finish(self, ending: Ending) -> None:
        match ending:
            case Fail():
                final = self._final
                await self._settlement.fail(
                    ending.code,
                    ending.error,
                    calls=list(self._calls.values()),
                    final=final.drafts if final else (),
                    usage=final.usage if final else None,
                    cause=ending.cause,
                    aborted=ending.aborted,
                    ran=ending.ran,
                )
                self._s.crash.reach(CrashPoint.AFTER_SETTLE)
                self._s.seams.tell("submission_settled", self._at, ending.code.value)
            case GiveBack():
                await self._give_back(ending)
            case Done():
                pass

    async def _give_back(self, ending: GiveBack) -> None:
        await self._abort_open_turn(
            AbortReason.STREAM_BROKEN if ending.cause == "backoff" else AbortReason.ATTEMPT_DIED
        )
        if self._calls:
            await self._close(list(self._calls.values()), OutcomeCause.INTERRUPTED)
        [answer] = await self._s.store.release(
            [
                Release(
                    conversation=self.claimed.lane.id,
                    attempt=self.claimed.attempt,
                    cause=ending.cause,
                    delay_ms=ending.delay_ms,
                    last_error=cut_text(clean_text(ending.last_error), 4096)[0],
                )
            ]
        )
        if answer is not None:
            raise answer
        self._s.waker.touched([self.claimed.lane.id], work=True)
        self._s.seams.tell("submission_released", self._at, ending.cause)

    async def _drive(self, tasks: asyncio.TaskGroup) -> Ending:
        revision = await self._s.revisions.get(self.claimed.revision)
        loaded = await self._s.store.load(self.claimed.lane.id)
        if loaded is None:
            return GiveBack(cause="failure", last_error="the conversation is gone")
        self._recorder.unread = max(self._recorder.unread, loaded.lane.unread)
        self._recorder.cancel = loaded.lane.cancel
        self._calls = {call.call_id: call for call in loaded.calls}
        records = [codec.decode_record(stored) for stored in loaded.records]
        plan = classify(
            lane=replace(self.claimed.lane, cancel=loaded.lane.cancel),
            submission=self.claimed.submission_id,
            records=records,
            calls=loaded.calls,
            unread=loaded.lane.unread,
            durability=revision.durability,
            now=self.claimed.now,
        )
        if isinstance(plan, SettleNow):
            self._s.seams.tell("recovery", self._at, plan.code.value if plan.code else "settled from the log")
            return await self._settle_now(plan)
        async with AsyncExitStack() as stack:
            api_key = await self._api_key(revision, fresh=False)
            toolbox = await stack.enter_async_context(await self._toolbox(revision))
            toolbox.keyed(self.claimed.submission_id)
            messages = await self._repair(plan, loaded, records, revision, toolbox)
            return await self._converse(tasks, revision, toolbox, messages, plan, api_key)

    async def _settle_now(self, plan: SettleNow) -> Ending:
        if plan.code is None:
            self._s.crash.reach(CrashPoint.BEFORE_SETTLE)
            try:
                await self._settlement.succeed((), usage=None)
            except SettlementRefused:  # a message or a cancel came between: another claim reads it
                return GiveBack(cause="handover")
            self._s.crash.reach(CrashPoint.AFTER_SETTLE)
            self._s.seams.tell("submission_settled", self._at, "succeeded")
            return Done()
        return Fail(
            code=plan.code,
            error=plan.error or plan.code.value,
            aborted=AbortReason.CANCELLED if plan.code is SettledCode.CANCELLED else AbortReason.ATTEMPT_DIED,
            cause=OutcomeCause.CANCELLED if plan.code is SettledCode.CANCELLED else OutcomeCause.INTERRUPTED,
            ran=not plan.attempts_back,
        )

    # before the loop

    async def _api_key(self, revision: AgentRevision, *, fresh: bool) -> str | None:
        ref = revision.provider.api_key
        if ref is None:
            return None
        return await self._s.secrets.read(self.claimed.key.namespace, ref.name, ref.key, fresh=fresh)

    async def _toolbox(self, revision: AgentRevision) -> AbstractAsyncContextManager[Toolbox]:
        namespace = self.claimed.key.namespace
        catalogues: dict[str, Json] = {}
        headers: dict[str, Mapping[str, str]] = {}
        for grant in revision.tools:
            server = grant.server
            if server is None or server.name in headers:
                continue
            headers[server.name] = {
                header.name: header.value
                if header.value is not None
                else await self._s.secrets.read(namespace, header.secret.name, header.secret.key)
                if header.secret is not None
                else ""
                for header in server.headers
            }
            catalogue = await self._s.revisions.catalogue(namespace, server.name)
            if catalogue is not None:
                catalogues[server.name] = catalogue
        return self._s.toolboxes.open(revision, catalogues=catalogues, headers=headers)

    async def _repair(
        self,
        plan: GoOn,
        loaded: Loaded,
        records: list[Record],
        revision: AgentRevision,
        toolbox: Toolbox,
    ) -> list[ProviderMessage]:
        """Write what the dead attempt owes and the input, in one append; then what was said meanwhile."""
        context = list(records)
        drafts: list[Draft] = []
        repaired: list[UserMessage | Signal | ToolOutcome] = []
        if plan.abort_turn is not None:
            aborted = AssistantMessageAborted(turn_id=plan.abort_turn, reason=AbortReason.ATTEMPT_DIED)
            drafts.append(self._recorder.draft(aborted, plan.abort_turn))
        if plan.write_input:
            payload = self._input()
            drafts.append(self._recorder.draft(payload))
            repaired.append(payload)
        for call in plan.interrupt:
            outcome = closing_outcome(call, OutcomeCause.INTERRUPTED)
            drafts.append(self._recorder.draft(outcome, turn_of(call.call_id)))
            repaired.append(outcome)
        warnings = [Warning_(code="tool_left_out", message=said) for said in toolbox.warnings]
        drafts += [self._recorder.draft(warning) for warning in warnings if plan.write_input]
        closed = [call.call_id for call in plan.interrupt]
        if drafts:
            await self._recorder.write(drafts, closed=closed, open_turn=None)
            for call_id in closed:
                del self._calls[call_id]
            if plan.abort_turn is not None or closed:
                self._s.seams.tell("recovery", self._at, "repaired what a dead attempt left")
        context += [_as_record(payload, self.claimed, index) for index, payload in enumerate(repaired)]

        own = [record for record in records if record.submission_id == self.claimed.submission_id]
        said: list[InboxMessage] = []
        if loaded.inbox and not self._calls:
            said = await self._consume(followups=last_word(own) is not None)
        messages = project(reduce(context).active_path(), provider=revision.provider.name)
        pending = [self._calls[call_id] for call_id in plan.run if call_id in self._calls]
        if pending:
            messages = _with_pending(messages, context, pending)
        return [*messages, *(ProviderMessage(role="user", content=message.body) for message in said)]

    def _input(self) -> UserMessage | Signal:
        message = codec.decode_message(self.claimed.message)
        if message.signal is not None:
            return Signal(
                type=clean_text(message.signal.type),
                body=clean_text(message.body),
                sender={clean_text(k): clean_text(v) for k, v in message.signal.sender.items()},
                tag=message.signal.tag,
            )
        return UserMessage(body=clean_text(message.body))

    # the loop

    async def _converse(
        self,
        tasks: asyncio.TaskGroup,
        revision: AgentRevision,
        toolbox: Toolbox,
        messages: list[ProviderMessage],
        plan: GoOn,
        api_key: str | None,
    ) -> Ending:
        turns = TurnProvider(
            self._s.models.provider(revision, api_key=api_key, failed_tries=self.claimed.lane.counters.tries),
            claimed=self.claimed,
            revision=revision,
            recorder=self._recorder,
        )
        batch = ParallelBatch(
            tasks,
            begin=self._begin,
            started=lambda call: self._calls[CallId(call.id)].state is CallState.STARTED,
            sequential=lambda name: toolbox.policy(name)[1],
        )
        loop = AgentLoop(turns, batch=batch, seam=self._seam)
        pending = _pending_calls(messages, plan.run)
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
                    messages.extend(_spoken(await self._consume(followups=True)))
                case AgentError(error=ProviderAuth()) if not read_again and revision.provider.api_key is not None:
                    read_again = True
                    await self._abort_open_turn(AbortReason.STREAM_BROKEN)
                    fresh = await self._api_key(revision, fresh=True)
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
                del self._calls[CallId(call.id)]
                self._s.seams.tell("tool_call_ended", replace(self._at, call=CallId(call.id)), call.name)
                self._s.crash.reach(CrashPoint.AFTER_OUTCOME)
            case _:
                pass

    async def _record_completed(
        self, message: ProviderMessage, turns: TurnProvider, revision: AgentRevision, toolbox: Toolbox
    ) -> None:
        body = AssistantBody(
            parts=_clean_parts(message), stop_reason=message.stop_reason, model=message.model, usage=message.usage
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
        drafts += [self._recorder.draft(_call_payload(call), turns.turn) for call in message.tool_calls]
        await self._recorder.write(
            drafts,
            opened=opened,
            counters=CounterChange(steps=1, usage=message.usage),
            open_turn=None,
            usage=usage,
        )
        self._calls |= {call.call_id: call for call in opened}
        self._s.crash.reach(CrashPoint.CALLS_RECORDED)

    async def _begin(self, call: ToolCall) -> None:
        call_id = CallId(call.id)
        await self._recorder.write(started=[call_id])
        self._calls[call_id] = replace(self._calls[call_id], state=CallState.STARTED)

    # seams and ends

    async def _seam(self) -> Sequence[ProviderMessage]:
        if self._recorder.cancel is not None:
            raise Stopped(Fail(code=SettledCode.CANCELLED, error=self._recorder.cancel))
        if self._s.draining.is_set() and self._final is None:
            raise Stopped(GiveBack(cause="handover"))
        if not self._recorder.unread:
            return ()
        return _spoken(await self._consume(followups=self._final is not None))

    async def _consume(self, *, followups: bool) -> list[InboxMessage]:
        """Move messages from the inbox into the log; a followup waits for the end of the exchange."""
        loaded = await self._s.store.load(self.claimed.lane.id)
        inbox = loaded.inbox if loaded else ()
        said = [message for message in inbox if followups or message.via == "steer"]
        if not said:
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

    async def _abort_open_turn(self, reason: AbortReason) -> None:
        await self._recorder.write()
        turn = self._recorder.open_turn
        if turn is not None:
            draft = self._recorder.draft(AssistantMessageAborted(turn_id=turn, reason=reason), turn)
            await self._recorder.write([draft], open_turn=None)
        self._final = None

    async def _close(self, calls: Sequence[OpenCall], cause: OutcomeCause) -> None:
        """What was cut off may have run; what never started stays for the next attempt (I9)."""
        cut = [call for call in calls if call.state is CallState.STARTED and not call.idempotent]
        if not cut:
            return
        drafts = [self._recorder.draft(closing_outcome(call, cause), turn_of(call.call_id)) for call in cut]
        await self._recorder.write(drafts, closed=[call.call_id for call in cut])
        for call in cut:
            del self._calls[call.call_id]


def _first(group: BaseExceptionGroup[ExceptionT], of: type[ErrorT]) -> ErrorT:
    """The first leaf of a group that is of the wanted class."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first(error, of)
        if isinstance(error, of):
            return error
    raise group


def _spoken(said: Sequence[InboxMessage]) -> list[ProviderMessage]:
    return [ProviderMessage(role="user", content=clean_text(message.body)) for message in said]


def _call_payload(call: ToolCall) -> AssistantToolCall:
    return AssistantToolCall(
        call_id=CallId(call.id),
        tool_name=clean_text(call.name),
        args=as_object(clean_json(call.arguments)) or {},
        thought_signature=call.thought_signature,
        provider_call_id=call.provider_call_id,
        raw_args=clean_text(call.raw_arguments) if call.raw_arguments is not None else None,
    )


def _clean_parts(message: ProviderMessage) -> tuple[MessagePart, ...]:
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


def _as_record(payload: UserMessage | Signal | ToolOutcome, claimed: Claimed, index: int) -> Record:
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


def _with_pending(
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


def _pending_calls(messages: Sequence[ProviderMessage], run: Sequence[CallId]) -> tuple[ToolCall, ...]:
    wanted = set(run)
    for message in reversed(messages):
        if message.role == "assistant":
            return tuple(call for call in message.tool_calls if call.id in wanted)
    return ()
