"""Micro-batches: merged when busy, at once when idle, and one bad item stops no other (I14)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.core.ids import conversation_id
from kubeharness.engine.ports import Receipt
from kubeharness.store.backend import Transaction
from kubeharness.store.conformance.answers import good, together
from kubeharness.store.conformance.world import World
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.postgres.batcher import MOST_ITEMS, Batcher
from kubeharness.store.postgres.beside import beside
from kubeharness.store.postgres.database import Connection
from kubeharness.store.verbs import Item, Result


class Counted:
    """A memory backend that counts its transactions and takes its time to open one."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.transactions = 0
        self.singly = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.transactions += 1
        await asyncio.sleep(0.001)
        async with self.backend.transaction() as tx:
            yield tx

    async def alone(self, items: list[Item]) -> list[Result]:
        self.singly += 1
        return [KubeharnessError("no") for _ in items]


@pytest.fixture
def items(world: World) -> list[Item]:
    return [world.admission("d", world.key(instance=f"i-{n}")) for n in range(100)]


async def test_an_idle_batcher_takes_an_item_at_once_and_a_busy_one_gathers(items: list[Item]) -> None:
    counted = Counted()
    batcher = Batcher(counted.transaction, counted.alone)  # type: ignore[arg-type]  # a list is a sequence
    async with beside(batcher.serve(), batcher.serve()):
        await batcher.execute(items[:1])
        alone = counted.transactions
        answers = await together(*(batcher.execute([item]) for item in items[1:]))

    assert alone == 1
    assert all(isinstance(answer, Receipt) for (answer,) in answers)
    assert counted.transactions - alone <= 99 // MOST_ITEMS + 3


async def test_a_caller_that_left_is_not_served(items: list[Item]) -> None:
    counted = Counted()
    batcher = Batcher(counted.transaction, counted.alone)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(batcher.execute(items[:1]))
        await asyncio.sleep(0)
        call.cancel()
    async with beside(batcher.serve()):
        await batcher.execute(items[1:2])

    assert len(counted.backend.tables.submissions) == 1


async def test_a_closed_batcher_serves_what_waits_and_takes_no_more(items: list[Item]) -> None:
    counted = Counted()
    batcher = Batcher(counted.transaction, counted.alone)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks, beside(batcher.serve()):
        call = tasks.create_task(batcher.execute(items[:1]))
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(Unavailable):
            await batcher.execute(items[1:2])

    assert isinstance(call.result()[0], Receipt)


async def test_a_value_that_postgres_refuses_fails_alone(world: World) -> None:
    items = [world.admission("d", world.key(instance=f"i-{n}")) for n in range(20)]
    items[7] = replace(items[7], principal="nul \x00 here")

    answers = await together(*(world.store.admit([item]) for item in items))

    refused = [n for n, (answer,) in enumerate(answers) if isinstance(answer, KubeharnessError)]
    assert refused == [7]


async def test_a_lane_that_somebody_holds_for_long_delays_its_own_caller_only(
    world: World, database: Connection
) -> None:
    keys = [world.key(instance=f"i-{n}") for n in range(10)]
    for key in keys:
        await world.admit("first", key=key)
    blocked = conversation_id(keys[3])

    async with database.transaction():
        await database.execute("SELECT 1 FROM lane WHERE id = $1 FOR UPDATE", blocked)
        results: dict[int, object] = {}

        async def dispatch(n: int) -> None:
            try:
                (results[n],) = await world.store.admit([world.admission("second", keys[n])])
            except Unavailable as error:
                results[n] = error

        async with asyncio.TaskGroup() as tasks:
            for n in range(10):
                tasks.create_task(dispatch(n))

    assert isinstance(results.pop(3), Unavailable)
    assert all(isinstance(result, Receipt) for result in results.values())
    good((await world.store.admit([world.admission("second", keys[3])]))[0])
