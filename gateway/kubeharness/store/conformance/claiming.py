"""I3, I4: only the head may be claimed, by one owner, who pins the revision."""

from dataclasses import replace

from kubeharness.core.ids import submission_id
from kubeharness.core.lane import LaneState, SubmissionState
from kubeharness.engine.ports import Admission, Store
from kubeharness.store.conformance.answers import LEASE_MS, good, together
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


@case("I3")
async def only_the_head_may_be_claimed(w: World) -> None:
    """One lane of three submissions gives one claim; its successor is free at the settlement."""
    await w.admit("d1", "d2", "d3")
    order: list[int] = []
    for _ in range(3):
        runs = await w.claims(3)
        assert len(runs) == 1, "more than the head was claimed"
        assert await w.claims(3) == [], "the head is running, and another was claimed"
        order.append(runs[0].claimed.position)
        await runs[0].begin()
        await runs[0].settle()

    assert order == [1, 2, 3]
    assert await w.claims(3) == []
    assert (await w.lane()).state is LaneState.IDLE


@case("I3")
async def a_delayed_head_blocks_its_lane(w: World) -> None:
    """A back-off is no chance for the next one."""
    await w.admit("d1", "d2")
    run = await w.claim()
    await run.begin()
    await run.release("backoff", delay_ms=10_000)

    assert await w.claims(3) == []
    await w.admit("d3")
    assert await w.claims(3) == [], "an admission woke a delayed lane"


@case("I3")
async def sessions_run_in_parallel(w: World) -> None:
    """One claim takes many lanes, each once."""
    for n in range(4):
        await w.admit(f"d{n}", f"e{n}", key=w.key(f"s{n}"))
    runs = await w.claims(10)

    assert len({run.conversation for run in runs}) == len(runs) == 4
    assert {run.claimed.position for run in runs} == {1}


@case("I3")
async def promotion_steps_over_cancelled_positions(w: World) -> None:
    """A submission cancelled in the queue keeps its position, and no claim ever meets it."""
    receipts = await w.admit("d1", "d2", "d3", "d4", "d5")
    run = await w.claim()
    await run.begin()
    for n in (1, 2, 4):
        assert (await w.cancel(receipts[n].submission_id)).settled
    await run.settle()

    next_run = await w.claim()
    assert next_run.claimed.position == 4
    assert next_run.submission == receipts[3].submission_id
    await next_run.begin()
    await next_run.settle()
    assert await w.claims(2) == [], "a cancelled submission was claimed"
    lane = await w.lane()
    assert (lane.state, lane.cancelled_positions) == (LaneState.IDLE, ())
    await w.admit("d6")
    assert (await w.claim()).claimed.position == 6


@case("I3")
async def racing_claims_take_each_lane_once(w: World) -> None:
    """Two workers, twelve lanes, eight claims at once."""
    for n in range(12):
        await w.admit("d", key=w.key(instance=f"i{n}"))
    handles = [w.store, await w.subject.another()]
    found = await together(*(w.claims(3, store=handles[n % 2]) for n in range(8)))

    runs = [run for claim in found for run in claim]
    while more := await w.claims(3):  # a claim may skip rows that another has locked
        runs += more
    assert len(runs) == 12
    assert len({run.conversation for run in runs}) == 12


async def _settle(run: Run) -> None:
    await run.settle()


async def _admit(store: Store, item: Admission) -> None:
    good((await store.admit([item]))[0])


@case("I3")
async def a_session_never_falls_asleep(w: World) -> None:
    """A dispatch admitted while its predecessor settles is promoted, by one or the other."""
    other = await w.subject.another()
    for n in range(15):
        run = await w.started(f"d{n}")
        await together(_settle(run), _admit(other, w.admission(f"late{n}")))
        runs = await w.claims(2)
        assert len(runs) == 1, "what was admitted during the settlement sleeps"
        await runs[0].begin()
        await runs[0].settle()
    assert (await w.lane()).state is LaneState.IDLE


@case("I4")
async def a_claim_says_who_holds_what(w: World) -> None:
    """Attempt, owner, lease, claim ordinal, revision; and the claimer can ask."""
    await w.admit("d1")
    run = await w.claim()
    lane = run.claimed.lane

    assert lane.state is LaneState.RUNNING
    assert lane.attempt == run.attempt
    assert (lane.owner, lane.claim) == ("worker", 1)
    assert lane.lease_until == run.claimed.now + LEASE_MS
    assert run.claimed.revision == lane.revision == w.revision("one").id
    (held,) = await w.store.held([w.new_attempt(), run.attempt])
    assert replace(held, now=run.claimed.now) == run.claimed
    assert (await w.view(run.submission)).state is SubmissionState.RUNNING
    assert (await w.view(run.submission)).attempts == 1


@case("I4")
async def an_attempt_that_lost_its_lane_holds_nothing(w: World) -> None:
    """Neither after a release nor after a reap, nor after another's claim."""
    await w.admit("d1")
    run = await w.claim()
    await run.release("handover")
    assert await w.store.held([run.attempt]) == []
    second = await w.claim()
    await w.lost(second)
    assert await w.store.held([run.attempt, second.attempt]) == []
    third = await w.claim()

    assert [claimed.attempt for claimed in await w.store.held([run.attempt, second.attempt, third.attempt])] == [
        third.attempt
    ]
    assert third.claimed.lane.claim == 3


@case("I4")
async def the_first_claim_pins_the_revision(w: World) -> None:
    """A retry keeps it, the next submission takes the active one."""
    await w.admit("d1", "d2")
    run = await w.claim()
    await run.begin()
    await w.publish(w.revision("two"), generation=2)
    await run.release("handover")
    retry = await w.claim()
    assert retry.claimed.revision == w.revision("one").id
    await retry.settle()

    assert (await w.claim()).claimed.revision == w.revision("two").id


@case("I4")
async def the_active_revision_at_the_claim_counts(w: World) -> None:
    """Not the one at the admission."""
    await w.admit("d1")
    await w.publish(w.revision("two"), generation=2)

    assert (await w.claim()).claimed.revision == w.revision("two").id


@case("I4")
async def lanes_that_cannot_run_hide_no_others(w: World) -> None:
    """No revision yet, or of a format that the claimer does not read: left alone, and the rest is found."""
    for n in range(5):
        await w.admit(f"d{n}", key=w.key(f"s{n}", incarnation=f"{w.incarnation}-unpublished"))
    new = w.revision("new", format=2)
    uid = f"{w.incarnation}-new"
    await w.store.publish(w.epoch, [w.head(new, uid=uid, name="newer")])
    for n in range(5):
        await w.admit(f"e{n}", key=w.key(f"s{n}", incarnation=uid))
    await w.admit("f")
    run = await w.claim()

    assert run.submission == submission_id(w.key().of_instance, "f")
    found = await w.store.claim(
        owner="newer",
        pool=w.pool,
        attempts=[w.new_attempt() for _ in range(20)],
        lease_ms=LEASE_MS,
        failed=1,
        formats=[1, 2],
        all_ready=True,
    )
    assert len(found) == 5


@case("I4")
async def a_retired_agents_queue_still_runs(w: World) -> None:
    """Runs finish: the revision that was active serves what was admitted before."""
    await w.admit("d1")
    await w.store.retire(w.epoch, [w.incarnation])

    assert (await w.claim()).claimed.revision == w.revision("one").id


@case("I4")
async def a_pool_is_its_own(w: World) -> None:
    """A worker of another pool finds nothing."""
    await w.admit("d1")
    found = await w.store.claim(
        owner="stranger",
        pool=f"{w.pool}-other",
        attempts=[w.new_attempt()],
        lease_ms=LEASE_MS,
        failed=1,
        formats=[1],
        all_ready=True,
    )

    assert found == []


@case("I4")
async def the_oldest_ready_lane_is_claimed_first(w: World) -> None:
    """By the time at which it became ready."""
    for n in range(3):
        await w.admit("d", key=w.key(instance=f"i{n}"))
        await w.advance(5_000)
    order: list[Run] = []
    for _ in range(3):
        order += await w.claims(1)

    assert [run.claimed.key.instance for run in order] == ["i0", "i1", "i2"]


CASES = (
    only_the_head_may_be_claimed,
    a_delayed_head_blocks_its_lane,
    sessions_run_in_parallel,
    promotion_steps_over_cancelled_positions,
    racing_claims_take_each_lane_once,
    a_session_never_falls_asleep,
    a_claim_says_who_holds_what,
    an_attempt_that_lost_its_lane_holds_nothing,
    the_first_claim_pins_the_revision,
    the_active_revision_at_the_claim_counts,
    lanes_that_cannot_run_hide_no_others,
    a_retired_agents_queue_still_runs,
    a_pool_is_its_own,
    the_oldest_ready_lane_is_claimed_first,
)
