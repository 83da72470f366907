"""I1, I2: durable before the answer, and idempotent."""

from kubeharness.core.errors import AgentClosed, DispatchConflict, KubeharnessError, QueueFull
from kubeharness.core.ids import conversation_id, submission_id
from kubeharness.core.lane import LaneState, SubmissionState
from kubeharness.core.records import Kind
from kubeharness.engine.ports import Admission, Receipt, Store
from kubeharness.store.conformance.answers import good, refused, together
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


@case("I1")
async def an_admitted_dispatch_is_there_whole(w: World) -> None:
    """Conversation, first record, submission and ready lane, after the receipt."""
    item = w.admission("d1")
    (receipt,) = await w.store.admit([item])

    assert receipt == Receipt(submission_id=item.submission_id, conversation_id=item.conversation_id, replayed=False)
    view = await w.view(item.submission_id)
    assert (view.state, view.position, view.attempts) == (SubmissionState.QUEUED, 1, 0)
    assert view.key == item.key
    assert view.message == item.message
    assert dict(view.labels) == {"team": "red"}
    records = await w.log()
    assert [record.body for record in records] == [item.created.body]
    assert records[0].bits == item.created.bits
    claimed = (await w.claim()).claimed
    assert claimed.message == item.message
    assert claimed.key == item.key
    assert claimed.submission_id == item.submission_id
    assert claimed.labels == {"team": "red"}
    assert claimed.traceparent == item.traceparent


@case("I1")
async def a_second_handle_sees_it_at_once(w: World) -> None:
    """What was answered is what another process reads."""
    other = await w.subject.another()
    (receipt,) = await w.admit("d1")

    assert await other.lookup(receipt.submission_id) is not None
    page = await other.read(receipt.conversation_id, after=0, limit=10)
    assert page is not None
    assert page.last_seq == 1
    assert not page.idle


@case("I1")
async def a_refused_dispatch_leaves_no_trace(w: World) -> None:
    """Closed: no conversation, no key."""
    (result,) = await w.store.admit([w.admission("d1", closed=True)])

    refused(result, AgentClosed)
    assert await w.store.read(conversation_id(w.key()), after=0, limit=1) is None
    assert await w.store.load(conversation_id(w.key())) is None
    assert await w.store.lookup(submission_id(w.key().of_instance, "d1")) is None
    assert not (await w.admit("d1"))[0].replayed, "the refused dispatch kept its key"


@case("I1")
async def a_conflicting_dispatch_leaves_no_trace(w: World) -> None:
    """Not even the conversation that it was meant for."""
    await w.admit("d1")
    fresh = w.key("fresh")
    (result,) = await w.store.admit([w.admission("d1", fresh)])

    refused(result, DispatchConflict)
    assert await w.store.read(conversation_id(fresh), after=0, limit=1) is None
    assert (await w.lane()).last_position == 1


@case("I1")
async def a_full_queue_refuses_and_keeps_no_hole(w: World) -> None:
    """The head does not count; the one refused takes no position."""
    await w.admit("d1", "d2")
    full, other = await w.store.admit([w.admission("d3", max_queued=1), w.admission("d4", max_queued=2)])

    refused(full, QueueFull)
    good(other)
    view = await w.view(submission_id(w.key().of_instance, "d4"))
    assert view.position == 3
    assert not (await w.admit("d3"))[0].replayed


@case("I2")
async def a_repeat_gets_the_first_receipt_also_after_settlement(w: World) -> None:
    """Queued, running, settled: the same ids."""
    (first,) = await w.admit("d1")
    again = [(await w.admit("d1"))[0]]
    run = await w.claim()
    again += await w.admit("d1")
    await run.begin()
    await run.settle()
    again += await w.admit("d1")

    for receipt in again:
        assert receipt.replayed
        assert (receipt.submission_id, receipt.conversation_id) == (first.submission_id, first.conversation_id)
    assert (await w.lane()).state is LaneState.IDLE, "a repeat was run again"
    assert (await w.kinds()).count(Kind.CONVERSATION_CREATED) == 1


@case("I2")
async def a_repeat_is_answered_when_closed_or_full(w: World) -> None:
    """The key is looked up before the refusal."""
    await w.admit("d1", "d2")
    closed, full = await w.store.admit([w.admission("d1", closed=True), w.admission("d2", max_queued=0)])

    assert good(closed).replayed
    assert good(full).replayed


@case("I2")
async def the_same_key_with_other_content_conflicts(w: World) -> None:
    """In any state, and in any session of the instance."""
    await w.admit("d1")
    same, elsewhere, shut = await w.store.admit(
        [
            w.admission("d1", body="other"),
            w.admission("d1", w.key("elsewhere")),
            w.admission("d1", body="other", closed=True),
        ]
    )

    refused(same, DispatchConflict)
    refused(elsewhere, DispatchConflict)
    refused(shut, DispatchConflict)


@case("I2")
async def the_key_is_the_instances(w: World) -> None:
    """Another instance and another incarnation know nothing of it."""
    await w.admit("d1")
    others = await w.store.admit(
        [w.admission("d1", w.key(instance="j")), w.admission("d1", w.key(incarnation=f"{w.incarnation}-2"))]
    )

    assert [good(result).replayed for result in others] == [False, False]


@case("I2")
async def equal_dispatches_of_one_batch_are_one(w: World) -> None:
    """One submission, the others replay, and no hole in the queue."""
    results = await w.store.admit([w.admission("d1"), w.admission("d1"), w.admission("d2"), w.admission("d1")])

    assert [good(result).replayed for result in results] == [False, True, False, True]
    assert (await w.view(good(results[2]).submission_id)).position == 2
    assert (await w.lane()).last_position == 2


@case("I2")
async def unequal_dispatches_of_one_batch_conflict(w: World) -> None:
    """The first of them is admitted."""
    first, second = await w.store.admit([w.admission("d1"), w.admission("d1", body="other")])

    assert not good(first).replayed
    refused(second, DispatchConflict)
    assert (await w.lane()).last_position == 1


@case("I2")
async def equal_dispatches_that_race_are_one(w: World) -> None:
    """Twenty at once over two handles, of a session that none has seen."""
    handles = [w.store, await w.subject.another()]

    async def admit(n: int) -> Receipt | KubeharnessError:
        return (await handles[n % 2].admit([w.admission("d1")]))[0]

    receipts = [good(result) for result in await together(*(admit(n) for n in range(20)))]

    assert sum(not receipt.replayed for receipt in receipts) == 1
    assert len({receipt.submission_id for receipt in receipts}) == 1
    assert (await w.lane()).last_position == 1
    assert await w.kinds() == [Kind.CONVERSATION_CREATED]


@case("I2")
async def different_dispatches_that_race_into_a_new_session_are_all_admitted(w: World) -> None:
    """One of them creates the conversation; positions have no hole."""
    handles = [w.store, await w.subject.another()]

    async def admit(n: int) -> Receipt | KubeharnessError:
        return (await handles[n % 2].admit([w.admission(f"d{n}")]))[0]

    results = await together(*(admit(n) for n in range(10)))

    views = [await w.view(good(result).submission_id) for result in results]
    assert sorted(view.position for view in views) == list(range(1, 11))
    assert await w.kinds() == [Kind.CONVERSATION_CREATED]


@case("I2")
async def crossing_keys_neither_hang_nor_double(w: World) -> None:
    """Two batches name the same two keys for two sessions, in opposite order."""
    other = await w.subject.another()
    here, there = w.key("a"), w.key("b")

    async def admit(store: Store, *items: Admission) -> list[Receipt | KubeharnessError]:
        return list(await store.admit(items))

    first, second = await together(
        admit(w.store, w.admission("d1", here), w.admission("d2", there)),
        admit(other, w.admission("d2", here), w.admission("d1", there)),
    )

    accepted = [result for result in (*first, *second) if isinstance(result, Receipt)]
    assert len({receipt.submission_id for receipt in accepted}) == 2
    assert len(accepted) == 2, "each key is admitted once, and its other use conflicts"


@case("I14")
async def one_bad_dispatch_stops_no_other(w: World) -> None:
    """Refused and admitted side by side, each answered in its place."""
    await w.admit("d1")
    results = await w.store.admit(
        [
            w.admission("d2"),
            w.admission("d1", body="other"),
            w.admission("d3", w.key("b"), closed=True),
            w.admission("d4", w.key("c")),
        ]
    )

    good(results[0])
    refused(results[1], DispatchConflict)
    refused(results[2], AgentClosed)
    good(results[3])


CASES = (
    an_admitted_dispatch_is_there_whole,
    a_second_handle_sees_it_at_once,
    a_refused_dispatch_leaves_no_trace,
    a_conflicting_dispatch_leaves_no_trace,
    a_full_queue_refuses_and_keeps_no_hole,
    a_repeat_gets_the_first_receipt_also_after_settlement,
    a_repeat_is_answered_when_closed_or_full,
    the_same_key_with_other_content_conflicts,
    the_key_is_the_instances,
    equal_dispatches_of_one_batch_are_one,
    unequal_dispatches_of_one_batch_conflict,
    equal_dispatches_that_race_are_one,
    different_dispatches_that_race_into_a_new_session_are_all_admitted,
    crossing_keys_neither_hang_nor_double,
    one_bad_dispatch_stops_no_other,
)
