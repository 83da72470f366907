"""The hub: replay, tail, shared frames, slow readers, lost hints, logs that were issued again."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeharness.core import codec
from kubeharness.core.dispatch import Address, DispatchMessage
from kubeharness.core.errors import InvalidRequest, NotFound, OffsetUnknown, Unavailable
from kubeharness.core.ids import ConversationId, SubmissionId, record_id
from kubeharness.core.records import StoredRecord
from kubeharness.engine.admission import Admissions, Order
from kubeharness.engine.feed import RING_BYTES, Feed, LogBroken
from kubeharness.engine.heads import Heads
from kubeharness.engine.ports import Page, Store
from kubeharness.engine.subscription import FOR_EVER, Subscription, Until
from kubeharness.engine.transcript import Transcripts
from kubeharness.store.memory import MemoryBackend, memory_store
from kubeharness.store.store import TransactionalStore
from kubeharness.store.wakers import LocalWaker
from support.playing import Attempt, WallClock, claim_one, publish, run_all


def line(record: StoredRecord) -> bytes:
    return codec.frame(record) + b"\n"


class Counted(MemoryBackend):
    """Counts what is read, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = 0
        self.polls = 0
        self.away = False

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Count."""
        if self.away:
            raise Unavailable("the database is away")
        self.pages += 1
        return await super().page(conversation, after=after, limit=limit)

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Count."""
        if self.away:
            raise Unavailable("the database is away")
        self.polls += 1
        return await super().moved(watched)


class Scene:
    """A store, a hub, and a conversation with an attempt in it."""

    def __init__(self, store: Store, waker: LocalWaker, hub: Transcripts) -> None:
        self.store = store
        self.waker = waker
        self.hub = hub
        self.heads = Heads(store, waker, WallClock(), "g1", "gateway", "shared")
        self.admissions = Admissions(store, waker, WallClock(), self.heads, lambda n: bytes(range(n)))

    async def dispatch(self, dispatch_id: str, instance: str = "s1") -> SubmissionId:
        order = Order(
            address=Address(namespace="default", agent="demo", instance=instance),
            message=DispatchMessage(kind="user", body="hello"),
            dispatch_id=dispatch_id,
        )
        return (await self.admissions.dispatch(order)).submission_id

    async def begin(self) -> Attempt:
        await self.dispatch("d1")
        attempt = await claim_one(self.store, self.waker)
        await attempt.hear()
        return attempt


@asynccontextmanager
async def scene(backend: MemoryBackend | None = None, *, poll_seconds: float = 60.0) -> AsyncIterator[Scene]:
    store = TransactionalStore(backend) if backend is not None else memory_store()
    waker = LocalWaker()
    await publish(store, "demo")
    hub = Transcripts(store, waker, framer=line, poll_seconds=poll_seconds)
    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(hub.run())
        await asyncio.sleep(0)
        yield Scene(store, waker, hub)
        life.cancel()


async def log(store: Store, conversation: ConversationId) -> list[bytes]:
    page = await store.read(conversation, after=0, limit=10_000)
    assert page is not None
    return [line(record) for record in page.records]


async def drain(subscription: Subscription, *, seconds: float = 5.0) -> bytes:
    """Everything up to the end."""
    received = b""
    async with asyncio.timeout(seconds):
        while (chunk := await subscription.chunk(0.5)) is not None:
            received += chunk
    return received


async def take(subscription: Subscription, count: int, *, seconds: float = 5.0) -> bytes:
    """So many frames."""
    received = b""
    async with asyncio.timeout(seconds):
        while received.count(b"\n") < count:
            chunk = await subscription.chunk(0.5)
            assert chunk is not None
            received += chunk
    return received


async def test_a_thousand_readers_cost_one_read_an_append() -> None:
    backend = Counted()
    async with scene(backend) as at, asyncio.TaskGroup() as tasks:
        attempt = await at.begin()
        ready = asyncio.Semaphore(0)

        async def reader() -> bytes:
            async with at.hub.follow(attempt.conversation, after=None, until=Until(idle=True)) as subscription:
                first = await take(subscription, 2)
                ready.release()
                return first + await drain(subscription, seconds=20)

        readers = [tasks.create_task(reader()) for _ in range(300)]
        for _ in readers:
            await ready.acquire()
        before = backend.pages
        await attempt.start()
        for n in range(20):
            await attempt.delta(f"{n}")
            await asyncio.sleep(0.01)
        tail_reads = backend.pages - before
        await attempt.complete("".join(str(n) for n in range(20)))
        await attempt.settle()
    whole = b"".join(await log(at.store, attempt.conversation))

    assert {reader.result() for reader in readers} == {whole}
    assert tail_reads <= 21


async def test_a_slow_reader_reads_the_store_and_memory_stays_bounded_c24() -> None:
    async with scene() as at:
        attempt = await at.begin()
        async with at.hub.follow(attempt.conversation, after=None) as slow:
            await take(slow, 2)
            await attempt.start()
            for _ in range(100):
                await attempt.delta("x" * 20_000)
                await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            feed = at.hub._feeds[attempt.conversation]
            assert feed.tail == 103
            assert feed.size <= RING_BYTES
            rest = await take(slow, 101)
        expected = b"".join((await log(at.store, attempt.conversation))[2:])

        assert rest == expected
        assert at.hub.watched == 0


async def test_a_lost_hint_costs_one_poll() -> None:
    backend = Counted()
    async with scene(backend, poll_seconds=0.1) as at:
        attempt = await at.begin()
        attempt.waker = LocalWaker()  # nobody hears it
        async with at.hub.follow(attempt.conversation, after=None) as subscription:
            await take(subscription, 2)
            await attempt.start()
            await take(subscription, 1)

    assert backend.polls > 0


class Held(MemoryBackend):
    """Answers the first page late: what it saw is old by then."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Look, then wait."""
        page = await super().page(conversation, after=after, limit=limit)
        if not self.asked.is_set():
            self.asked.set()
            await self.go.wait()
        return page


async def test_a_hint_that_comes_before_the_first_page_is_kept() -> None:
    backend = Held()
    async with scene(backend) as at, asyncio.TaskGroup() as tasks:
        attempt = await at.begin()

        async def reader() -> bytes:
            async with at.hub.follow(attempt.conversation, after=None) as subscription:
                return await take(subscription, 3)

        reading = tasks.create_task(reader())
        await backend.asked.wait()
        await attempt.start()
        await asyncio.sleep(0.02)
        backend.go.set()

    assert reading.result().count(b"\n") == 3


async def test_idle_is_asked_of_the_store_where_a_hint_was_lost() -> None:
    """Another gateway admitted, and its hint never came: what this one knows is old, and must not end a stream."""
    async with scene() as at, asyncio.TaskGroup() as tasks:
        attempt = await at.begin()
        conversation = attempt.conversation
        deaf = Scene(at.store, LocalWaker(), at.hub)
        async with at.hub.follow(conversation, after=None) as holding:
            await take(holding, 2)
            await attempt.settle()
            await take(holding, 1)
            assert at.hub._feeds[conversation].idle
            await deaf.dispatch("d2")

            async def reader() -> bytes:
                async with at.hub.follow(conversation, after=None, until=Until(idle=True)) as subscription:
                    return await drain(subscription)

            reading = tasks.create_task(reader())
            await asyncio.sleep(0.05)
            assert not reading.done()
            await run_all(at.store, at.waker)
        whole = b"".join(await log(at.store, conversation))

    assert reading.result() == whole


async def test_what_came_without_a_hint_is_read_before_a_stream_ends_as_idle() -> None:
    async with scene() as at:
        attempt = await at.begin()
        conversation = attempt.conversation
        await attempt.settle()
        async with at.hub.follow(conversation, after=None, until=Until(idle=True)) as subscription:
            await Scene(at.store, LocalWaker(), at.hub).dispatch("d2")
            await run_all(at.store, LocalWaker())
            received = await drain(subscription)

        assert received == b"".join(await log(at.store, conversation))


async def test_an_outage_is_a_silence_and_nothing_is_missed() -> None:
    backend = Counted()
    async with scene(backend, poll_seconds=0.05) as at:
        attempt = await at.begin()
        async with at.hub.follow(attempt.conversation, after=None) as subscription:
            received = await take(subscription, 2)
            backend.away = True
            await attempt.start()
            for n in range(5):
                await attempt.delta(f"{n}")
            assert await subscription.chunk(0.3) == b""
            backend.away = False
            received += await take(subscription, 6)
        expected = b"".join(await log(at.store, attempt.conversation))

    assert received == expected


async def test_offsets_are_decided_before_anything_is_read() -> None:
    async with scene() as at:
        attempt = await at.begin()
        page = await at.store.read(attempt.conversation, after=0, limit=10)
        assert page is not None
        last = page.records[-1]
        good = record_id(last.milliseconds, last.seq, last.bits)
        for offset, error in (
            (record_id(last.milliseconds, last.seq, last.bits ^ 1), OffsetUnknown),
            (record_id(last.milliseconds, last.seq + 1, last.bits), OffsetUnknown),
            (record_id(last.milliseconds, 0, 0), OffsetUnknown),
            (record_id(last.milliseconds, 2**64 - 1, 0), OffsetUnknown),
            ("nonsense", InvalidRequest),
        ):
            with pytest.raises(error) as caught:
                async with at.hub.follow(attempt.conversation, after=offset):
                    pass
            if isinstance(caught.value, OffsetUnknown):
                assert caught.value.head == good
        with pytest.raises(OffsetUnknown):
            async with at.hub.follow(ConversationId("conv_none"), after=good):
                pass
        with pytest.raises(NotFound):
            async with at.hub.follow(attempt.conversation, after=None, until=Until(settled=SubmissionId("sub_none"))):
                pass
        async with at.hub.follow(attempt.conversation, after=good) as subscription:
            assert await subscription.chunk(0.01) == b""
        assert at.hub.watched == 0


class Pruned(MemoryBackend):
    """A log whose deltas up to a seq are gone."""

    pruned_to = 0

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Leave out what is pruned."""
        page = await super().page(conversation, after=after, limit=limit)
        if page is None:
            return None
        kept = [r for r in page.records if r.seq > self.pruned_to or not r.kind.endswith("_delta")]
        return replace(page, records=kept, pruned_to=self.pruned_to)


async def test_a_pruned_offset_is_valid_and_gaps_below_it_are_legal() -> None:
    backend = Pruned()
    async with scene(backend) as at:
        attempt = await at.begin()
        await attempt.say("a", "b")
        await attempt.settle()
        page = await at.store.read(attempt.conversation, after=0, limit=100)
        assert page is not None
        delta = next(record for record in page.records if record.kind.endswith("_delta"))
        backend.pruned_to = delta.seq + 1
        offset = record_id(delta.milliseconds, delta.seq, delta.bits)
        async with at.hub.follow(attempt.conversation, after=offset, until=Until(idle=True)) as subscription:
            rest = await drain(subscription)
        async with at.hub.follow(attempt.conversation, after=None, until=Until(idle=True)) as subscription:
            whole = await drain(subscription)

    assert rest == b"".join(line(r) for r in page.records if r.seq > delta.seq + 1)
    assert whole.count(b"\n") == len(page.records) - 2


class Reissued(MemoryBackend):
    """A replica that lost commits and gave their places to others."""

    bits: int | None = None

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with other random bits."""
        page = await super().page(conversation, after=after, limit=limit)
        if page is None or self.bits is None:
            return page
        return replace(page, records=[replace(record, bits=self.bits) for record in page.records])


async def test_a_reader_of_a_log_that_was_issued_again_is_sent_away_and_told() -> None:
    backend = Reissued()
    async with scene(backend) as at:
        attempt = await at.begin()
        async with at.hub.follow(attempt.conversation, after=None) as subscription:
            await take(subscription, 2)
            await attempt.start()
            last = (await take(subscription, 1)).decode()
            backend.bits = 7
            at.waker.everything()  # what a listener says after its connection was cut
            assert await drain(subscription) == b""
        offset = last.split('"')[3]
        with pytest.raises(OffsetUnknown):
            async with at.hub.follow(attempt.conversation, after=offset):
                pass


async def test_waiters_are_woken_and_cost_no_polling() -> None:
    backend = Counted()
    async with scene(backend) as at:
        submission = await at.dispatch("d1")
        view = await at.hub.lookup(submission)
        assert view is not None
        async with asyncio.TaskGroup() as tasks:
            waiters = [tasks.create_task(at.hub.wait_settled(view, 30)) for _ in range(100)]
            await asyncio.sleep(0.05)
            before = backend.pages
            await run_all(at.store, at.waker)
        again = await at.hub.wait_settled(view, 0.01)

        assert all(waiter.result().settled is not None for waiter in waiters)
        assert again.settled is not None
        assert backend.pages - before < 12
        assert at.hub.watched == 0


async def test_a_waiter_gives_up_in_time() -> None:
    async with scene() as at:
        view = await at.hub.lookup(await at.dispatch("d1"))
        assert view is not None
        now = await at.hub.wait_settled(view, 0.05)

        assert now.settled is None
        assert at.hub.watched == 0


async def test_a_settlement_between_the_look_and_the_wait_is_not_missed() -> None:
    for _ in range(50):
        async with scene() as at:
            view = await at.hub.lookup(await at.dispatch("d1"))
            assert view is not None
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(at.hub.wait_settled(view, 5))
                tasks.create_task(run_all(at.store, at.waker))

            assert waiting.result().settled is not None


async def test_a_stop_ends_streams_and_waiters() -> None:
    async with scene() as at:
        attempt = await at.begin()
        view = await at.hub.lookup(attempt.claimed.submission_id)
        assert view is not None
        async with asyncio.TaskGroup() as tasks, at.hub.follow(attempt.conversation, after=None) as subscription:
            waiting = tasks.create_task(at.hub.wait_settled(view, 30))
            await take(subscription, 2)
            at.hub.stop(0.1)
            async with at.hub.follow(attempt.conversation, after=None) as late:
                assert await drain(subscription, seconds=2) == b""
                await drain(late, seconds=2)  # one that comes while it closes is served, and goes with the rest
        assert waiting.result().settled is None
        await asyncio.sleep(0.2)
        with pytest.raises(Unavailable):
            async with at.hub.follow(attempt.conversation, after=None):
                pass


async def test_a_joiner_in_the_middle_of_writes_sees_each_record_once() -> None:
    async with scene() as at, asyncio.TaskGroup() as tasks:
        attempt = await at.begin()
        await attempt.start()

        async def reader(after: str | None) -> bytes:
            async with at.hub.follow(attempt.conversation, after=after, until=Until(idle=True)) as subscription:
                return await drain(subscription, seconds=20)

        readers = []
        for n in range(60):
            await attempt.delta(f"{n} " * 200)
            readers.append(tasks.create_task(reader(None)))
            if n % 3 == 0:
                await asyncio.sleep(0)
        await attempt.complete("x")
        await attempt.settle()
    whole = b"".join(await log(at.store, attempt.conversation))

    assert {reader.result() for reader in readers} == {whole}


def stored(seq: int, *, size: int = 10, bits: int = 1) -> StoredRecord:
    body = b'{"kind":"warning","conversationId":"c","session":"s","payload":"' + b"x" * size + b'"}'
    return StoredRecord(seq=seq, milliseconds=1, bits=bits, kind="warning", body=body)


@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 60), st.integers(1, 5_000))
def test_the_ring_gives_what_follows_or_says_that_it_lost_it(sizes: list[int], at: int, limit: int) -> None:
    feed = Feed(ConversationId("c"), line)
    feed.begin(0, idle=False)
    feed.readers = 1
    records = [stored(seq, size=size * 1000) for seq, size in enumerate(sizes, 1)]
    for record in records:
        feed.take(Page(records=[record], last_seq=record.seq, pruned_to=0, idle=False))
    at = min(at, len(records))
    found = feed.after(at, limit)

    assert feed.size == sum(len(entry.frame) for entry in feed.ring) <= RING_BYTES
    if at < feed.floor:
        assert found is None
    else:
        assert found is not None
        expected = records[at : at + len(found)]
        assert [entry.frame for entry in found] == [line(record) for record in expected]
        assert bool(found) == (at < len(records))


def test_a_gap_in_a_log_is_no_log() -> None:
    feed = Feed(ConversationId("c"), line)
    feed.begin(3, idle=False)
    with pytest.raises(LogBroken):
        feed.take(Page(records=[stored(5)], last_seq=5, pruned_to=0, idle=False))
    with pytest.raises(LogBroken):
        feed.take(Page(records=[], last_seq=2, pruned_to=0, idle=False))
    feed.take(Page(records=[stored(6)], last_seq=6, pruned_to=5, idle=False))
    assert feed.tail == 6
    assert Until() == FOR_EVER
