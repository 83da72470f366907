"""The claim's scan: bounded below, and nobody sleeps behind the bound."""

from kubeharness.core.ids import conversation_id
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.database import Connection

LATE = "UPDATE lane SET ready_at = ready_at - 60000 WHERE id = $1"


async def claimed(world: World, *, all_ready: bool, limit: int = 4) -> int:
    found = await world.store.claim(
        owner="w",
        pool=world.pool,
        attempts=[world.new_attempt() for _ in range(limit)],
        lease_ms=30_000,
        failed=1,
        formats=[1],
        all_ready=all_ready,
    )
    return len(found)


async def test_what_commits_behind_the_bound_is_found_by_the_scan_without_it(
    world: World, database: Connection
) -> None:
    assert await claimed(world, all_ready=False) == 0  # now the bound trails the clock
    await world.admit("late")
    await database.execute(LATE, conversation_id(world.key()))

    assert await claimed(world, all_ready=False) == 0
    assert await claimed(world, all_ready=True) == 1


async def test_a_full_claim_does_not_raise_the_bound_over_what_it_left(world: World) -> None:
    for n in range(12):
        await world.admit("d", key=world.key(instance=f"i-{n}"))

    assert [await claimed(world, all_ready=False) for _ in range(4)] == [4, 4, 4, 0]


async def test_earlier_failures_are_not_behind_the_bound(world: World, database: Connection) -> None:
    await world.admit("poison")
    await database.execute("UPDATE lane SET failures = 3")
    assert await claimed(world, all_ready=False) == 1
    await database.execute("UPDATE lane SET state = 'ready', attempt = NULL, ready_at = ready_at - 60000")

    assert await claimed(world, all_ready=False) == 1
