"""I5, I6, I15: fenced and numbered writes into an ordered log."""

import asyncio
from dataclasses import replace

from kubeharness.core.errors import KubeharnessError, LaneLost
from kubeharness.core.ids import ConversationId, TurnId
from kubeharness.core.lane import LaneState
from kubeharness.core.records import AssistantTextDelta, AssistantThinkingDelta, Draft, Kind
from kubeharness.engine.ports import Appended
from kubeharness.store.conformance.answers import LEASE_MS, contiguous, good, ids, refused, together
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World

NOWHERE = ConversationId("conv_nowhere")


async def _taken(w: World) -> tuple[Run, Run]:
    """A run whose lane another has taken, and the other."""
    old = await w.started()
    await w.lost(old)
    return old, await w.claim()


@case("I5")
async def an_attempt_that_lost_the_lane_writes_nothing(w: World) -> None:
    """No append, no settlement, no release, no renewal once another has claimed."""
    old, new = await _taken(w)
    before = await w.log()

    refused((await w.store.append([old.write(old.note("zombie"))]))[0], LaneLost)
    refused((await w.store.settle([old.ending()]))[0], LaneLost)
    refused((await w.store.release([old.back("handover")]))[0], LaneLost)
    (renewal,) = await w.store.renew(owner="worker", attempts=[old.attempt], lease_ms=LEASE_MS)
    assert renewal.lost
    assert await w.log() == before
    lane = await w.lane()
    assert (lane.attempt, lane.state) == (new.attempt, LaneState.RUNNING)
    await new.settle()


@case("I5")
async def an_attempt_whose_lane_was_reaped_writes_nothing(w: World) -> None:
    """Also before another has claimed it."""
    run = await w.started()
    await w.advance(LEASE_MS + 1)
    assert run.conversation in await w.store.reap()

    refused((await w.store.append([run.write(run.note())]))[0], LaneLost)
    refused((await w.store.settle([run.ending()]))[0], LaneLost)
    (renewal,) = await w.store.renew(owner="worker", attempts=[run.attempt], lease_ms=LEASE_MS)
    assert renewal.lost


@case("I5")
async def an_expired_lease_alone_takes_nothing(w: World) -> None:
    """Until another has taken the lane, its owner may renew, write, and settle."""
    run = await w.started()
    await w.advance(LEASE_MS * 3)
    await run.append(run.write(run.note()))
    await w.advance(LEASE_MS * 3)
    (renewal,) = await w.store.renew(owner="worker", attempts=[run.attempt], lease_ms=LEASE_MS)
    assert not renewal.lost
    await w.advance(LEASE_MS * 3)

    await run.settle()


@case("I5")
async def a_repeated_write_is_in_the_log_once(w: World) -> None:
    """A commit whose answer was lost: the same number, the same place."""
    run = await w.started()
    item = run.write(run.note("a"), run.note("b"))
    first = await run.append(item)
    again = await run.append(item)

    assert (again.base, again.count, again.milliseconds) == (first.base, first.count, first.milliseconds)
    assert len(await w.log()) == 4
    assert contiguous(await w.log())
    next_write = await run.append(run.write(run.note("c")))
    assert next_write.base == first.base + 2


@case("I5")
async def a_repeated_write_opens_no_call_twice(w: World) -> None:
    """The whole write is answered from the lane, side rows too."""
    run = await w.started()
    call = run.call("1.1.1.0")
    item = run.write(*run.called(call), opened=[call])
    await run.append(item)
    await run.append(item)
    loaded = await w.load()

    assert [open_call.call_id for open_call in loaded.calls] == ["1.1.1.0"]
    assert loaded.lane.open_calls == 1


@case("I5")
async def a_repeat_is_answered_after_settlement_and_release(w: World) -> None:
    """The last write outlives its attempt, until the next claim."""
    run = await w.started()
    await w.admit("d2")
    ending = run.ending()
    first = await run.settle(ending)
    again = await run.settle(ending)
    assert (again.base, again.count) == (first.base, first.count)
    assert (await w.kinds()).count(Kind.SUBMISSION_SETTLED) == 1

    second = await w.claim()
    item = second.write(second.text())
    written = await second.append(item)
    await second.release("handover")
    repeated = await second.append(item)
    assert (repeated.base, repeated.count) == (written.base, written.count)
    assert (await w.lane()).state is LaneState.READY

    await w.claim()
    refused((await w.store.append([item]))[0], LaneLost)


@case("I5")
async def a_gap_or_an_old_number_is_refused(w: World) -> None:
    """Neither one that leaves a gap nor one from before the last."""
    run = await w.started()
    old = run.write(run.note("two"))
    await run.append(old)
    await run.append(run.write(run.note("three")))
    before = await w.log()
    run.number += 1

    refused((await w.store.append([run.write(run.note("five"))]))[0], LaneLost)
    refused((await w.store.append([old]))[0], LaneLost)
    assert await w.log() == before


@case("I5")
async def a_stranger_writes_nothing(w: World) -> None:
    """An attempt that holds another lane, and a lane that does not exist."""
    run = await w.started()
    other = await w.started("x", w.key("other"))
    item = run.write(run.note())

    refused((await w.store.append([replace(item, attempt=other.attempt)]))[0], LaneLost)
    refused((await w.store.append([replace(item, conversation=NOWHERE)]))[0], LaneLost)
    assert (await w.lane()).last_seq == 2


@case("I5")
async def a_write_extends_the_lease(w: World) -> None:
    """A busy owner need not renew."""
    run = await w.started()
    await w.advance(LEASE_MS - 5_000)
    await run.append(run.write(run.note()))
    await w.advance(LEASE_MS - 5_000)

    assert run.conversation not in await w.store.reap()


@case("I6")
async def seqs_count_and_ids_increase_over_all_writers(w: World) -> None:
    """The owner's appends, a cancel beside it, its settlement, the next run."""
    receipts = await w.admit("d1", "d2", "d3")
    run = await w.claim()
    first = await run.append(run.write(run.text(), run.note()))
    assert (first.base, first.count) == (1, 2)
    await w.cancel(receipts[1].submission_id)
    assert (await run.append(run.write(run.note()))).base == 4
    await run.settle()
    second = await w.claim()
    await second.begin()
    await second.settle()

    records = await w.log()
    assert contiguous(records)
    assert [record.kind for record in records] == [
        Kind.CONVERSATION_CREATED,
        Kind.USER_MESSAGE,
        Kind.WARNING,
        Kind.SUBMISSION_SETTLED,
        Kind.WARNING,
        Kind.SUBMISSION_SETTLED,
        Kind.USER_MESSAGE,
        Kind.SUBMISSION_SETTLED,
    ]


@case("I6")
async def ids_increase_though_the_clock_steps_back(w: World) -> None:
    """Milliseconds never go back within a log, and the answer says those that were written."""
    run = await w.started()
    await w.subject.step_back(5_000)
    written = await run.append(run.write(run.note(), run.note()))
    await run.settle()

    records = await w.log()
    assert contiguous(records)
    assert [record.milliseconds for record in records] == sorted(record.milliseconds for record in records)
    assert {record.milliseconds for record in records[written.base : written.base + 2]} == {written.milliseconds}
    assert len(set(ids(records))) == len(records)


@case("I6")
async def a_reader_of_what_comes_after_misses_nothing(w: World) -> None:
    """Three writers of one log over two handles, and a reader that asks for more, always."""
    other = await w.subject.another()
    queued = await w.admit("d1", *(f"q{n}" for n in range(12)))
    run = await w.claim()
    await run.begin()
    seen: list[int] = []
    done: list[str] = []

    async def write() -> None:
        for _ in range(12):
            await run.append(run.write(run.note(), run.note()))
        done.append("write")

    async def cancel(first: int) -> None:
        for receipt in queued[first::2]:
            good((await other.cancel([w.cancelling(receipt.submission_id)]))[0])
        done.append("cancel")

    async def follow() -> None:
        while True:
            over = len(done) == 3
            page = await other.read(run.conversation, after=seen[-1] if seen else 0, limit=100)
            assert page is not None
            seen.extend(record.seq for record in page.records)
            if (over and not page.records) or len(seen) > 100:
                return
            await asyncio.sleep(0)

    await together(write(), cancel(1), cancel(2), follow())

    assert seen == list(range(1, len(seen) + 1)), "a record committed behind the reader's back"
    assert len(seen) == 2 + 24 + 12


@case("I6")
async def pages_are_cut_where_asked(w: World) -> None:
    """After an offset, up to a limit, with what the lane says; nothing of an unknown conversation."""
    run = await w.started()
    await run.append(run.write(*(run.note(str(n)) for n in range(5))))
    page = await w.store.read(run.conversation, after=2, limit=3)
    assert page is not None
    assert [record.seq for record in page.records] == [3, 4, 5]
    assert (page.last_seq, page.pruned_to, page.idle) == (7, 0, False)
    end = await w.store.read(run.conversation, after=7, limit=3)
    assert end is not None
    assert list(end.records) == []
    assert await w.store.read(NOWHERE, after=0, limit=3) is None
    await run.settle()

    last = await w.store.read(run.conversation, after=7, limit=3)
    assert last is not None
    assert (last.last_seq, last.idle) == (8, True)


@case("I6")
async def moved_names_the_logs_that_grew(w: World) -> None:
    """Beyond the position that the watcher has."""
    run = await w.started()
    await w.admit("d", key=w.key("quiet"))
    quiet = (await w.lane(w.key("quiet"))).id

    assert await w.store.moved({run.conversation: 1, quiet: 1, NOWHERE: 0}) == [run.conversation]
    assert list(await w.store.moved({run.conversation: 2, quiet: 1})) == []
    assert list(await w.store.moved({})) == []


@case("I6")
async def loading_leaves_deltas_out(w: World) -> None:
    """What an attempt starts from is context; the log keeps all."""
    run = await w.started()
    turn = TurnId("1.1.1")
    delta = run.draft(AssistantTextDelta(text="hel"), turn=turn)
    thought = run.draft(AssistantThinkingDelta(text="hm"), turn=turn)
    await run.append(run.write(run.begun(turn), delta, thought, run.aborted(turn)))

    loaded = await w.load()
    assert [record.seq for record in loaded.records] == [1, 2, 3, 6]
    assert loaded.lane == await w.lane()
    assert len(await w.log()) == 6


@case("I15")
async def what_is_written_is_what_is_read(w: World) -> None:
    """Bytes, to the last one: nothing is serialised again."""
    run = await w.started()
    odd = ['"n":123456789012345678901234567890,  "m":2.50', '"x":"\\u00e9 é 😀 \\ufffd"', '"x":"\\\\\\n" ']
    drafts = [
        Draft(
            kind=Kind.WARNING,
            body=run.note().body.replace(b'"code":"test"', f'"code":"test",{part}'.encode()),
            bits=bits,
            submission_id=run.submission,
        )
        for part, bits in zip(odd, (0, 1, 0xFFFF), strict=True)
    ]
    await run.append(run.write(*drafts))

    records = (await w.log())[2:]
    assert [record.body for record in records] == [draft.body for draft in drafts]
    assert [record.bits for record in records] == [0, 1, 0xFFFF]


@case("I14")
async def one_bad_write_stops_no_other(w: World) -> None:
    """A lost lane beside two that are held, in one batch."""
    runs = [await w.started("d", w.key(instance=f"i{n}")) for n in range(3)]
    await runs[1].release("handover")
    results: list[Appended | KubeharnessError] = list(
        await w.store.append([run.write(run.note(), run.note()) for run in runs])
    )

    good(results[0])
    refused(results[1], LaneLost)
    good(results[2])
    assert [(await w.lane(run.claimed.key)).last_seq for run in runs] == [4, 2, 4]


@case("I5")
async def several_writes_of_a_lane_fit_one_batch(w: World) -> None:
    """In order: two appends and, elsewhere, another's."""
    run = await w.started()
    other = await w.started("d", w.key("other"))
    first, second = run.write(run.note("1")), run.write(run.note("2"))
    results = await w.store.append([first, other.write(other.note()), second])

    assert [good(result).base for result in results] == [2, 2, 3]
    assert contiguous(await w.log())


CASES = (
    an_attempt_that_lost_the_lane_writes_nothing,
    an_attempt_whose_lane_was_reaped_writes_nothing,
    an_expired_lease_alone_takes_nothing,
    a_repeated_write_is_in_the_log_once,
    a_repeated_write_opens_no_call_twice,
    a_repeat_is_answered_after_settlement_and_release,
    a_gap_or_an_old_number_is_refused,
    a_stranger_writes_nothing,
    a_write_extends_the_lease,
    several_writes_of_a_lane_fit_one_batch,
    seqs_count_and_ids_increase_over_all_writers,
    ids_increase_though_the_clock_steps_back,
    a_reader_of_what_comes_after_misses_nothing,
    pages_are_cut_where_asked,
    moved_names_the_logs_that_grew,
    loading_leaves_deltas_out,
    what_is_written_is_what_is_read,
    one_bad_write_stops_no_other,
)
