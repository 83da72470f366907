"""Loop events to records: the one numbered writer of an attempt (I5).

Deltas are batched: flushed at 1,024 bytes, 200 ms after the first fragment, on a change of kind, and before any
other record. Writes are serialised; one whose answer was lost is repeated under its number until the store says
what became of it, or the lane is lost. What the lane, the ledger and the inbox then say is kept here, so that it is
true also of a write that a cancelled caller left in the air.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import TypeVar

from kubeharness.core.codec import draft
from kubeharness.core.errors import KubeharnessError, SettlementRefused, Unavailable
from kubeharness.core.ids import AttemptId, CallId, InboxId, TurnId
from kubeharness.core.lane import CallState, Claimed, Lane, OpenCall
from kubeharness.core.messages import Usage
from kubeharness.core.records import AssistantTextDelta, AssistantThinkingDelta, Draft, Payload
from kubeharness.core.text import clean_text
from kubeharness.core.transitions import NO_CHANGE, CounterChange
from kubeharness.engine.crashpoints import UNARMED, CrashPoint, CrashPoints
from kubeharness.engine.patience import Trouble
from kubeharness.engine.ports import Append, Appended, Clock, Settle, Store, UsageRow, Waker

log = logging.getLogger(__name__)

FLUSH_BYTES = 1024
FLUSH_SECONDS = 0.2

DeltaClass = type[AssistantTextDelta] | type[AssistantThinkingDelta]

T = TypeVar("T")


async def until_answered(once: Callable[[], Awaitable[T]], *, what: str) -> T:
    """Ask again while the store is unavailable: an outage is nobody's failure (I10). Ended by who cancels it."""
    pause = 0.05
    trouble = Trouble(log, what)
    while True:
        try:
            return await once()
        except Unavailable as error:
            trouble.met(error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2.0, pause * 2)


class Recorder:
    """What an attempt writes, in order. `cancel`, `unread` and `calls` are what the lane said last."""

    def __init__(
        self,
        claimed: Claimed,
        *,
        store: Store,
        waker: Waker,
        clock: Clock,
        lease_ms: int,
        crash: CrashPoints = UNARMED,
        bits: Callable[[], int] = lambda: random.getrandbits(16),
    ) -> None:
        self._claimed = claimed
        self._store = store
        self._waker = waker
        self._clock = clock
        self._lease_ms = lease_ms
        self._crash = crash
        self.bits = bits
        self._number = 0
        self._lock = asyncio.Lock()
        self._delta: DeltaClass = AssistantTextDelta
        self._delta_turn: TurnId | None = None
        self._fragments: list[str] = []
        self._fragment_bytes = 0
        self._staged: list[Draft] = []
        self._staged_turn: TurnId | None = None
        self._waiting = asyncio.Event()
        self._interrupted: Append | None = None
        self.open_turn: TurnId | None = claimed.lane.open_turn
        self.cancel: str | None = claimed.lane.cancel
        self.unread = claimed.lane.unread
        self.usage = claimed.lane.counters.usage
        self.steps = claimed.lane.counters.steps
        self.calls: dict[CallId, OpenCall] = {}
        """The ledger of the submission; filled by whoever loads, kept by the writes."""
        self.leaving = False
        """A settlement or a release is on its way: a renewal that finds the lane gone may just have met it."""

    @property
    def attempt(self) -> AttemptId:
        """Whose writes these are."""
        return self._claimed.attempt

    def draft(self, payload: Payload, turn: TurnId | None = None) -> Draft:
        """A record of this attempt, serialised once."""
        return draft(
            payload,
            conversation=self._claimed.lane.id,
            session=self._claimed.key.session,
            submission=self._claimed.submission_id,
            turn=turn,
            attempt=self._claimed.attempt,
            time=self._clock.now(),
            bits=self.bits(),
        )

    # deltas

    def stage(self, draft: Draft, *, open_turn: TurnId) -> None:
        """Put a record before the fragments to come: it shares their commit, within 200 ms."""
        self._staged.append(draft)
        self._staged_turn = open_turn
        self._waiting.set()

    async def fragment(self, of: DeltaClass, text: str, turn: TurnId) -> None:
        """Take a streamed fragment; it is durable within 200 ms."""
        if self._fragments and (self._delta is not of or self._delta_turn != turn):
            await self.write()
        self._delta, self._delta_turn = of, turn
        self._fragments.append(text)
        self._fragment_bytes += len(text.encode(errors="replace"))
        self._waiting.set()
        if self._fragment_bytes >= FLUSH_BYTES:
            await self.write()
            self._crash.reach(CrashPoint.MID_STREAM)

    async def flush_in_time(self) -> None:
        """Flush what is 200 ms old, for ever; a task of the attempt."""
        while True:
            await self._waiting.wait()
            await asyncio.sleep(FLUSH_SECONDS)
            streamed = bool(self._fragments)
            await self.write()
            if streamed:
                self._crash.reach(CrashPoint.MID_STREAM)

    def _buffered(self) -> list[Draft]:
        if not self._fragments:
            return list(self._staged)
        text = clean_text("".join(self._fragments))
        return [*self._staged, self.draft(self._delta(text=text), self._delta_turn)]

    def _flushed(self) -> None:
        self._staged, self._staged_turn = [], None
        self._fragments, self._fragment_bytes = [], 0
        self._waiting.clear()

    # numbered writes

    async def write(
        self,
        drafts: Sequence[Draft] = (),
        *,
        opened: Sequence[OpenCall] = (),
        closed: Sequence[CallId] = (),
        started: Sequence[CallId] = (),
        consumed: Sequence[InboxId] = (),
        counters: CounterChange = NO_CHANGE,
        open_turn: TurnId | None | EllipsisType = ...,
        usage: UsageRow | None = None,
    ) -> None:
        """Append after what was streamed before. Raises LaneLost once another owns the lane."""
        async with self._lock:
            await self._finish_interrupted()
            turn = (self._staged_turn or self.open_turn) if isinstance(open_turn, EllipsisType) else open_turn
            item = Append(
                conversation=self._claimed.lane.id,
                attempt=self._claimed.attempt,
                number=self._number + 1,
                lease_ms=self._lease_ms,
                drafts=[*self._buffered(), *drafts],
                opened=opened,
                closed=closed,
                started=started,
                consumed=consumed,
                counters=counters,
                open_turn=turn,
                usage=usage,
            )
            if not (item.drafts or started):
                return
            self._flushed()
            self._interrupted = item
            await self._finish_interrupted()
        self._waker.touched([self._claimed.lane.id], work=False)

    async def _finish_interrupted(self) -> None:
        """Bring the write at hand, or one that a cancelled caller left in the air, to its known end."""
        item = self._interrupted
        if item is None:
            return
        try:
            answer = await self._until_known(lambda: self._append_once(item))
        except KubeharnessError:  # lost or refused: it is known not to be in the log
            self._interrupted = None
            raise
        self._interrupted = None
        self._number = item.number
        self._keep_ledger(item)
        self.open_turn = item.open_turn
        self.cancel = answer.cancel
        self.unread = answer.unread
        self.steps += item.counters.steps
        if item.counters.usage is not None:
            self.usage = self.usage + item.counters.usage

    def _keep_ledger(self, item: Append) -> None:
        self.calls |= {call.call_id: call for call in item.opened}
        begun = [self.calls[started] for started in item.started if started in self.calls]
        self.calls |= {call.call_id: replace(call, state=CallState.STARTED) for call in begun}
        for closed in item.closed:
            self.calls.pop(closed, None)

    async def _append_once(self, item: Append) -> Appended:
        [answer] = await self._store.append([item])
        if self._crash.armed is CrashPoint.UNKNOWN_COMMIT:
            self._crash.armed = None
            raise Unavailable("the answer of a commit was lost")
        if isinstance(answer, KubeharnessError):
            raise answer
        return answer

    async def settle(
        self,
        drafts: Sequence[Draft],
        *,
        closes: Sequence[CallId],
        drains: Sequence[InboxId],
        success: bool,
        usage: UsageRow | None = None,
    ) -> None:
        """End the submission in one write. Raises LaneLost, or SettlementRefused for what committed first (I7)."""
        async with self._lock:
            await self._finish_interrupted()
            item = Settle(
                conversation=self._claimed.lane.id,
                attempt=self._claimed.attempt,
                number=self._number + 1,
                submission_id=self._claimed.submission_id,
                drafts=[*self._buffered(), *drafts],
                closes=closes,
                drains=drains,
                success=success,
                usage=usage,
            )
            self.leaving = True
            try:
                await self._until_known(lambda: self._settle_once(item))
            except SettlementRefused:
                self.leaving = False
                raise
            self._flushed()
            self._number += 1
            self.open_turn = None
            self.calls.clear()
        self._waker.touched([self._claimed.lane.id], work=True)

    async def _settle_once(self, item: Settle) -> Appended:
        [answer] = await self._store.settle([item])
        if isinstance(answer, KubeharnessError):
            raise answer
        return answer

    async def _until_known(self, once: Callable[[], Awaitable[Appended]]) -> Appended:
        """Repeat a numbered write until its fate is known; the number makes the repeat harmless (I5)."""
        return await until_answered(once, what=f"attempt {self._claimed.attempt}, write {self._number + 1}")

    def lane(self, *, open_turn: bool) -> Lane:
        """The lane as this attempt knows it; `open_turn` False where the message at hand is ended by the same write."""
        return replace(self._claimed.lane, open_turn=self.open_turn if open_turn else None)

    def summed(self, usage: Usage | None) -> Usage:
        """The submission's usage so far and one more call's."""
        return self.usage + usage if usage is not None else self.usage
