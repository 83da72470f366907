"""Connections that break: nothing is written twice, nobody waits for ever, and all goes on by itself."""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg
import pytest

from kubeharness.core.errors import LaneLost, Unavailable
from kubeharness.core.ids import conversation_id
from kubeharness.engine.ports import Receipt
from kubeharness.store.conformance.answers import contiguous, good
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.database import SESSION, Connection, Database, connect
from kubeharness.store.postgres.store import PostgresStore
from kubeharness.store.verify import verify
from store.postgres.conftest import OneStore, OpenStore
from support.tcpproxy import tcp_proxy

T = TypeVar("T")
KILL = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'kubeharness write%'
"""


async def insist(verb: Callable[[], Awaitable[T]]) -> T:
    """As the engine does: what is unavailable is repeated, with the same numbers and keys."""
    async with asyncio.timeout(40):
        while True:
            try:
                return await verb()
            except Unavailable:
                await asyncio.sleep(0.002)


async def test_cut_connections_write_nothing_twice(world: World, stores: OpenStore, database: Connection) -> None:
    """Commits whose answer is lost are repeated by number, dispatches by key (I2, I5)."""
    writers, writes = 6, 40
    for n in range(writers):
        await world.admit("first", key=world.key(instance=f"i-{n}"))
    runs = await world.claims(writers)
    cuts = done = 0

    async def cut() -> None:
        """Cut at some moment of the next writes, whenever a few came through: however slow the machine is."""
        nonlocal cuts
        while done < 2 * writers * writes:
            seen = done
            while done < min(seen + 4, 2 * writers * writes):
                await asyncio.sleep(0.001)
            await asyncio.sleep(random.uniform(0, 0.01))
            cuts += await database.fetchval(KILL)

    async def own(n: int) -> None:
        nonlocal done
        for w in range(writes):
            item = runs[n].write(runs[n].note(f"{n}/{w}"), runs[n].note("and"))
            good((await insist(lambda item=item: world.store.append([item])))[0])  # type: ignore[misc]
            done += 1

    async def dispatch(n: int) -> None:
        nonlocal done
        for w in range(writes):
            item = world.admission(f"d{w}", world.key(instance=f"i-{n}"))
            assert isinstance((await insist(lambda item=item: world.store.admit([item])))[0], Receipt)  # type: ignore[misc]
            done += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cut())
        for n in range(writers):
            tasks.create_task(own(n))
            tasks.create_task(dispatch(n))

    assert cuts > 20
    for n, run in enumerate(runs):
        log = await world.log(run.conversation)
        notes = [record.body for record in log if b'"message":"' in record.body and b"/" in record.body]
        assert contiguous(log)
        assert len(log) == 1 + 2 * writes
        assert len(notes) == len(set(notes)) == writes, f"of run {n}"
        waiting = await world.store.unsettled(run.conversation, limit=100)
        assert [view.position for view in waiting] == list(range(1, writes + 2))
    assert await verify(world.store) == []


async def test_a_claim_whose_answer_was_lost_is_found_by_its_attempts(world: World, database: Connection) -> None:
    for n in range(40):
        await world.admit("d", key=world.key(instance=f"i-{n}"))
    held = 0

    async def cut() -> None:
        while held < 40:
            seen = held
            while held == seen:
                await asyncio.sleep(0.001)
            await asyncio.sleep(random.uniform(0, 0.01))
            await database.fetchval(KILL)

    async def claim() -> None:
        nonlocal held
        while held < 40:
            attempts = [world.new_attempt() for _ in range(2)]
            try:
                claimed = await world.store.claim(
                    owner="w",
                    pool=world.pool,
                    attempts=attempts,
                    lease_ms=30_000,
                    failed=1,
                    formats=[1],
                    all_ready=True,
                )
            except Unavailable:
                claimed = await insist(lambda attempts=attempts: world.store.held(attempts))  # type: ignore[misc]
            held += len(claimed)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cut())
        tasks.create_task(claim())

    assert held == 40
    assert await database.fetchval("SELECT count(*) FROM attempt") == 40


async def test_a_database_that_is_away_is_unavailable_at_once_and_then_comes_back(
    postgres_url: str, stores: OpenStore
) -> None:
    async with tcp_proxy(postgres_url) as proxy:
        world = World(OneStore(await stores(proxy.url)))
        await world.set_up()
        proxy.refusing = True
        proxy.cut()

        began = time.monotonic()
        for n in range(50):
            with pytest.raises(Unavailable):
                await world.store.admit([world.admission(f"d{n}")])
            with pytest.raises(Unavailable):
                await world.store.head_clock()
        assert time.monotonic() - began < 5
        assert proxy.accepted < 40, "a growing pause lies between two tries"

        proxy.refusing = False
        assert isinstance((await insist(lambda: world.store.admit([world.admission("d")])))[0], Receipt)


async def test_a_database_that_goes_silent_is_unavailable_after_the_timeout(
    postgres_url: str, stores: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "__kwdefaults__", {**(connect.__kwdefaults__ or {}), "command_timeout": 0.5})
    async with tcp_proxy(postgres_url) as proxy:
        world = World(OneStore(await stores(proxy.url)))
        await world.set_up()
        run = await world.started()
        item = run.write(run.note("once"))

        proxy.black_hole = True
        with pytest.raises(Unavailable):
            await world.store.append([item])
        proxy.black_hole = False
        proxy.cut()

        good((await insist(lambda: world.store.append([item])))[0])
        assert contiguous(await world.log())


async def test_a_frozen_owner_of_a_transaction_does_not_hold_its_locks_for_ever(
    postgres_url: str, world: World
) -> None:
    """The server ends a session that idles in a transaction: C05's worker may be stopped with a lock in its hand."""
    await world.admit("first")
    frozen = await connect(postgres_url, name="frozen")
    await frozen.execute("SET idle_in_transaction_session_timeout = '300ms'")
    await frozen.execute("BEGIN")
    await frozen.fetch("SELECT id FROM lane FOR UPDATE")

    receipt = (await world.store.admit([world.admission("second")]))[0]

    assert isinstance(receipt, Receipt)
    assert int(SESSION["idle_in_transaction_session_timeout"].removesuffix("s")) <= 10
    frozen.terminate()


async def test_session_settings_are_ours_whatever_the_database_says(postgres_url: str, database: Connection) -> None:
    name = await database.fetchval("SELECT current_database()")
    await database.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    await database.execute(f"ALTER DATABASE {name} SET enable_seqscan = 'on'")

    connection = await connect(postgres_url, name="test")

    for setting, value in SESSION.items():
        assert (await connection.fetchval("SELECT current_setting($1)", setting)).lower() == value.lower()
    await connection.close()


async def test_behind_a_pooler_settings_go_with_each_transaction_and_nothing_stays_prepared(
    postgres_url: str, stores: OpenStore
) -> None:
    world = World(OneStore(await stores(pooled=True)))
    await world.set_up()

    run = await world.started()
    await run.append(run.write(run.note()))
    (renewal,) = await world.store.renew(owner="w", attempts=[run.attempt], lease_ms=1000)
    await run.settle()

    assert not renewal.lost
    assert await world.kinds() == ["conversation_created", "user_message", "warning", "submission_settled"]
    database = Database(postgres_url, pooled=True)
    async with database.transaction() as connection:
        assert await connection.fetchval("SHOW lock_timeout") == SESSION["lock_timeout"]
        assert await connection.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0
    await database.aclose()


async def test_a_block_that_fails_or_is_cancelled_leaves_nothing_and_a_clean_connection(postgres_url: str) -> None:
    database = Database(postgres_url, writes=1)

    async def fail() -> None:
        async with database.transaction() as connection:
            await connection.execute("UPDATE head_clock SET version = 7")
            raise ZeroDivisionError

    async def hang() -> None:
        async with asyncio.timeout(0.1), database.transaction() as connection:
            await connection.execute("UPDATE head_clock SET version = 8")
            await connection.execute("SELECT pg_sleep(5)")

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(TimeoutError):
        await hang()

    async with database.transaction() as connection:
        assert await connection.fetchval("SELECT version FROM head_clock") == 0
    await database.aclose()


async def test_a_statement_that_failed_unnoticed_is_not_reported_as_committed(postgres_url: str) -> None:
    database = Database(postgres_url)

    async def careless(connection: Connection) -> None:
        with contextlib.suppress(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 1 / 0")

    with pytest.raises(Unavailable, match="contended"):
        await database.run(careless)
    await database.aclose()


async def test_a_fenced_attempt_stays_fenced_over_any_number_of_connections(world: World, stores: OpenStore) -> None:
    run = await world.started()
    await run.release("handover")
    other: PostgresStore = await stores()

    (answer,) = await other.append([run.write(run.note())])

    assert isinstance(answer, LaneLost)
    assert await world.store.read(conversation_id(world.key()), after=2, limit=5) is not None
