"""Ends a claimed submission: closes what is open and settles, in one transaction (I7, I8, I12)."""

from collections.abc import Sequence

from kubeharness.core.errors import SettlementRefused
from kubeharness.core.ids import CallId
from kubeharness.core.lane import Claimed, InboxMessage, OpenCall
from kubeharness.core.messages import Usage
from kubeharness.core.records import (
    AbortReason,
    Draft,
    OutcomeCause,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
)
from kubeharness.core.text import clean_text, cut_text
from kubeharness.engine.closing import closing_drafts
from kubeharness.engine.ports import Clock, Store, UsageRow
from kubeharness.engine.recorder import Recorder, until_answered

ERROR_BYTES = 4096
REFUSALS = 20


class Settlement:
    """Settles one attempt's submission. Raises LaneLost if another took the lane first."""

    def __init__(self, *, claimed: Claimed, store: Store, recorder: Recorder, clock: Clock) -> None:
        self._claimed = claimed
        self._store = store
        self._recorder = recorder
        self._clock = clock

    async def succeed(self, final: Sequence[Draft], *, usage: UsageRow | None) -> None:
        """Settle with the answer just given, in the same write. Raises SettlementRefused for what came first."""
        settled = self._payload(SettledStatus.SUCCEEDED, usage=usage.usage if usage else None)
        await self._recorder.settle(
            [*final, self._recorder.draft(settled)], closes=(), drains=(), success=True, usage=usage
        )

    async def fail(
        self,
        code: SettledCode,
        error: str,
        *,
        calls: Sequence[OpenCall],
        final: Sequence[Draft] = (),
        usage: UsageRow | None = None,
        cause: OutcomeCause = OutcomeCause.CANCELLED,
        aborted: AbortReason = AbortReason.CANCELLED,
        ran: bool = True,
    ) -> None:
        """Settle with a code, closing all that is open; reads again when something committed first."""
        settled = self._payload(
            SettledStatus.FAILED, code=code, error=error, usage=usage.usage if usage else None, ran=ran
        )
        inbox: Sequence[InboxMessage] = ()
        if self._recorder.unread:
            calls, inbox = await self._read_again()
        if not final:
            await self._recorder.write()  # what was streamed precedes its aborted record
        for _ in range(REFUSALS):
            drafts = self._closing(calls, inbox, settled, cause, aborted, open_turn=not final)
            closes = [CallId(call.call_id) for call in calls]
            drains = [message.id for message in inbox]
            try:
                await self._recorder.settle([*final, *drafts], closes=closes, drains=drains, success=False, usage=usage)
                return
            except SettlementRefused:
                calls, inbox = await self._read_again()
        raise SettlementRefused("the lane never came to rest")

    def _closing(
        self,
        calls: Sequence[OpenCall],
        inbox: Sequence[InboxMessage],
        settled: SubmissionSettled,
        cause: OutcomeCause,
        aborted: AbortReason,
        *,
        open_turn: bool,
    ) -> list[Draft]:
        return closing_drafts(
            self._recorder.lane(open_turn=open_turn),
            calls,
            inbox,
            settled=settled,
            submission=self._claimed.submission_id,
            session=self._claimed.key.session,
            cause=cause,
            aborted=aborted,
            attempt=self._claimed.attempt,
            time=self._clock.now(),
            bits=self._recorder.bits,
        )

    async def _read_again(self) -> tuple[Sequence[OpenCall], Sequence[InboxMessage]]:
        lane = self._claimed.lane.id
        loaded = await until_answered(
            lambda: self._store.load(lane), what=f"attempt {self._claimed.attempt}, what is open"
        )
        return (loaded.calls, loaded.inbox) if loaded is not None else ((), ())

    def _payload(
        self,
        status: SettledStatus,
        *,
        code: SettledCode | None = None,
        error: str | None = None,
        usage: Usage | None,
        ran: bool = True,
    ) -> SubmissionSettled:
        total = self._recorder.summed(usage)
        lane = self._claimed.lane
        return SubmissionSettled(
            status=status,
            error=cut_text(clean_text(error), ERROR_BYTES)[0] if error else None,
            error_code=code,
            usage=total if total != Usage() else None,
            attempts=lane.claim if ran else lane.claim - 1,
            failures=max(0, lane.counters.failures - 1),
        )
