"""Section 5: messages into a run in flight, durable and idempotent."""

from kubeharness.core.errors import Conflict, NoRunInFlight
from kubeharness.core.lane import LaneState
from kubeharness.store.conformance.answers import good, refused
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


@case("S5")
async def a_message_is_there_until_it_is_consumed(w: World) -> None:
    """In order of arrival, told by writes, consumed with the record that carries it."""
    run = await w.started()
    await w.steer("m2")
    await w.steer("m1")
    loaded = await w.load()
    assert list(loaded.inbox) == [w.message("m2"), w.message("m1")]
    assert (await run.append(run.write(run.note()))).unread == 2
    assert (await run.append(run.write(run.steered(), consumed=["m2"]))).unread == 1

    loaded = await w.load()
    assert [message.id for message in loaded.inbox] == ["m1"]
    assert loaded.lane.unread == 1


@case("S5")
async def a_message_outlives_its_attempt(w: World) -> None:
    """The worker dies, the next one finds it."""
    run = await w.started()
    await w.steer("m1")
    await w.lost(run)
    retry = await w.claim()

    assert [message.id for message in (await w.load()).inbox] == ["m1"]
    assert retry.claimed.lane.unread == 1


@case("S5")
async def a_message_is_put_once(w: World) -> None:
    """The same again is answered alike, other content conflicts: also after it was consumed, also when all is over."""
    run = await w.started()
    await w.steer("m1")
    await w.steer("m1")
    refused((await w.store.inbox_put([w.message("m1", body="other")]))[0], Conflict)
    assert (await w.lane()).unread == 1
    await run.append(run.write(run.steered(), consumed=["m1"]))
    await w.steer("m1")
    refused((await w.store.inbox_put([w.message("m1", body="other")]))[0], Conflict)
    assert (await w.lane()).unread == 0, "a consumed message came back"
    await run.settle()

    await w.steer("m1")
    refused((await w.store.inbox_put([w.message("m1", body="other")]))[0], Conflict)


@case("S5")
async def a_message_is_consumed_once(w: World) -> None:
    """A write that consumes what is not unread is refused whole."""
    run = await w.started()
    await w.steer("m1")
    await w.steer("m2")
    await run.append(run.write(run.steered(), consumed=["m1"]))
    before = await w.log()
    refused(await run.try_append(run.write(run.steered(), consumed=["m1"])), Conflict)
    refused(await run.try_append(run.write(run.steered(), consumed=["m2", "m3"])), Conflict)
    refused(await run.try_append(run.write(run.steered(), consumed=["m9"])), Conflict)

    assert await w.log() == before
    assert [message.id for message in (await w.load()).inbox] == ["m2"]


@case("S5")
async def nothing_in_flight_takes_no_message(w: World) -> None:
    """No session, a head that was never claimed, an idle session."""
    refused((await w.store.inbox_put([w.message("m0")]))[0], NoRunInFlight)
    await w.admit("d1")
    refused((await w.store.inbox_put([w.message("m1")]))[0], NoRunInFlight)
    run = await w.claim()
    await run.begin()
    await run.settle()
    refused((await w.store.inbox_put([w.message("m1")]))[0], NoRunInFlight)
    run = await w.started("d2")

    await w.steer("m1")


@case("S5")
async def a_delayed_or_ready_run_is_in_flight(w: World) -> None:
    """Once claimed, until settled."""
    run = await w.started()
    await run.release("handover")
    await w.steer("m1")
    run = await w.claim()
    await run.append(run.write(run.steered(), consumed=["m1"]))
    await run.release("failure", delay_ms=30_000)
    await w.steer("m2")

    assert (await w.lane()).state is LaneState.READY, "a message ends a delay"


@case("S5")
async def equal_messages_of_one_batch_are_one(w: World) -> None:
    """And a conflicting one is refused beside them."""
    await w.started()
    first, again, other = await w.store.inbox_put([w.message("m1"), w.message("m1"), w.message("m1", body="other")])

    good(first)
    good(again)
    refused(other, Conflict)
    assert [message.id for message in (await w.load()).inbox] == ["m1"]


CASES = (
    a_message_is_there_until_it_is_consumed,
    a_message_outlives_its_attempt,
    a_message_is_put_once,
    a_message_is_consumed_once,
    nothing_in_flight_takes_no_message,
    a_delayed_or_ready_run_is_in_flight,
    equal_messages_of_one_batch_are_one,
)
