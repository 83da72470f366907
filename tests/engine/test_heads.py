"""Heads: what a process knows of agents, and what it acknowledges."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.engine.heads import Heads
from kubeharness.engine.ports import Component, Head, Store
from kubeharness.store.memory import MemoryBackend, memory_store
from kubeharness.store.store import TransactionalStore
from kubeharness.store.wakers import LocalWaker
from support.playing import WallClock, publish


@asynccontextmanager
async def running(heads: Heads) -> AsyncIterator[Heads]:
    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(heads.run())
        yield heads
        life.cancel()


def made(store: Store, waker: LocalWaker, **options: object) -> Heads:
    return Heads(store, waker, WallClock(), "w1", "worker", "shared", poll_seconds=0.05, **options)  # type: ignore[arg-type]  # as given


async def until(condition: object, seconds: float = 5.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_published_agents_are_found_and_acknowledged() -> None:
    store, waker = memory_store(), LocalWaker()
    version = await publish(store, "a", "b")
    async with running(made(store, waker)) as heads:
        async with asyncio.timeout(2):
            await heads.wait_caught_up()
        head = heads.find("default", "a")

        assert head is not None
        assert head.uid == "uid-default-a"
        assert (heads.applied, heads.fresh, heads.find("default", "c")) == (version, True, None)
        later = await publish(store, "c", waker=waker)
        await until(lambda: heads.applied == later)
        found = await store.acknowledged(version=later, pool="shared")
        await until(lambda: heads.find("default", "c") is not None)

    assert found.workers <= 1
    async with asyncio.timeout(2):
        while (await store.acknowledged(version=later, pool="shared")).workers_behind:
            await asyncio.sleep(0.05)


async def test_a_retired_agent_is_gone_and_a_recreated_one_is_another() -> None:
    store, waker = memory_store(), LocalWaker()
    await publish(store, "a", uid="first")
    async with running(made(store, waker)) as heads:
        await heads.wait_caught_up()
        await publish(store, "a", uid="second", waker=waker)
        await until(lambda: (found := heads.find("default", "a")) is not None and found.uid == "second")
        await store.retire(await store.epoch("test"), ["second"])
        await until(lambda: heads.find("default", "a") is None)


async def test_what_cannot_be_loaded_is_refused_and_not_acknowledged_until_it_is_superseded_c48() -> None:
    store, waker = memory_store(), LocalWaker()
    loaded: list[str] = []

    async def prepare(head: Head) -> None:
        if head.generation == 2:
            raise ValueError("no such shape")
        loaded.append(head.name)

    before = await publish(store, "bad", "good")
    async with running(made(store, waker, prepare=prepare)) as heads:
        await heads.wait_caught_up()
        broken = await publish(store, "bad", generation=2, prompt="two", waker=waker)
        healthy = await publish(store, "good", generation=3, prompt="three", waker=waker)
        await until(lambda: (found := heads.find("default", "good")) is not None and found.generation == 3)
        kept = heads.find("default", "bad")

        assert kept is not None
        assert kept.generation == 1
        assert heads.applied == broken - 1 >= before
        found = await store.acknowledged(version=broken, pool="shared")
        assert any("no such shape" in refusal for refusal in found.refusals)
        mended = await publish(store, "bad", generation=3, prompt="three", waker=waker)
        await until(lambda: heads.applied == mended)
        assert mended > healthy


class Flaky(MemoryBackend):
    """A database that is away for a while."""

    away = 0

    async def head_clock(self) -> int:
        """Fail so many times."""
        if self.away > 0:
            self.away -= 1
            raise Unavailable("the database is away")
        return await super().head_clock()


async def test_an_outage_is_survived() -> None:
    backend, waker = Flaky(), LocalWaker()
    backend.away = 3
    store = TransactionalStore(backend)
    await publish(store, "a")
    async with running(made(store, waker)) as heads:
        async with asyncio.timeout(10):
            await heads.wait_caught_up()
        backend.away = 2
        await publish(store, "b", waker=waker)
        await until(lambda: heads.find("default", "b") is not None)


async def test_a_look_finds_what_no_hint_announced_and_looks_are_shared() -> None:
    backend = Counting()
    store = TransactionalStore(backend)
    heads = made(store, LocalWaker())
    await publish(store, "a")
    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(heads.look("default", "a")) for _ in range(50)]

    assert all(look.result() is not None for look in looks)
    assert backend.asked <= 3
    with pytest.raises(TypeError):
        made(store, LocalWaker(), nonsense=1)


class Counting(MemoryBackend):
    """Counts looks, and beats."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[Component] = []

    async def head_clock(self) -> int:
        """Count."""
        self.asked += 1
        await asyncio.sleep(0)
        return await super().head_clock()

    async def beat(self, component: Component) -> None:
        """Count."""
        self.beats.append(component)
        await super().beat(component)


async def test_beats_come_when_something_moved_and_a_drain_stays_one() -> None:
    backend, waker = Counting(), LocalWaker()
    store = TransactionalStore(backend)
    await publish(store, "a")
    async with running(made(store, waker)) as heads:
        await heads.wait_caught_up()
        await asyncio.sleep(0.7)
        assert len(backend.beats) == 1
        await heads.drain()
        await publish(store, "b", waker=waker)
        await until(lambda: len(backend.beats) == 3)

    assert [beat.draining for beat in backend.beats] == [False, True, True]
