"""The one numbered writer: batches by size, time and kind; a lost answer, a cancelled caller, a refused write."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from kubeharness.core.errors import KubeharnessError, LaneLost, Unavailable
from kubeharness.core.ids import CallId, TurnId, submission_id
from kubeharness.core.lane import CallState, OpenCall
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    AssistantMessageStarted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    AssistantToolCall,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.engine.ports import Append, Appended, Settle
from kubeharness.engine.recorder import Recorder
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from kubeharness.tools.tasks import OwnedTasks
from support.house import KEY, House, until

TURN = TurnId("1.1.1")
SUBMISSION = submission_id(KEY, "d1")
Write = Callable[[], Awaitable[Sequence[Appended | KubeharnessError]]]


class Lossy(TransactionalStore):
    """Loses answers after a write was applied, or breaks before it, as often as told."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.after = 0
        self.before = 0
        self.hold: asyncio.Event | None = None
        self.numbers: list[int] = []

    async def append(self, items: Sequence[Append]) -> Sequence[Appended | KubeharnessError]:
        self.numbers += [item.number for item in items]
        return await self._through(lambda: TransactionalStore.append(self, items))

    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]:
        return await self._through(lambda: TransactionalStore.settle(self, items))

    async def _through(self, write: Write) -> Sequence[Appended | KubeharnessError]:
        if self.before:
            self.before -= 1
            raise Unavailable("no connection")
        answer = await write()
        if self.after:
            self.after -= 1
            raise Unavailable("the answer was lost")
        if self.hold is not None:
            await self.hold.wait()
        return answer


@asynccontextmanager
async def recording() -> AsyncIterator[tuple[House, Recorder, Lossy]]:
    """A recorder of a lane that no worker runs."""
    bits = itertools.count(1)
    async with House(workers=0, wrapped=Lossy).open() as house:
        await house.dispatch("go")
        claimed = (await house.claim_by_hand()).claimed
        store = house.store
        assert isinstance(store, Lossy)
        recorder = Recorder(
            claimed, store=store, waker=house.waker, clock=house.clock, lease_ms=60_000, bits=lambda: next(bits)
        )
        await recorder.write([recorder.draft(UserMessage(body="go"))])
        yield house, recorder, store


def begin(recorder: Recorder) -> None:
    recorder.stage(recorder.draft(AssistantMessageStarted(model="m"), TURN), open_turn=TURN)


async def abort(recorder: Recorder) -> None:
    aborted = AssistantMessageAborted(turn_id=TURN, reason=AbortReason.CANCELLED)
    await recorder.write([recorder.draft(aborted, TURN)], open_turn=None)


async def test_fragments_wait_for_size_a_change_of_kind_or_another_record() -> None:
    async with recording() as (house, recorder, store):
        begin(recorder)
        await recorder.fragment(AssistantThinkingDelta, "hm", TURN)
        await recorder.fragment(AssistantThinkingDelta, " hm", TURN)
        waiting = await house.kinds()
        await recorder.fragment(AssistantTextDelta, "a" * 1023, TURN)
        small = await house.payloads(AssistantTextDelta)
        await recorder.fragment(AssistantTextDelta, "é", TURN)
        full = await house.payloads(AssistantTextDelta)
        await recorder.fragment(AssistantTextDelta, "rest", TURN)
        await abort(recorder)

        assert waiting == ["user_message"]
        assert [d.text for d in await house.payloads(AssistantThinkingDelta)] == ["hm hm"]
        assert small == []
        assert [delta.text for delta in full] == ["a" * 1023 + "é"]
        assert [d.text for d in await house.payloads(AssistantTextDelta)] == ["a" * 1023 + "é", "rest"]
        assert (await house.lane()).open_turn is None
        assert store.numbers == [1, 2, 3, 4]


async def test_fragments_are_durable_200_milliseconds_after_the_first() -> None:
    async with recording() as (house, recorder, _), OwnedTasks() as tasks:
        tasks.start(recorder.flush_in_time())
        begin(recorder)
        began = asyncio.get_running_loop().time()
        await recorder.fragment(AssistantTextDelta, "one", TURN)
        await asyncio.sleep(0.1)
        await recorder.fragment(AssistantTextDelta, " two", TURN)

        async def written() -> bool:
            return bool(await house.payloads(AssistantTextDelta))

        await until(written)
        took = asyncio.get_running_loop().time() - began

        assert 0.19 < took < 2
        assert [delta.text for delta in await house.payloads(AssistantTextDelta)] == ["one two"]
        assert (await house.lane()).open_turn == TURN


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (1, 1)])
async def test_a_write_whose_answer_was_lost_is_written_once(before: int, after: int) -> None:
    async with recording() as (house, recorder, store):
        store.before, store.after = before, after
        await recorder.write([recorder.draft(UserMessage(body="said", via="steer"))])
        await recorder.write([recorder.draft(UserMessage(body="more", via="steer"))])

        assert [m.body for m in await house.payloads(UserMessage)] == ["go", "said", "more"]
        assert store.numbers == [1, 2, 2, 2, 3]


async def test_a_settlement_whose_answer_was_lost_is_written_once() -> None:
    async with recording() as (house, recorder, store):
        store.after = 1
        settled = SubmissionSettled(status=SettledStatus.SUCCEEDED)
        await recorder.settle([recorder.draft(settled)], closes=(), drains=(), success=True)

        assert len(await house.payloads(SubmissionSettled)) == 1


async def test_a_write_that_was_cancelled_in_flight_is_known_to_the_next() -> None:
    call = CallId("1.1.1.0")
    async with recording() as (house, recorder, store):
        store.hold = asyncio.Event()
        opened = OpenCall(
            call_id=call,
            conversation=house.conversation,
            submission_id=SUBMISSION,
            tool_name="look",
            state=CallState.STARTED,
        )
        asked = recorder.draft(AssistantToolCall(call_id=call, tool_name="look"), TURN)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await recorder.write([asked], opened=[opened])
        store.hold = None
        unaware = dict(recorder.calls)
        outcome = ToolOutcome(call_id=call, tool_name="look", content="seen")
        await recorder.write([recorder.draft(outcome, TURN)], closed=[call])

        assert unaware == {}
        assert recorder.calls == {}
        assert await house.kinds() == ["user_message", "assistant_tool_call", "tool_outcome"]
        assert (await house.lane()).open_calls == 0


async def test_a_write_that_is_refused_is_forgotten_and_the_next_takes_its_number() -> None:
    async with recording() as (house, recorder, _):
        outcome = ToolOutcome(call_id=CallId("1.1.1.7"), tool_name="look", content="seen")
        with pytest.raises(KubeharnessError):
            await recorder.write([recorder.draft(outcome)], closed=[CallId("1.1.1.7")])
        await recorder.write([recorder.draft(UserMessage(body="more", via="steer"))])

        assert [m.body for m in await house.payloads(UserMessage)] == ["go", "more"]


async def test_once_another_has_the_lane_nothing_is_written() -> None:
    async with recording() as (house, recorder, _):
        house.store_clock.ahead_ms = 120_000
        await house.store.reap()
        await house.claim_by_hand()
        before = await house.records()
        with pytest.raises(LaneLost):
            await recorder.write([recorder.draft(UserMessage(body="late", via="steer"))])

        assert await house.records() == before


async def test_what_the_lane_says_comes_with_each_answer() -> None:
    async with recording() as (house, recorder, _):
        await house.steer("left")
        await house.cancel(SUBMISSION, "no more")
        unaware = (recorder.unread, recorder.cancel)
        await recorder.write([recorder.draft(UserMessage(body="x", via="steer"))])

        assert unaware == (0, None)
        assert (recorder.unread, recorder.cancel) == (1, "no more")
