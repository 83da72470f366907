"""Admission, and the closing of what a cancel ends, at the level of the engine."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kubeharness.core import codec
from kubeharness.core.dispatch import Address, DispatchMessage, SignalMeta
from kubeharness.core.errors import AgentNotReady, AlreadySettled, DispatchConflict, InvalidRequest, NotFound
from kubeharness.core.ids import CallId, ConversationId, InboxId, SubmissionId, TurnId
from kubeharness.core.lane import CallState, InboxMessage, Lane, OpenCall
from kubeharness.core.records import SettledStatus, SubmissionSettled
from kubeharness.engine.admission import Admissions, Order
from kubeharness.engine.cancelling import Cancelling
from kubeharness.engine.closing import closing_drafts
from kubeharness.engine.heads import Heads
from kubeharness.engine.ports import Cancelled, Head, Loaded, Store, SubmissionView
from kubeharness.store.memory import MemoryBackend, memory_store
from kubeharness.store.store import TransactionalStore
from kubeharness.store.wakers import LocalWaker
from support.playing import WallClock, claim_one, publish, run_all

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def order(dispatch_id: str | None = "d1", *, body: str = "hello", session: str = "default") -> Order:
    return Order(
        address=Address(namespace="default", agent="demo", instance="s1", session=session),
        message=DispatchMessage(kind="user", body=body),
        dispatch_id=dispatch_id,
    )


def door(store: Store, waker: LocalWaker) -> Admissions:
    heads = Heads(store, waker, WallClock(), "g1", "gateway", "shared")
    numbers = iter(range(1, 1_000_000))
    return Admissions(store, waker, WallClock(), heads, lambda n: next(numbers).to_bytes(n, "big"))


async def test_equal_dispatches_give_one_receipt_and_the_first_only_wakes() -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "demo")
    woken: list[int] = []
    waker.on_work(lambda: woken.append(1))
    admissions = door(store, waker)
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(admissions.dispatch(order())) for _ in range(20)]
    receipts = [answer.result() for answer in answers]

    assert len({(r.submission_id, r.conversation_id) for r in receipts}) == 1
    assert sum(not r.replayed for r in receipts) == len(woken) == 1


async def test_the_session_is_part_of_what_is_said() -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "demo")
    admissions = door(store, waker)
    first = await admissions.dispatch(order())
    with pytest.raises(DispatchConflict):
        await admissions.dispatch(order(session="two"))
    with pytest.raises(DispatchConflict):
        await admissions.dispatch(order(body="hello "))

    assert (await admissions.dispatch(order())).submission_id == first.submission_id
    assert len(await store.unsettled(first.conversation_id)) == 1


async def test_without_a_key_each_is_its_own() -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "demo")
    admissions = door(store, waker)
    receipts = [await admissions.dispatch(order(None)) for _ in range(3)]

    assert len({receipt.submission_id for receipt in receipts}) == 3


@pytest.mark.parametrize("agent", ["nobody", "Nobody", ""])
async def test_what_is_unknown_leaves_no_trace(agent: str) -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "demo")
    wrong = order()
    wrong = replace(wrong, address=replace(wrong.address, agent=agent))
    with pytest.raises((NotFound, InvalidRequest)):
        await door(store, waker).dispatch(wrong)


async def test_an_agent_that_lost_its_revision_still_answers_replays() -> None:
    store, waker = memory_store(), LocalWaker()
    signal = SignalMeta(type="slack", sender={"b": "2", "a": "1"}, tag="t")
    said = replace(
        order(), message=DispatchMessage(kind="signal", body="x\x00", signal=signal), labels={"z": "1", "a": "2"}
    )
    await publish(store, "demo")
    first = await door(store, waker).dispatch(said)
    blocked = Admissions(store, waker, WallClock(), Bare(store, waker), bytes)
    again = await blocked.dispatch(said)

    assert (again.submission_id, again.replayed) == (first.submission_id, True)
    with pytest.raises(DispatchConflict):
        await blocked.dispatch(replace(said, labels={}))
    with pytest.raises(AgentNotReady, match="RefNotFound"):
        await blocked.dispatch(order("d2"))


class Bare(Heads):
    """Heads that have nothing to run."""

    def __init__(self, store: Store, waker: LocalWaker) -> None:
        super().__init__(store, waker, WallClock(), "g2", "gateway", "shared")

    async def look(self, namespace: str, name: str) -> Head | None:
        """Found, and without a revision."""
        head = await super().look(namespace, name)
        return replace(head, active=None, note="RefNotFound: no provider") if head else None


def cancelling(store: Store, waker: LocalWaker) -> Cancelling:
    return Cancelling(store, waker, WallClock(), bytes)


async def view_of(store: Store, submission: SubmissionId) -> SubmissionView:
    view = await store.lookup(submission)
    assert view is not None
    return view


async def test_a_cancel_that_meets_a_run_tries_again_until_it_names_what_is_open() -> None:
    """Between reading and cancelling the run opens a call and gives its lane back: the first try is refused."""
    store, waker = Racing(MemoryBackend()), LocalWaker()
    await publish(store, "demo")
    receipt = await door(store, waker).dispatch(order())
    view = await view_of(store, receipt.submission_id)
    done = await cancelling(store, waker).submission(view, reason=None)
    page = await store.read(receipt.conversation_id, after=0, limit=100)

    assert done == Cancelled(submission_id=receipt.submission_id, settled=True)
    assert page is not None
    kinds = [record.kind for record in page.records]
    assert kinds[-3:] == ["assistant_tool_call", "tool_outcome", "submission_settled"]


class Racing(TransactionalStore):
    """A store where a worker comes in between the load and the cancel, once."""

    raced = False

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """Read, and let the worker act."""
        loaded = await super().load(conversation)
        if not self.raced:
            self.raced = True
            attempt = await claim_one(self, LocalWaker())
            await attempt.call("slow")
            await attempt.release(delay_ms=60_000)
        return loaded


async def test_two_cancels_are_answered_alike_and_a_finished_run_is_not_cancelled() -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "demo")
    admissions = door(store, waker)
    first = await admissions.dispatch(order("d1"))
    second = await admissions.dispatch(order("d2"))
    views = [await view_of(store, r.submission_id) for r in (first, second)]
    async with asyncio.TaskGroup() as tasks:
        cancels = [tasks.create_task(cancelling(store, waker).submission(views[0], reason="x")) for _ in range(5)]
    await run_all(store, waker)

    assert {cancel.result().settled for cancel in cancels} == {True}
    with pytest.raises(AlreadySettled):
        await cancelling(store, waker).submission(views[1], reason="x")


def test_the_closing_drafts_stand_in_one_order() -> None:
    conversation, submission = ConversationId("c"), SubmissionId("s")
    lane = Lane(id=conversation, incarnation="u", open_turn=TurnId("1.1.2"), open_calls=2, unread=1)
    calls = [
        OpenCall(
            call_id=CallId(f"1.1.1.{n}"),
            conversation=conversation,
            submission_id=submission,
            tool_name="t",
            state=state,
        )
        for n, state in enumerate(CallState)
    ]
    inbox = [InboxMessage(id=InboxId("m1"), conversation=conversation, via="steer", body="hey", digest="")]
    bits = iter(range(100))
    drafts = closing_drafts(
        lane,
        calls,
        inbox,
        settled=SubmissionSettled(status=SettledStatus.FAILED),
        submission=submission,
        session="default",
        time=NOW,
        bits=lambda: next(bits),
    )
    bodies = [codec.loads(draft.body) for draft in drafts]

    assert [draft.kind for draft in drafts] == [
        "assistant_message_aborted",
        *["tool_outcome"] * len(calls),
        "user_message",
        "submission_settled",
    ]
    assert [draft.bits for draft in drafts] == list(range(len(drafts)))
    assert isinstance(bodies[0], dict)
    assert bodies[0]["turnId"] == "1.1.2"
    assert isinstance(bodies[1], dict)
    assert bodies[1]["turnId"] == "1.1.1"
    assert isinstance(bodies[-1], dict)
    assert bodies[-1]["payload"] == {"status": "failed", "undelivered": ["m1"]}
