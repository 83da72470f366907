"""ConfigMaps that no watch shows: read once, and again now and then, never called gone because a read failed."""

from kubeharness_operator.objects import CONFIG_MAPS, Key, Objects
from kubeharness_operator.reconcile.lookups import REREAD_MISSING_SECONDS, REREAD_SECONDS, Lookups
from kubeoperator.world import DictCluster

KEY = Key(CONFIG_MAPS, "ns", "prompts")
WANTED = frozenset([KEY])


def config_map(text: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prompts"}, "data": {"short": text}}


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lookups() -> tuple[Lookups, DictCluster, Time]:
    cluster, time = DictCluster(), Time()
    return Lookups(Objects(), cluster, clock=time), cluster, time


async def test_it_is_read_once_and_again_after_a_minute() -> None:
    looking, cluster, time = lookups()
    cluster.apply(config_map("a"))
    for _ in range(3):
        assert await looking.find(KEY) is not None
    cluster.apply(config_map("b"))

    assert await looking.reread(WANTED) == set()
    assert len(cluster.gets) == 1

    time.now += REREAD_SECONDS

    assert await looking.reread(WANTED) == {KEY}
    found = await looking.find(KEY)
    assert found is not None
    assert found["data"] == {"short": "b"}

    time.now += REREAD_SECONDS

    assert await looking.reread(WANTED) == set()


async def test_a_missing_one_is_looked_for_more_often() -> None:
    looking, cluster, time = lookups()
    missing = await looking.find(KEY)
    cluster.apply(config_map("a"))
    time.now += REREAD_MISSING_SECONDS
    changed = await looking.reread(WANTED)

    assert (missing, changed) == (None, {KEY})


async def test_a_read_that_fails_leaves_what_was_read_and_one_nobody_wants_is_forgotten() -> None:
    looking, cluster, time = lookups()
    cluster.apply(config_map("a"))
    await looking.find(KEY)
    cluster.down = True
    time.now += REREAD_SECONDS

    assert await looking.reread(WANTED) == set()
    assert await looking.find(KEY) is not None

    cluster.down = False
    await looking.reread(frozenset())
    before = len(cluster.gets)
    await looking.find(KEY)

    assert len(cluster.gets) == before + 1
