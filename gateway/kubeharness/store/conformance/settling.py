"""I7, I8, I9, I12: one settlement, one outcome a call, no message without an end; and cancelling."""

from dataclasses import replace

from kubeharness.core.errors import (
    AlreadySettled,
    Conflict,
    KubeharnessError,
    LaneLost,
    NoRunInFlight,
    NotFound,
    SettlementRefused,
)
from kubeharness.core.ids import SubmissionId, TurnId
from kubeharness.core.lane import CallState, LaneState, SubmissionState
from kubeharness.core.records import Kind
from kubeharness.engine.ports import Store
from kubeharness.store.conformance.answers import LEASE_MS, good, refused, together
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


@case("I7")
async def a_submission_settles_once(w: World) -> None:
    """A second settlement, by the same attempt or a later one, is refused."""
    run = await w.started()
    await run.settle()

    refused((await w.store.settle([run.ending(success=False)]))[0], LaneLost)
    assert (await w.kinds()).count(Kind.SUBMISSION_SETTLED) == 1
    assert (await w.lane()).state is LaneState.IDLE


@case("I7")
async def whoever_sees_it_settled_can_read_the_record(w: World) -> None:
    """State, record, promotion in one."""
    run = await w.started()
    await w.admit("d2")
    appended = await run.settle()

    view = await w.view(run.submission)
    assert view.state is SubmissionState.SETTLED
    assert view.attempts == 1
    record = (await w.log())[-1]
    assert view.settled == record
    assert (record.seq, record.milliseconds) == (appended.base + 1, appended.milliseconds)
    lane = await w.lane()
    assert (lane.state, lane.head, lane.attempt) == (LaneState.READY, 2, None)


@case("I7")
async def only_the_head_is_settled(w: World) -> None:
    """A settlement that names another submission is refused whole."""
    receipts = await w.admit("d1", "d2")
    run = await w.claim()
    await run.begin()
    before = await w.log()

    refused(await run.try_settle(run.ending(submission=receipts[1].submission_id)), SettlementRefused)
    wrong = w.cancelling(receipts[1].submission_id)
    refused(await run.try_settle(replace(run.ending(), drafts=wrong.drafts)), SettlementRefused)
    assert await w.log() == before
    await run.settle()


@case("I7")
async def a_settlement_ends_with_its_record(w: World) -> None:
    """The last draft, and it alone, is the submission_settled."""
    run = await w.started()
    item = run.ending(run.note())
    refused(await run.try_settle(replace(item, drafts=item.drafts[:1])), SettlementRefused)
    item = run.ending(run.note())
    refused(await run.try_settle(replace(item, drafts=[*item.drafts, run.note()])), SettlementRefused)
    item = run.ending()
    refused(await run.try_settle(replace(item, drafts=[*item.drafts, *item.drafts])), SettlementRefused)
    item = run.ending(run.begun(TurnId("1.1.1")))
    refused(await run.try_settle(item), SettlementRefused)
    await run.settle()

    assert len(await w.log()) == 3


@case("I7")
async def an_unread_message_refuses_a_success(w: World) -> None:
    """The owner reads again, and what committed first wins."""
    run = await w.started()
    await w.steer("m1")
    refused(await run.try_settle(run.ending()), SettlementRefused)
    refused(await run.try_settle(run.ending(drains=["m1"])), SettlementRefused)
    refused(await run.try_settle(run.ending(success=False)), SettlementRefused)
    await run.append(run.write(run.steered(), consumed=["m1"]))

    await run.settle()


@case("I7")
async def a_failing_settlement_drains_by_name(w: World) -> None:
    """Each unread message, not just as many."""
    run = await w.started()
    await w.steer("m1")
    await w.steer("m2")
    refused(await run.try_settle(run.ending(success=False, drains=["m1"])), SettlementRefused)
    refused(await run.try_settle(run.ending(success=False, drains=["m1", "m3"])), SettlementRefused)
    await run.settle(
        run.ending(run.steered(undelivered=True), run.steered(undelivered=True), success=False, drains=["m2", "m1"])
    )

    loaded = await w.load()
    assert list(loaded.inbox) == []
    assert loaded.lane.unread == 0


@case("I7")
async def a_cancel_refuses_a_success(w: World) -> None:
    """The flag came first: the owner settles it cancelled."""
    run = await w.started()
    assert not (await w.cancel(run.submission)).settled
    refused(await run.try_settle(run.ending()), SettlementRefused)
    await run.settle(run.ending(success=False))

    assert (await w.view(run.submission)).state is SubmissionState.SETTLED


@case("I7")
async def a_message_that_races_the_settlement_is_never_lost(w: World) -> None:
    """Either it is refused as too late, or the settlement is, and it is still there."""
    other = await w.subject.another()
    for n in range(15):
        run = await w.started(f"d{n}")
        put, ended = await together(_put(other, w, f"m{n}"), _end(run))
        unread = [message.id for message in (await w.load()).inbox]
        if ended is None:
            refused(put, NoRunInFlight)
            assert unread == []
        else:
            refused(ended, SettlementRefused)
            assert put is None
            assert unread == [f"m{n}"], "a message was accepted and is gone"
            await run.settle(run.ending(run.steered(undelivered=True), success=False, drains=[f"m{n}"]))


async def _put(store: Store, w: World, id: str) -> KubeharnessError | None:
    return (await store.inbox_put([w.message(id)]))[0]


async def _end(run: Run) -> KubeharnessError | None:
    result = await run.try_settle(run.ending())
    return result if isinstance(result, KubeharnessError) else None


@case("I8")
async def a_settlement_names_every_open_call(w: World) -> None:
    """All of them, and the right ones; then none is open."""
    run = await w.started()
    calls = [run.call("1.1.1.0"), run.call("1.1.1.1")]
    await run.append(run.write(*run.called(*calls), opened=calls))
    before = await w.log()
    refused(await run.try_settle(run.ending(success=False)), SettlementRefused)
    refused(await run.try_settle(run.ending(success=False, closes=["1.1.1.0"])), SettlementRefused)
    refused(await run.try_settle(run.ending(success=False, closes=["1.1.1.0", "1.1.1.7"])), SettlementRefused)
    refused(await run.try_settle(run.ending(success=True, closes=["1.1.1.0", "1.1.1.1"])), SettlementRefused)
    assert await w.log() == before
    outcomes = [run.outcome("1.1.1.0"), run.outcome("1.1.1.1")]
    await run.settle(run.ending(*outcomes, success=False, closes=["1.1.1.1", "1.1.1.0"]))

    loaded = await w.load()
    assert list(loaded.calls) == []
    assert loaded.lane.open_calls == 0


@case("I8")
async def only_one_write_closes_a_call(w: World) -> None:
    """A loser writes nothing at all."""
    run = await w.started()
    calls = [run.call("1.1.1.0"), run.call("1.1.1.1")]
    await run.append(run.write(*run.called(*calls), opened=calls))
    await run.append(run.write(run.outcome("1.1.1.0"), closed=["1.1.1.0"]))
    before = await w.log()
    refused(await run.try_append(run.write(run.outcome("1.1.1.0"), closed=["1.1.1.0"])), Conflict)
    refused(
        await run.try_append(run.write(run.outcome("1.1.1.1"), run.outcome("1.1.1.0"), closed=["1.1.1.1", "1.1.1.0"])),
        Conflict,
    )
    refused(await run.try_append(run.write(run.outcome("1.1.1.9"), closed=["1.1.1.9"])), Conflict)

    assert await w.log() == before
    loaded = await w.load()
    assert [call.call_id for call in loaded.calls] == ["1.1.1.1"]
    assert loaded.lane.open_calls == 1
    await run.settle(run.ending(run.outcome("1.1.1.1"), success=False, closes=["1.1.1.1"]))


@case("I8")
async def a_call_is_opened_once(w: World) -> None:
    """One that is open already refuses the write."""
    run = await w.started()
    call = run.call("1.1.1.0")
    await run.append(run.write(*run.called(call), opened=[call]))
    refused(await run.try_append(run.write(*run.called(call), opened=[call])), Conflict)

    assert (await w.lane()).open_calls == 1


@case("I8")
async def a_call_opened_and_closed_at_once_is_not_open(w: World) -> None:
    """An unknown or blocked call gets its outcome with it."""
    run = await w.started()
    call = run.call("1.1.1.0")
    await run.append(run.write(*run.called(call), run.outcome("1.1.1.0"), opened=[call], closed=["1.1.1.0"]))

    assert (await w.lane()).open_calls == 0
    await run.settle()


@case("I9")
async def the_ledger_outlives_the_attempt(w: World) -> None:
    """What was open when a worker died is open at the next claim, as it stood."""
    run = await w.started()
    calls = [
        run.call("1.1.1.0", state=CallState.RECORDED, idempotent=True),
        run.call("1.1.1.1"),
        run.call("1.1.1.2", state=CallState.RECORDED),
    ]
    await run.append(run.write(*run.called(*calls), opened=calls))
    await run.append(run.write(started=["1.1.1.2"]))
    await w.lost(run)
    await w.claim()

    loaded = await w.load()
    assert [(call.call_id, call.state, call.idempotent) for call in loaded.calls] == [
        ("1.1.1.0", CallState.RECORDED, True),
        ("1.1.1.1", CallState.STARTED, False),
        ("1.1.1.2", CallState.STARTED, False),
    ]
    assert {call.submission_id for call in loaded.calls} == {run.submission}
    assert loaded.lane.open_calls == 3


@case("I9")
async def a_call_starts_once(w: World) -> None:
    """Only a recorded one may be set started."""
    run = await w.started()
    call = run.call("1.1.1.0", state=CallState.RECORDED)
    await run.append(run.write(*run.called(call), opened=[call]))
    await run.append(run.write(started=["1.1.1.0"]))

    refused(await run.try_append(run.write(started=["1.1.1.0"])), Conflict)
    refused(await run.try_append(run.write(started=["1.1.1.7"])), Conflict)


@case("I12")
async def no_message_is_left_without_an_end(w: World) -> None:
    """An open turn outlives its attempt, and a settlement ends it or is refused."""
    turn = TurnId("1.1.1")
    run = await w.started()
    await run.append(run.write(run.begun(turn), open_turn=turn))
    assert (await w.lane()).open_turn == turn
    await w.lost(run)
    retry = await w.claim()
    assert retry.claimed.lane.open_turn == turn
    refused(await retry.try_settle(retry.ending(success=False)), SettlementRefused)
    await retry.settle(retry.ending(retry.aborted(turn), success=False))

    assert (await w.lane()).open_turn is None


@case("I7")
async def a_queued_submission_is_cancelled_at_once(w: World) -> None:
    """It has its record, and no attempt."""
    receipts = await w.admit("d1", "d2")
    done = await w.cancel(receipts[1].submission_id)

    assert done.settled
    view = await w.view(receipts[1].submission_id)
    assert (view.state, view.attempts) == (SubmissionState.SETTLED, 0)
    assert view.settled == (await w.log())[-1]
    (again,) = await w.store.cancel([w.cancelling(receipts[1].submission_id)])
    refused(again, AlreadySettled)
    assert [found.position for found in await w.store.unsettled(receipts[0].conversation_id)] == [1]


@case("I7")
async def an_unclaimed_head_is_cancelled_at_once(w: World) -> None:
    """The next one is promoted; a cancel that names nobody means the head."""
    receipts = await w.admit("d1", "d2")
    (done,) = await w.store.cancel([w.cancelling(None, head=receipts[0].submission_id)])

    assert good(done).submission_id == receipts[0].submission_id
    assert good(done).settled
    assert (await w.claim()).submission == receipts[1].submission_id


@case("I7")
async def a_cancel_settles_whom_its_record_names(w: World) -> None:
    """The head has moved since the caller looked: refused, not settled with another's record."""
    receipts = await w.admit("d1", "d2")
    late = w.cancelling(None, head=receipts[0].submission_id)
    await w.cancel(receipts[0].submission_id)
    before = await w.log()

    refused((await w.store.cancel([late]))[0], SettlementRefused)
    assert await w.log() == before
    assert (await w.claim()).submission == receipts[1].submission_id


@case("I7")
async def a_running_head_is_told(w: World) -> None:
    """By its next write and by its renewal; nothing is written meanwhile."""
    run = await w.started()
    before = await w.log()
    assert not (await w.cancel(None)).settled
    assert await w.log() == before
    (renewal,) = await w.store.renew(owner="worker", attempts=[run.attempt], lease_ms=LEASE_MS)
    assert renewal.cancel == "cancelled"
    assert (await run.append(run.write(run.note()))).cancel == "cancelled"
    assert not (await w.cancel(run.submission)).settled
    await w.lost(run)
    retry = await w.claim()

    assert retry.claimed.lane.cancel == "cancelled", "the flag did not outlive its attempt"
    await retry.settle(retry.ending(success=False))
    await w.admit("d2")
    assert (await w.claim()).claimed.lane.cancel is None


@case("I8")
async def cancelling_a_delayed_head_names_what_is_open(w: World) -> None:
    """A head that has run may have calls, messages, an open turn."""
    turn = TurnId("1.1.1")
    run = await w.started()
    call = run.call("1.1.1.0")
    await run.append(run.write(*run.called(call), run.begun(turn), opened=[call], open_turn=turn))
    await run.release("failure", delay_ms=20_000)
    for item in (
        w.cancelling(run.submission),
        w.cancelling(run.submission, run.outcome("1.1.1.0"), closes=["1.1.1.0"]),
        w.cancelling(run.submission, run.outcome("1.1.1.0"), run.aborted(turn), closes=["1.1.1.5"]),
    ):
        refused((await w.store.cancel([item]))[0], SettlementRefused)
    item = w.cancelling(run.submission, run.aborted(turn), run.outcome("1.1.1.0"), closes=["1.1.1.0"])
    (done,) = await w.store.cancel([item])

    assert good(done).settled
    loaded = await w.load()
    assert list(loaded.calls) == []
    assert (loaded.lane.state, loaded.lane.open_calls, loaded.lane.open_turn) == (LaneState.IDLE, 0, None)
    assert (await w.view(run.submission)).attempts == 1


@case("I7")
async def what_is_over_or_unknown_cannot_be_cancelled(w: World) -> None:
    """Settled, never admitted, of another session; or nothing is there."""
    run = await w.started()
    (other,) = await w.admit("x", key=w.key("other"))
    refused((await w.store.cancel([w.cancelling(SubmissionId("sub_unknown"))]))[0], NotFound)
    refused((await w.store.cancel([w.cancelling(other.submission_id)]))[0], NotFound)
    refused((await w.store.cancel([w.cancelling(other.submission_id, key=w.key("nowhere"))]))[0], NotFound)
    await run.settle()

    refused((await w.store.cancel([w.cancelling(run.submission)]))[0], AlreadySettled)
    refused((await w.store.cancel([w.cancelling(None)]))[0], NoRunInFlight)


@case("I7")
async def a_cancel_that_races_a_settlement_leaves_one(w: World) -> None:
    """Either the success came first, or it is refused."""
    other = await w.subject.another()
    for n in range(15):
        run = await w.started(f"d{n}")
        cancelled, ended = await together(_cancel(other, w, run.submission), _end(run))
        if ended is None:
            refused(cancelled, AlreadySettled)
        else:
            assert cancelled is None
            await run.settle(run.ending(success=False))
    assert (await w.kinds()).count(Kind.SUBMISSION_SETTLED) == 15


async def _cancel(store: Store, w: World, submission: SubmissionId) -> KubeharnessError | None:
    result = (await store.cancel([w.cancelling(submission)]))[0]
    return result if isinstance(result, KubeharnessError) else None


CASES = (
    a_submission_settles_once,
    whoever_sees_it_settled_can_read_the_record,
    only_the_head_is_settled,
    a_settlement_ends_with_its_record,
    an_unread_message_refuses_a_success,
    a_failing_settlement_drains_by_name,
    a_cancel_refuses_a_success,
    a_message_that_races_the_settlement_is_never_lost,
    a_queued_submission_is_cancelled_at_once,
    an_unclaimed_head_is_cancelled_at_once,
    a_cancel_settles_whom_its_record_names,
    a_running_head_is_told,
    what_is_over_or_unknown_cannot_be_cancelled,
    a_cancel_that_races_a_settlement_leaves_one,
    a_settlement_names_every_open_call,
    only_one_write_closes_a_call,
    a_call_is_opened_once,
    a_call_opened_and_closed_at_once_is_not_open,
    cancelling_a_delayed_head_names_what_is_open,
    the_ledger_outlives_the_attempt,
    a_call_starts_once,
    no_message_is_left_without_an_end,
)
