"""Guarded writes: one statement where nothing came between, the locked way where something did, never a stale one."""

from collections.abc import Awaitable, Callable

import pytest

from kubeharness.core.errors import LaneLost, SettlementRefused, Unavailable
from kubeharness.core.ids import conversation_id
from kubeharness.core.lane import CallState
from kubeharness.engine.ports import Appended, Receipt
from kubeharness.store.conformance.answers import LEASE_MS, contiguous, good, near, refused, together
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.backend import PostgresTransaction
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.guarded import GuardedTransaction
from kubeharness.store.postgres.known import Knowledge
from kubeharness.store.postgres.store import PostgresStore
from kubeharness.store.verify import verify
from store.postgres.conftest import OneStore, OpenStore

SKIP_UPDATES = """
    CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER skip BEFORE UPDATE ON open_call FOR EACH ROW EXECUTE FUNCTION skip()
"""
NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"


class Ways:
    """Which way each batch has taken."""

    def __init__(self) -> None:
        self.locked = 0
        self.stored = 0

    def took(self) -> tuple[int, int]:
        """(guarded writes, locks of lanes) since the last question."""
        taken, self.stored, self.locked = (self.stored, self.locked), 0, 0
        return taken


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    ways = Ways()
    lock, write = PostgresTransaction.lock_lanes, GuardedTransaction.write

    async def counted_lock(self, ids):  # type: ignore[no-untyped-def]
        ways.locked += 1
        return await lock(self, ids)

    async def counted_write(self, writes):  # type: ignore[no-untyped-def]
        await write(self, writes)
        ways.stored += 1

    monkeypatch.setattr(PostgresTransaction, "lock_lanes", counted_lock)
    monkeypatch.setattr(GuardedTransaction, "write", counted_write)
    return ways


@pytest.fixture
async def other(stores: OpenStore, world: World) -> World:
    """The same agent through another process."""
    other = World(OneStore(await stores()))
    other.__dict__.update({**world.__dict__, "subject": other.subject, "store": other.store})
    return other


async def test_a_life_with_nothing_between_is_guarded_writes_alone(world: World, ways: Ways) -> None:
    await world.admit("d1")
    run = await world.claim()
    await run.begin()
    await run.append(run.write(*run.called(run.call("c")), opened=[run.call("c")]))
    await run.append(run.write(run.outcome("c"), closed=["c"]))
    await run.settle()
    await world.admit("d2")

    assert ways.took() == (6, 0)
    assert contiguous(await world.log())
    assert await verify(world.store) == []


async def queued(other: World, run: Run) -> None:
    await other.admit("between")


async def steered(other: World, run: Run) -> None:
    await other.steer("m")


async def cancelled(other: World, run: Run) -> None:
    await other.cancel(None)


async def renewed(other: World, run: Run) -> None:
    (renewal,) = await other.store.renew(owner="w", attempts=[run.attempt], lease_ms=LEASE_MS)
    assert not renewal.lost


Between = Callable[[World, Run], Awaitable[None]]


@pytest.mark.parametrize("between", [queued, steered, cancelled, renewed])
async def test_what_came_between_two_writes_is_seen_by_the_next(
    between: Between, world: World, other: World, ways: Ways
) -> None:
    run = await world.started()
    await between(other, run)
    ways.took()

    answer = await run.append(run.write(run.note("after")))

    assert ways.took() == (0, 1)
    assert (answer.unread, answer.cancel) == (int(between is steered), "cancelled" if between is cancelled else None)
    await run.append(run.write(run.note("and on")))
    assert ways.took() == (1, 0)
    assert contiguous(await world.log())
    assert await verify(world.store) == []


@pytest.mark.parametrize("between", [steered, cancelled])
async def test_a_success_is_refused_over_what_came_between(
    between: Between, world: World, other: World, ways: Ways
) -> None:
    run = await world.started()
    await between(other, run)

    refused(await run.try_settle(run.ending()), SettlementRefused)

    assert "submission_settled" not in await world.kinds()


async def test_a_message_queued_between_is_promoted_by_the_settlement(world: World, other: World) -> None:
    run = await world.started()
    await queued(other, run)

    await run.settle()

    assert (await world.claim()).claimed.position == 2


async def test_an_attempt_that_was_reaped_writes_nothing(
    world: World, other: World, database: Connection, ways: Ways
) -> None:
    run = await world.started()
    await database.execute("UPDATE lane SET lease_until = 0")
    assert await other.store.reap() == [run.conversation]
    before = await world.log()

    refused(await run.try_append(run.write(run.note())), LaneLost)
    refused(await run.try_settle(run.ending()), LaneLost)

    assert await world.log() == before


async def test_a_repeated_write_is_answered_alike_and_stored_once(world: World, ways: Ways) -> None:
    run = await world.started()
    item = run.write(run.note())
    first = await run.append(item)
    ways.took()

    assert await run.append(item) == first

    assert ways.took() == (0, 1)
    assert (await world.kinds()).count("warning") == 1


async def test_one_stale_lane_of_a_batch_delays_the_others_and_loses_none(
    world: World, other: World, ways: Ways
) -> None:
    keys = [world.key(instance=f"i-{n}") for n in range(6)]
    runs = [await world.started(key=key) for key in keys]
    good((await other.store.inbox_put([world.message("m", key=keys[2])]))[0])
    ways.took()

    answers = await world.store.append([run.write(run.note()) for run in runs])

    assert [good(answer).unread for answer in answers] == [0, 0, 1, 0, 0, 0]
    assert ways.took() == (0, 1)
    assert await verify(world.store) == []


async def test_a_refused_item_of_a_batch_stops_no_other(world: World) -> None:
    keys = [world.key(instance=f"i-{n}") for n in range(3)]
    runs = [await world.started(key=key) for key in keys]
    bad = runs[1].write(runs[1].note(), closed=["never opened"])

    one, two, three = await world.store.append([runs[0].write(runs[0].note()), bad, runs[2].write(runs[2].note())])

    assert isinstance(one, Appended)
    assert isinstance(three, Appended)
    assert not isinstance(two, Appended)
    assert await verify(world.store) == []


async def test_a_ledger_that_does_not_do_as_it_is_told_fails_the_write_whole(
    world: World, database: Connection
) -> None:
    """Nothing but a hand in the database does this: then a write says so, rather than go on over it."""
    run = await world.started()
    await run.append(run.write(run.note(), opened=[run.call("c", state=CallState.RECORDED)]))
    before = await world.log()
    await database.execute(SKIP_UPDATES)

    with pytest.raises(Unavailable):
        await run.append(run.write(run.note("started"), started=["c"]))

    assert await world.log() == before


async def test_a_process_that_was_frozen_stamps_no_old_time(
    world: World, database: Connection, monkeypatch: pytest.MonkeyPatch, ways: Ways
) -> None:
    run = await world.started()
    really = Knowledge.now
    monkeypatch.setattr(Knowledge, "now", lambda self: (really(self) or 0) - 20_000)
    ways.took()

    answer = await run.append(run.write(run.note()))

    assert ways.took() == (0, 1)
    assert near(answer.milliseconds, await database.fetchval(NOW))
    assert near((await world.lane()).lease_until or 0, answer.milliseconds + LEASE_MS)


async def test_a_new_connection_trusts_nothing_it_knew(
    store: PostgresStore, world: World, database: Connection, ways: Ways
) -> None:
    """It may lead to a server that lost commits and gives their transaction ids anew."""
    run = await world.started()
    store.backend._knowledge.forget_all()  # type: ignore[attr-defined]  # what a connect does
    ways.took()

    await run.append(run.write(run.note()))

    assert ways.took() == (1, 0)  # read, and then guarded by what was read
    assert contiguous(await world.log())


async def test_racing_dispatches_and_writes_of_one_lane_lose_nothing(world: World, other: World, ways: Ways) -> None:
    run = await world.started()
    items = [run.write(run.note(str(n))) for n in range(40)]

    async def own() -> None:
        for item in items:
            good((await world.store.append([item]))[0])

    async def dispatch(through: World, n: int) -> None:
        assert isinstance((await through.store.admit([world.admission(f"q{n}")]))[0], Receipt)

    await together(own(), *(dispatch((world, other)[n % 2], n) for n in range(40)))

    guarded, _ = ways.took()
    assert guarded > 0
    assert len(await world.log()) == 2 + 40
    waiting = await world.store.unsettled(conversation_id(world.key()), limit=100)
    assert [view.position for view in waiting] == list(range(1, 42))
    assert await verify(world.store) == []
