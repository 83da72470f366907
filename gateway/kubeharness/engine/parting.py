"""How an attempt parts with its lane: settle it, give it back, or leave it to the reaper."""

import asyncio
import logging
from collections.abc import Callable

from kubeharness.core.errors import KubeharnessError, LaneLost, SettlementRefused
from kubeharness.core.lane import Claimed
from kubeharness.core.records import AbortReason, OutcomeCause, SettledCode
from kubeharness.core.recovery import SettleNow
from kubeharness.core.text import clean_text, cut_text
from kubeharness.engine.crashpoints import CrashPoint
from kubeharness.engine.endings import Done, Ending, Fail, GiveBack, cancelled
from kubeharness.engine.exchange import Exchange
from kubeharness.engine.ports import Release
from kubeharness.engine.recorder import Recorder, until_answered
from kubeharness.engine.seams import Correlation
from kubeharness.engine.services import Services
from kubeharness.engine.settlement import ERROR_BYTES, Settlement

log = logging.getLogger(__name__)

ENDING_SECONDS = 10.0
"""What an ending has left once the process must go."""


class Parting:
    """Carries out the ending of one attempt."""

    def __init__(
        self,
        *,
        claimed: Claimed,
        services: Services,
        recorder: Recorder,
        settlement: Settlement,
        exchange: Exchange,
        at: Correlation,
        lost: Callable[[], None],
    ) -> None:
        self._claimed = claimed
        self._s = services
        self._recorder = recorder
        self._settlement = settlement
        self._exchange = exchange
        self._at = at
        self._lost = lost
        self.done = False
        """The ending is carried out."""

    async def end(self, ending: Ending) -> None:
        """The ending of a run that was stopped. An outage is waited for, until the process must go (I10)."""
        try:
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                hurry = tasks.create_task(self._hurry(limit), name="hurry")
                await self.carry_out(ending)
                hurry.cancel()
        except* LaneLost:
            self._lost()
        except* (KubeharnessError, TimeoutError) as errors:
            why, attempt = errors.exceptions[0], self._claimed.attempt
            log.warning("attempt %s could not be ended, its lease will run out: %s", attempt, why)

    async def _hurry(self, limit: asyncio.Timeout) -> None:
        await self._s.leave_now.wait()
        limit.reschedule(asyncio.get_running_loop().time() + ENDING_SECONDS)

    async def carry_out(self, ending: Ending) -> None:
        """Settle or release. Raises LaneLost, and what the store refuses."""
        if self._exchange.answered and isinstance(ending, Fail) and ending.code is SettledCode.TIMEOUT_EXCEEDED:
            ending = await self._exchange.complete() or ending  # the answer was given before the time was over (I11)
        match ending:
            case Fail():
                await self._fail(ending)
            case GiveBack():
                await self._give_back(ending)
            case Done():
                pass
        self.done = True

    async def settle_now(self, plan: SettleNow) -> Ending:
        """How a claim ends that runs nothing; an answer of the log is settled at once."""
        if plan.code is None:
            self._s.crash.reach(CrashPoint.BEFORE_SETTLE)
            try:
                await self._settlement.succeed((), usage=None)
            except SettlementRefused:  # a message or a cancel came between: another claim reads it
                return GiveBack(cause="handover")
            self._s.crash.reach(CrashPoint.AFTER_SETTLE)
            self._s.seams.tell("submission_settled", self._at, "succeeded")
            return Done()
        if plan.code is SettledCode.CANCELLED:
            return cancelled(plan.error or "")
        return Fail(
            code=plan.code,
            error=plan.error or plan.code.value,
            aborted=AbortReason.ATTEMPT_DIED,
            cause=OutcomeCause.INTERRUPTED,
            ran=not plan.attempts_back,
        )

    async def _fail(self, ending: Fail) -> None:
        try:
            await self._settlement.fail(
                ending.code,
                ending.error,
                calls=list(self._exchange.calls.values()),
                final=self._exchange.final_drafts,
                usage=self._exchange.final_usage,
                cause=ending.cause,
                aborted=ending.aborted,
                ran=ending.ran,
            )
        except SettlementRefused:  # others keep writing to it: no fault of the submission
            await self._give_back(GiveBack(cause="handover"))
            return
        self._s.crash.reach(CrashPoint.AFTER_SETTLE)
        self._s.seams.tell("submission_settled", self._at, ending.code.value)

    async def _give_back(self, ending: GiveBack) -> None:
        try:
            await self._leave_nothing_half_said(ending)
        except LaneLost:
            raise
        except KubeharnessError as error:  # the store takes none of it: the next claim finds it open, and at once
            log.warning("attempt %s leaves its log as it is: %s", self._claimed.attempt, error)
        # A message ends a back-off, but for those that wait for the end of the exchange anyway.
        seen = await self._followups() if ending.cause == "backoff" and ending.delay_ms else 0
        await self._release(
            Release(
                conversation=self._claimed.lane.id,
                attempt=self._claimed.attempt,
                cause=ending.cause,
                delay_ms=ending.delay_ms,
                seen=seen,
                last_error=cut_text(clean_text(ending.last_error), ERROR_BYTES)[0],
            )
        )
        self._s.waker.touched([self._claimed.lane.id], work=True)
        self._s.seams.tell("submission_released", self._at, ending.cause)

    async def _leave_nothing_half_said(self, ending: GiveBack) -> None:
        if self._exchange.answered:
            await self._exchange.write_final()  # it was given, and is not asked for again
        else:
            broken = ending.cause == "backoff"
            await self._exchange.abort_open_turn(AbortReason.STREAM_BROKEN if broken else AbortReason.ATTEMPT_DIED)
        if self._exchange.calls:
            await self._exchange.close(list(self._exchange.calls.values()), OutcomeCause.INTERRUPTED)

    async def _followups(self) -> int:
        inbox = await self._exchange.inbox()
        return len([message for message in inbox if message.via == "followup"])

    async def _release(self, item: Release) -> None:
        repeated = False

        async def once() -> None:
            nonlocal repeated
            again, repeated = repeated, True
            [answer] = await self._s.store.release([item])
            if answer is not None and not (again and isinstance(answer, LaneLost)):  # the one before was applied
                raise answer

        self._recorder.leaving = True
        await until_answered(once, what=f"attempt {self._claimed.attempt}, release")
