"""Many processes at once: one winner, no hole, no deadlock."""

import asyncio
import random
import secrets

from kubeharness.core.errors import DispatchConflict, KubeharnessError
from kubeharness.core.ids import conversation_id
from kubeharness.engine.ports import Receipt, Store
from kubeharness.store.conformance.answers import contiguous, good, together
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.database import Connection
from kubeharness.store.verify import verify
from store.postgres.conftest import OpenStore


async def test_fifty_equal_dispatches_to_two_stores_are_one_submission(
    world: World, stores: OpenStore, database: Connection
) -> None:
    two = [world.store, await stores()]
    for n in range(10):
        item = world.admission("pay", world.key(instance=f"new-{n}"))

        answers = await together(*(two[i % 2].admit([item]) for i in range(50)))

        receipts = [good(answer) for (answer,) in answers]
        assert {receipt.submission_id for receipt in receipts} == {item.submission_id}
        assert sum(not receipt.replayed for receipt in receipts) == 1
    assert await database.fetchval("SELECT array_agg(DISTINCT last_position) FROM lane") == [1]
    assert await database.fetchval("SELECT count(*) FROM submission") == 10


async def test_one_dispatch_id_in_two_sessions_is_admitted_once_and_leaves_no_trace_of_the_other(
    world: World, stores: OpenStore
) -> None:
    other = await stores()
    for n in range(20):
        items = [world.admission("pay", world.key(name, instance=f"i-{n}")) for name in ("left", "right")]

        answers = await together(world.store.admit([items[0]]), other.admit([items[1]]))

        first, second = (answer for (answer,) in answers)
        won, lost = (0, second) if isinstance(first, Receipt) else (1, first)
        assert isinstance(lost, DispatchConflict)
        assert await world.store.read(items[1 - won].conversation_id, after=0, limit=1) is None


async def test_racing_dispatches_of_a_session_fill_its_queue_without_a_hole(world: World, stores: OpenStore) -> None:
    three = [world.store, await stores(), await stores(batched=False)]
    items = [world.admission(f"d{n % 60}") for n in range(180)]  # each three times
    random.shuffle(items)

    answers = await together(*(three[n % 3].admit([item]) for n, item in enumerate(items)))

    assert all(isinstance(answer, Receipt) for (answer,) in answers)
    waiting = await world.store.unsettled(conversation_id(world.key()), limit=100)
    assert [view.position for view in waiting] == list(range(1, 61))
    assert contiguous(await world.log())


async def test_batches_over_the_same_lanes_never_deadlock(
    world: World, stores: OpenStore, database: Connection
) -> None:
    keys = [world.key(instance=f"i-{n}") for n in range(12)]
    four = [world.store, await stores(), await stores(batched=False), await stores(batched=False)]
    for key in keys:
        await world.admit("first", key=key)
    runs = {run.conversation: run for run in await world.claims(12)}

    async def dispatch(store: Store) -> list[Receipt | KubeharnessError]:
        chosen = random.sample(keys, 8)
        return list(await store.admit([world.admission(secrets.token_hex(4), key) for key in chosen]))

    async def steer(store: Store) -> list[None | KubeharnessError]:
        return list(
            await store.inbox_put([world.message(secrets.token_hex(4), key=key) for key in random.sample(keys, 8)])
        )

    async def write(store: Store) -> None:
        chosen = random.sample(list(runs.values()), 6)
        for answer in await store.append([run.write(run.note()) for run in chosen]):
            good(answer)

    async def owner() -> None:
        for _ in range(20):
            await write(four[3])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(owner())
        dispatched = [tasks.create_task(dispatch(four[n % 3])) for n in range(60)]
        steered = [tasks.create_task(steer(four[n % 3])) for n in range(60)]
    for task in dispatched:
        assert all(isinstance(answer, Receipt) for answer in task.result())
    for sent in steered:
        assert set(sent.result()) == {None}
    await database.execute("SELECT pg_stat_force_next_flush()")
    assert await database.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert await verify(world.store) == []


async def test_two_claimers_never_hold_one_lane(world: World, stores: OpenStore) -> None:
    for n in range(60):
        await world.admit("d", key=world.key(instance=f"i-{n}"))
    two = [world.store, await stores()]

    claimed = await together(*(world.claims(10, store=s) for s in two * 4))

    lanes = [run.conversation for runs in claimed for run in runs]
    assert len(lanes) == len(set(lanes))
    assert len(lanes) + len(await world.claims(60)) == 60
