"""The sweep: what relists, restarts and deaf watches lose is found by complete lists."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeharness_operator.objects import AGENTS, Key
from kubeharness_operator.ports import ClusterUnavailable
from kubeharness_operator.sweep import Sweep
from kubeoperator.running import agent, provider
from kubeoperator.world import World

DEMO = Key(AGENTS, "ns", "demo")


def sweep_of(world: World, *namespaces: str) -> Sweep:
    return Sweep(
        cluster=world.cluster,
        objects=world.objects,
        queue=world.queue,
        reconciler=world.reconciler,
        namespaces=namespaces,
        lag=0.01,
    )


@asynccontextmanager
async def healthy() -> AsyncIterator[World]:
    async with World().working() as world:
        world.apply(agent(), provider(secret="key"))
        await world.all_well()
        yield world


async def test_a_sweep_over_a_healthy_world_writes_nothing() -> None:
    async with healthy() as world:
        written, clock = len(world.cluster.status_writes), await world.store.head_clock()
        sweep = sweep_of(world)
        await sweep.once()
        await world.settled()

        assert (len(world.cluster.status_writes), await world.store.head_clock()) == (written, clock)
        assert sweep.deaf == 0
        assert await world.store.check_get("secret", "ns", "key/key") is not None


async def test_a_deletion_that_no_watch_showed_is_found() -> None:
    async with healthy() as world:
        world.delete("Agent", "demo", shown=False)
        await sweep_of(world).once()
        await world.settled()

        assert world.objects.get(DEMO) is None
        assert [head.retired for head in await world.store.heads(after=0)] == [True]


async def test_a_deletion_while_no_operator_ran_is_found() -> None:
    async with healthy() as world:
        pass
    world.delete("Agent", "demo", shown=False)
    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.list_all()
        await again.settled()
        await sweep_of(again).once()
        await again.settled()

    assert [head.retired for head in await again.store.heads(after=0)] == [True]


async def test_heads_of_namespaces_that_are_not_served_are_left_alone() -> None:
    async with healthy() as world:
        pass
    world.delete("Agent", "demo", shown=False)
    async with World(cluster=world.cluster, store=world.store).working() as again:
        await again.settled()
        await sweep_of(again, "elsewhere").once()
        await again.settled()

    assert [head.retired for head in await again.store.heads(after=0)] == [False]


async def test_a_deaf_watch_is_noticed_and_made_up_for_c43() -> None:
    async with healthy() as world:
        world.apply(agent("unseen"), shown=False)
        sweep = sweep_of(world)
        await sweep.once()
        await world.settled()

        assert sweep.deaf == 1
        assert world.said("Agent", "unseen", "Accepted") == ("True", "Accepted")

        world.cluster.apply(agent("unseen", prompt="Edited."))
        await sweep.once()
        await world.settled()

        assert sweep.deaf == 2
        assert world.status("Agent", "unseen")["observedGeneration"] == 2

        await sweep.once()

        assert sweep.deaf == 0


async def test_a_list_that_fails_takes_nothing_for_gone() -> None:
    async with healthy() as world:
        world.cluster.down = True
        with pytest.raises(ClusterUnavailable):
            await sweep_of(world).once()
        await world.settled()

        assert world.objects.get(DEMO) is not None
        assert [head.retired for head in await world.store.heads(after=0)] == [False]


async def test_without_the_crds_nothing_is_gone() -> None:
    """Somebody removed the CRDs: the lists answer 404, and no agent is retired for it."""
    async with healthy() as world:
        world.cluster.served = False
        with pytest.raises(Exception, match="404"):
            await sweep_of(world).once()

        assert [head.retired for head in await world.store.heads(after=0)] == [False]
