"""I10: counters, leases, delays and deadlines, all by the store's clock."""

from kubeharness.core.ids import TurnId
from kubeharness.core.lane import LaneState
from kubeharness.core.messages import Usage
from kubeharness.core.transitions import CounterChange
from kubeharness.engine.ports import UsageRow
from kubeharness.store.conformance.answers import LEASE_MS, LIFETIME_MS, near
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


def _left(run: Run) -> int:
    deadline = run.claimed.lane.deadline
    assert deadline is not None
    return deadline - run.claimed.now


async def _claimed_again(w: World) -> Run:
    await w.rested()
    return await w.claim()


@case("I10")
async def a_crash_counts_itself(w: World) -> None:
    """The claim adds a failure, and nobody is left to take it back."""
    await w.admit("d1")
    run = await w.claim()
    for failures in (1, 2, 3):
        assert run.claimed.lane.counters.failures == failures
        assert run.claimed.lane.claim == failures
        await w.lost(run)
        run = await w.claim()
    await run.begin()
    await run.settle()

    await w.admit("d2")
    assert (await w.claim()).claimed.lane.counters.failures == 1, "the next submission has budgets of its own"


@case("I10")
async def a_hand_over_is_no_failure(w: World) -> None:
    """The lane is ready at once; the tenth in a row without progress counts as one."""
    await w.admit("d1")
    for _ in range(9):
        run = await w.claim()
        assert run.claimed.lane.counters.failures == 1
        await run.release("handover")
    run = await w.claim()
    await run.release("handover")
    assert (await w.lane()).counters.failures == 1
    run = await w.claim()
    assert run.claimed.lane.counters.failures == 2


@case("I10")
async def progress_forgets_hand_overs(w: World) -> None:
    """They count only in a row without an append between them."""
    await w.admit("d1")
    for n in range(12):
        run = await w.claim()
        await run.append(run.write(run.text() if n == 0 else run.note()))
        await run.release("handover")

    lane = await w.lane()
    assert (lane.counters.failures, lane.counters.handovers) == (0, 1)


@case("I10")
async def back_off_and_a_missing_secret_are_no_failures(w: World) -> None:
    """A back-off counts a try of the turn and a model retry, and says why."""
    await w.admit("d1")
    run = await w.claim()
    await run.release("backoff", delay_ms=5_000, last_error="busy")
    counters = (await w.lane()).counters
    assert (counters.failures, counters.tries, counters.model_retries) == (0, 1, 1)
    run = await _claimed_again(w)
    assert run.claimed.lane.last_error == "busy"
    await run.release("blocked", delay_ms=5_000, last_error="no Secret")
    counters = (await w.lane()).counters
    assert (counters.failures, counters.tries, counters.model_retries) == (0, 1, 1)
    run = await _claimed_again(w)
    await run.release("failure")

    lane = await w.lane()
    assert lane.counters.failures == 1
    assert lane.last_error == "no Secret", "an empty error took away the last real one"
    assert (await w.view(run.submission)).last_error == "no Secret"


@case("I10")
async def appends_change_counters(w: World) -> None:
    """A completed message resets the tries; counters outlive the attempt, and their submission not."""
    run = await w.started()
    await run.release("backoff")
    run = await _claimed_again(w)
    usage = Usage(input=10, output=2)
    row = UsageRow(turn_id=TurnId("1.2.1"), model="m", provider="p", usage=usage)
    await run.append(run.write(run.note(), counters=CounterChange(steps=1, usage=usage), usage=row))
    await run.append(run.write(run.note(), counters=CounterChange(corrective=1, compactions=2, children=3)))
    await run.append(run.write(run.note(), counters=CounterChange(steps=1, usage=usage), usage=row))
    await run.release("handover")
    run = await w.claim()

    counters = run.claimed.lane.counters
    assert (counters.steps, counters.tries, counters.model_retries) == (2, 0, 1)
    assert (counters.corrective, counters.compactions, counters.children) == (1, 2, 3)
    assert counters.usage == Usage(input=20, output=4)
    await run.settle()
    await w.admit("d2")
    fresh = (await w.claim()).claimed.lane.counters
    assert (fresh.steps, fresh.model_retries, fresh.usage) == (0, 0, Usage())


@case("I10")
async def a_repeated_write_counts_once(w: World) -> None:
    """A commit whose answer was lost adds nothing again."""
    run = await w.started()
    row = UsageRow(turn_id=TurnId("1.1.1"), model="m", provider="p", usage=Usage(input=1))
    item = run.write(run.note(), counters=CounterChange(steps=1, usage=Usage(input=1)), usage=row)
    await run.append(item)
    await run.append(item)

    counters = (await w.lane()).counters
    assert (counters.steps, counters.usage.input) == (1, 1)


@case("I10")
async def poison_work_spends_nobody_elses_budget(w: World) -> None:
    """A worker takes at most so many lanes with earlier failures as it says."""
    for n in range(3):
        await w.admit("d", key=w.key(instance=f"bad{n}"))
    for run in await w.claims(3):
        await run.release("failure")
    await w.rested()
    for n in range(2):
        await w.admit("d", key=w.key(instance=f"good{n}"))

    assert len(await w.claims(10, failed=0)) == 2
    found = await w.claims(10, failed=1)
    assert [run.claimed.lane.counters.failures for run in found] == [2]
    assert len(await w.claims(10, failed=5)) == 2


@case("I4")
async def a_lane_is_reaped_when_its_lease_is_over(w: World) -> None:
    """By the store's clock; not before, and once."""
    run = await w.started()
    await w.advance(LEASE_MS - 5_000)
    assert run.conversation not in await w.store.reap()
    assert (await w.lane()).attempt == run.attempt
    await w.advance(6_000)
    assert run.conversation in await w.store.reap()
    assert run.conversation not in await w.store.reap()

    lane = await w.lane()
    assert (lane.attempt, lane.owner, lane.lease_until) == (None, None, None)
    assert lane.state is LaneState.READY, "the first failure waits for nothing"
    assert lane.last_error != ""


@case("I5")
async def a_renewed_lane_is_not_reaped(w: World) -> None:
    """A renewal begins the lease anew, and reports on each attempt."""
    run = await w.started()
    await w.steer("m1")
    stranger = w.new_attempt()
    await w.advance(LEASE_MS - 5_000)
    renewals = await w.store.renew(owner="worker", attempts=[stranger, run.attempt], lease_ms=LEASE_MS)
    assert [(renewal.attempt, renewal.lost, renewal.skipped) for renewal in renewals] == [
        (stranger, True, False),
        (run.attempt, False, False),
    ]
    assert renewals[1].unread == 1
    await w.advance(LEASE_MS - 5_000)

    assert run.conversation not in await w.store.reap()
    await run.append(run.write(run.steered(), consumed=["m1"]))


@case("I10")
async def failures_are_delayed_longer_each_time(w: World) -> None:
    """At once, then 1, 2, 4 … seconds, at most a minute."""
    await w.admit("d1")
    delays = []
    for _ in range(9):
        run = await _claimed_again(w)
        await run.release("failure")
        lane = await w.lane()
        if lane.state is LaneState.DELAYED:
            assert lane.not_before is not None
            delays.append(lane.not_before - run.claimed.now)

    assert len(delays) == 8
    assert all(
        near(delay, expected)
        for delay, expected in zip(delays, (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000), strict=True)
    )


@case("I10")
async def a_delay_ends_when_it_is_over(w: World) -> None:
    """The sweep makes the lane ready, not before."""
    await w.admit("d1")
    run = await w.claim()
    await run.release("backoff", delay_ms=20_000)
    await w.advance(15_000)
    assert run.conversation not in await w.store.sweep()
    assert await w.claims(1) == []
    await w.advance(6_000)
    assert run.conversation in await w.store.sweep()

    assert run.conversation not in await w.store.sweep()
    await w.claim()


@case("I10")
async def a_cancel_or_a_message_ends_a_delay(w: World) -> None:
    """A message makes the lane ready; a release that finds one does not wait."""
    run = await w.started()
    await run.release("backoff", delay_ms=50_000)
    await w.steer("m1")
    run = await w.claim()
    await run.release("backoff", delay_ms=50_000)
    run = await w.claim()
    assert run.claimed.lane.unread == 1
    await w.cancel(run.submission)
    await run.append(run.write(run.steered(), consumed=["m1"]))
    await run.release("failure", delay_ms=50_000)

    assert (await w.claim()).claimed.lane.cancel == "cancelled"


@case("I10")
async def the_lifetime_runs_from_the_head(w: World) -> None:
    """From when it became head, not from its claim or its admission."""
    await w.admit("d1", "d2")
    await w.advance(100_000)
    run = await w.claim()
    assert near(_left(run), LIFETIME_MS - 100_000)
    await run.begin()
    await w.advance(10_000)
    await run.settle()

    assert near(_left(await w.claim()), LIFETIME_MS)


@case("I10")
async def waiting_for_a_worker_with_earlier_failures_is_not_charged(w: World) -> None:
    """The claim moves the deadline by that wait; a delay and a first wait it does not."""
    await w.admit("d1")
    run = await w.claim()
    left = _left(run)
    await run.release("failure")
    await w.advance(500_000)
    run = await w.claim()
    assert near(_left(run), left), "the wait was charged"
    await run.release("backoff", delay_ms=50_000)
    await w.advance(50_001)
    await w.store.sweep()
    run = await w.claim()

    assert near(_left(run), left - 50_000), "the delay was not charged"


@case("I10")
async def the_deadline_beats_a_delay(w: World) -> None:
    """No delay goes beyond it: whoever claims then settles it."""
    await w.publish(w.revision("short"), generation=2)
    await w.store.publish(w.epoch, [w.head(w.revision("short"), generation=3, lifetime_ms=10_000)])
    await w.admit("d1")
    run = await w.claim()
    await run.release("backoff", delay_ms=60_000)

    lane = await w.lane()
    assert lane.not_before == lane.deadline
    await w.advance(11_000)
    assert run.conversation in await w.store.sweep()


CASES = (
    a_crash_counts_itself,
    a_hand_over_is_no_failure,
    progress_forgets_hand_overs,
    back_off_and_a_missing_secret_are_no_failures,
    appends_change_counters,
    a_repeated_write_counts_once,
    poison_work_spends_nobody_elses_budget,
    a_lane_is_reaped_when_its_lease_is_over,
    a_renewed_lane_is_not_reaped,
    failures_are_delayed_longer_each_time,
    a_delay_ends_when_it_is_over,
    a_cancel_or_a_message_ends_a_delay,
    the_lifetime_runs_from_the_head,
    waiting_for_a_worker_with_earlier_failures_is_not_charged,
    the_deadline_beats_a_delay,
)
