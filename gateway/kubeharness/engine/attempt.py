"""One attempt: load, classify, repair, run the loop, end. Each step's how is in another file.

Writes nothing once the lane is lost (I5); whatever it does, the lane is settled, released, or left to the reaper.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial

from kubeharness.core import codec
from kubeharness.core.errors import (
    LaneLost,
    NotFound,
    SecretMissing,
    ToolServerUnreachable,
    Unavailable,
)
from kubeharness.core.json import Json
from kubeharness.core.lane import Claimed, InboxMessage
from kubeharness.core.messages import ProviderMessage
from kubeharness.core.projection import project
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    Draft,
    OutcomeCause,
    Record,
    RunWarning,
    SettledCode,
    Signal,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.recovery import GoOn, SettleNow, classify, last_word
from kubeharness.core.reducer import reduce
from kubeharness.core.revision import AgentRevision, Durability
from kubeharness.core.text import clean_text
from kubeharness.engine.closing import closing_outcome, turn_of
from kubeharness.engine.context import as_record, pending_calls, spoken, with_pending
from kubeharness.engine.endings import Done, Ending, Fail, GiveBack, Stopped, cancelled
from kubeharness.engine.exchange import Exchange
from kubeharness.engine.parting import Parting
from kubeharness.engine.ports import Loaded, Renewal, Toolbox
from kubeharness.engine.recorder import Recorder, until_answered
from kubeharness.engine.seams import Correlation, Operation
from kubeharness.engine.services import Services
from kubeharness.engine.settlement import Settlement

log = logging.getLogger(__name__)

BLOCKED_MS = 2_000


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
        self._stop = asyncio.Event()
        self._stop_ending: Ending = Done()
        self._timer: asyncio.TimerHandle | None = None
        self._said_lost = False
        self._at = Correlation(conversation=claimed.lane.id, submission=claimed.submission_id, attempt=claimed.attempt)

        self._exchange = Exchange(
            claimed=claimed, services=services, recorder=self._recorder, settlement=self._settlement, at=self._at
        )
        self._parting = Parting(
            claimed=claimed,
            services=services,
            recorder=self._recorder,
            settlement=self._settlement,
            exchange=self._exchange,
            at=self._at,
            lost=self._lost,
        )

    # what the lease thread tells

    def learn(self, renewal: Renewal) -> None:
        """Take what a renewal said; called on the loop's thread, returns at once."""
        if renewal.lost:
            if not self._recorder.leaving:
                self._lost()
                self._stop_with(Done())
        elif not renewal.skipped:
            self._recorder.unread = max(self._recorder.unread, renewal.unread)
            if renewal.cancel is not None:
                self._stop_with(cancelled(renewal.cancel))

    def _lost(self) -> None:
        if not self._said_lost:
            self._said_lost = True
            log.warning("attempt %s lost its lane; nothing more is written", self.claimed.attempt)

    def _stop_with(self, ending: Ending) -> None:
        if not self._stop.is_set():
            self._stop_ending = ending
            self._stop.set()

    def _watch_lifetime(self) -> None:
        """Stop when it is over; begun only after the log was asked, whose answer beats it (I11)."""
        deadline = self.claimed.lane.deadline
        if deadline is not None:
            left = max(0.0, (deadline - self.claimed.now) / 1000)
            self._timer = asyncio.get_running_loop().call_later(left, self._past_deadline)

    def _past_deadline(self) -> None:
        said = self.claimed.lane.last_error
        error = "not done within its lifetime" + (f": {said}" if said else "")
        self._stop_with(Fail(code=SettledCode.TIMEOUT_EXCEEDED, error=error, cause=OutcomeCause.TIMEOUT))

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        raise Stopped(self._stop_ending)

    async def _until_leaving(self) -> None:
        await self._s.leave_now.wait()
        self._stop_with(GiveBack(cause="handover"))

    # the run

    async def run(self) -> None:
        """Drive the attempt to its outcome. Raises nothing but CancelledError."""
        async with asyncio.TaskGroup() as tools:  # a tool that ignores its cancel outlives the end of the attempt
            await self._run(tools)

    async def _run(self, tools: asyncio.TaskGroup) -> None:
        ending: Ending = GiveBack(cause="failure", last_error="an interceptor ended the attempt")
        self._s.seams.tell("submission_claimed", self._at)
        try:
            await self._s.seams.around(Operation(kind="attempt", at=self._at), lambda: self._within(tools))
        except* Exception as group:  # noqa: BLE001 - whatever a run raises ends it, and says how
            ending = self._ending_of(group)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if not self._parting.done:
            await self._parting.end(ending)

    def _ending_of(self, group: ExceptionGroup[Exception]) -> Ending:
        """What ends the attempt, of all that was raised: being lost, being stopped, being blocked, its own fault."""
        raised = list(_leaves(group))
        for error in raised:
            if isinstance(error, LaneLost):
                self._lost()
                return Done()
        for error in raised:
            if isinstance(error, Stopped):
                return error.ending
        for error in raised:
            if isinstance(error, SecretMissing | ToolServerUnreachable | Unavailable):
                return GiveBack(cause="blocked", delay_ms=BLOCKED_MS, last_error=str(error))
        error = raised[0]
        log.error("attempt %s failed", self.claimed.attempt, exc_info=error)
        return GiveBack(cause="failure", last_error=f"{type(error).__name__}: {error}")

    async def _within(self, tools: asyncio.TaskGroup) -> None:
        async with asyncio.TaskGroup() as tasks:
            flush = tasks.create_task(self._recorder.flush_in_time(), name="flush")
            watches = [
                tasks.create_task(self._until_stopped(), name="stop"),
                tasks.create_task(self._until_leaving(), name="leave"),
            ]
            ending = await self._driven(tools)
            flush.cancel()
            await self._parting.carry_out(ending)
            for watch in watches:
                watch.cancel()

    async def _driven(self, tools: asyncio.TaskGroup) -> Ending:
        try:
            return await self._drive(tools)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("something within gave up its own scope") from None

    async def _drive(self, tasks: asyncio.TaskGroup) -> Ending:
        if self._s.draining.is_set():  # claimed in the moment of the signal: another begins it
            return GiveBack(cause="handover")
        claimed, what = self.claimed, f"attempt {self.claimed.attempt}, load"
        revision, problem = await self._revision()
        loaded = await until_answered(lambda: self._s.store.load(claimed.lane.id), what=what)
        if loaded is None:
            return GiveBack(cause="failure", last_error="the conversation is gone")
        self._recorder.unread = max(self._recorder.unread, loaded.lane.unread)
        self._recorder.cancel = loaded.lane.cancel
        self._recorder.calls = {call.call_id: call for call in loaded.calls}
        records = [codec.decode_record(stored) for stored in loaded.records]
        plan = classify(
            lane=replace(self.claimed.lane, cancel=loaded.lane.cancel),
            submission=self.claimed.submission_id,
            records=records,
            calls=loaded.calls,
            unread=loaded.lane.unread,
            durability=revision.durability if revision is not None else Durability(),
            now=self.claimed.now,
        )
        if isinstance(plan, SettleNow):
            self._s.seams.tell("recovery", self._at, plan.code.value if plan.code else "settled from the log")
            return await self._parting.settle_now(plan)
        if revision is None:
            return GiveBack(cause="failure", last_error=problem)
        self._watch_lifetime()
        async with AsyncExitStack() as stack:
            await self._api_key(revision, False)  # a missing Secret delays the lane before anything is written
            toolbox = await stack.enter_async_context(await self._toolbox(revision))
            toolbox.keyed(self.claimed.submission_id)
            messages = await self._repair(plan, loaded, records, revision, toolbox)
            return await self._exchange.converse(
                tasks,
                revision=revision,
                toolbox=toolbox,
                messages=messages,
                pending=pending_calls(messages, plan.run),
                read_key=self._api_key,
            )

    # before the loop

    async def _revision(self) -> tuple[AgentRevision | None, str]:
        """The revision, or why it cannot be run: cancel, answer and budgets are heeded without it."""
        wanted = self.claimed.revision
        try:
            what = f"attempt {self.claimed.attempt}, revision"
            return await until_answered(lambda: self._s.revisions.get(wanted), what=what), ""
        except (NotFound, ValueError, KeyError) as error:
            log.error("attempt %s: revision %s cannot be run", self.claimed.attempt, wanted, exc_info=error)
            return None, f"revision {wanted} cannot be run: {error}"

    async def _api_key(self, revision: AgentRevision, fresh: bool) -> str | None:
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
            catalogue = await until_answered(
                partial(self._s.revisions.catalogue, namespace, server.name),
                what=f"attempt {self.claimed.attempt}, catalogue",
            )
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
        own = [record for record in records if record.submission_id == self.claimed.submission_id]
        warned = {record.payload.message for record in own if isinstance(record.payload, RunWarning)}
        drafts += [
            self._recorder.draft(RunWarning(code="tool_left_out", message=warning))
            for warning in dict.fromkeys(clean_text(said) for said in toolbox.warnings)
            if warning not in warned
        ]
        closed = [call.call_id for call in plan.interrupt]
        if drafts:
            await self._recorder.write(drafts, closed=closed, open_turn=None)
            if plan.abort_turn is not None or closed:
                self._s.seams.tell("recovery", self._at, "repaired what a dead attempt left")
        context += [as_record(payload, self.claimed, index) for index, payload in enumerate(repaired)]

        said: list[InboxMessage] = []
        if loaded.inbox and not self._exchange.calls:
            said = await self._exchange.consume(followups=last_word(own) is not None)
        messages = project(reduce(context).active_path(), provider=revision.provider.name)
        pending = [self._exchange.calls[call_id] for call_id in plan.run if call_id in self._exchange.calls]
        if pending:
            messages = with_pending(messages, context, pending)
        return [*messages, *spoken(said)]

    def _input(self) -> UserMessage | Signal:
        message = codec.decode_message(self.claimed.message)
        if message.signal is not None:
            return Signal(
                type=clean_text(message.signal.type),
                body=clean_text(message.body),
                sender={clean_text(k): clean_text(v) for k, v in message.signal.sender.items()},
                tag=clean_text(message.signal.tag) if message.signal.tag is not None else None,
            )
        return UserMessage(body=clean_text(message.body))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[Exception]:
    """The exceptions of a group, however it is nested."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        elif isinstance(error, Exception):
            yield error
