"""Renewal: from a thread and loop of its own, over rows that others hold, in one statement."""

import asyncio
import threading
import time

import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId
from kubeharness.engine.ports import Renewal
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.store import PostgresStore
from support.tcpproxy import tcp_proxy


async def test_a_thread_with_a_loop_of_its_own_renews(store: PostgresStore, world: World) -> None:
    run = await world.started()
    before = (await world.lane()).lease_until
    said: list[Renewal] = []

    async def renew_once() -> None:
        async with store.renewer(lease_ms=90_000) as renew:
            said.extend(await renew([run.attempt, AttemptId("att_nobody")]))

    thread = threading.Thread(target=lambda: asyncio.run(renew_once()))
    thread.start()
    await asyncio.to_thread(thread.join)

    after = (await world.lane()).lease_until
    assert before is not None
    assert after is not None
    assert after > before + 30_000
    assert [(renewal.lost, renewal.skipped) for renewal in said] == [(False, False), (True, False)]


async def test_a_lane_that_is_locked_just_now_is_skipped_and_never_lost(world: World, database: Connection) -> None:
    run = await world.started()
    async with database.transaction():
        await database.execute("SELECT 1 FROM lane WHERE id = $1 FOR NO KEY UPDATE", run.conversation)

        (held,) = await world.store.renew(owner="w", attempts=[run.attempt], lease_ms=30_000)

    (free,) = await world.store.renew(owner="w", attempts=[run.attempt], lease_ms=30_000)
    assert (held.skipped, held.lost) == (True, False)
    assert (free.skipped, free.lost) == (False, False)


async def test_renewal_tells_of_cancels_and_messages(world: World) -> None:
    run = await world.started()
    await world.steer("m1")
    await world.cancel(run.submission)

    (renewal,) = await world.store.renew(owner="w", attempts=[run.attempt], lease_ms=30_000)

    assert (renewal.cancel, renewal.unread) == ("cancelled", 1)


async def test_a_renewal_that_is_not_answered_is_given_up_and_the_next_one_comes_in_time(
    postgres_url: str, world: World
) -> None:
    run = await world.started()
    async with (
        tcp_proxy(postgres_url) as proxy,
        PostgresStore.open(proxy.url) as store,
        store.renewer(lease_ms=1500) as renew,
    ):
        await renew([run.attempt])
        proxy.black_hole = True
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await renew([run.attempt])
        took = time.monotonic() - began
        proxy.black_hole = False

        (renewal,) = await renew([run.attempt])

    assert took < 1.2
    assert not renewal.lost
