"""Reading logs: replay from an offset, then the live tail, for any number of readers in one process.

One reader task follows the waker and reads each watched log once per change, whatever the number of its readers;
they follow the shared ring with a cursor each. One that falls out of the ring, or joins, reads the store itself:
it is never skipped and never makes memory grow. A reader that asks for "after X" misses nothing (I6).
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kubeharness.core.errors import InvalidRequest, KubeharnessError, NotFound, OffsetUnknown, Unavailable
from kubeharness.core.ids import ConversationId, Offset, SubmissionId, parse_record_id, record_id
from kubeharness.core.records import StoredRecord
from kubeharness.engine.feed import Feed, Framer, LogBroken
from kubeharness.engine.patience import Trouble, answering, backoff, jittered
from kubeharness.engine.ports import Page, Store, SubmissionView, Waker
from kubeharness.engine.subscription import FIRST_PAGE, FOR_EVER, Subscription, Until

log = logging.getLogger(__name__)

TAIL_PAGE = 256
TOGETHER = 32
"""Logs read at the same time; a store may merge them into one statement."""
REPLAYS = 8
"""Pages that readers read for themselves at the same time."""
END_OF_LOG = 2**63 - 1


class Transcripts:
    """The hub of one process. `run` must be running for anything live to arrive."""

    def __init__(self, store: Store, waker: Waker, *, framer: Framer, poll_seconds: float = 1.0) -> None:
        self._store = store
        self._waker = waker
        self._framer = framer
        self._poll_seconds = poll_seconds
        self._feeds: dict[ConversationId, Feed] = {}
        self._dirty: set[ConversationId] = set()
        self._roused = asyncio.Event()
        self._replays = asyncio.Semaphore(REPLAYS)
        self._subscriptions: set[Subscription] = set()
        self._stopping = False
        self._closes_at = 0.0

    @property
    def watched(self) -> int:
        """How many logs have a reader or a waiter here."""
        return len(self._feeds)

    @asynccontextmanager
    async def follow(
        self, conversation: ConversationId, *, after: str | None, until: Until = FOR_EVER
    ) -> AsyncIterator[Subscription]:
        """Follow a log from an offset, exclusive; it need not exist yet.

        Raises InvalidRequest, OffsetUnknown and NotFound before anything is read from the subscription.
        """
        loop = asyncio.get_running_loop()
        if self._stopping and loop.time() >= self._closes_at:
            raise Unavailable("the gateway is closing")
        feed = self._use(conversation)
        feed.readers += 1
        try:
            subscription = await self._open(feed, after, until)
            self._subscriptions.add(subscription)
            if self._stopping:  # it came while balancers still send readers here: it is served, and goes with the rest
                subscription.leave_at(random.uniform(loop.time(), self._closes_at))
            try:
                yield subscription
            finally:
                self._subscriptions.discard(subscription)
                subscription.close()
        finally:
            feed.readers -= 1
            self._leave(feed)

    async def wait_settled(self, view: SubmissionView, seconds: float) -> SubmissionView:
        """The submission once it is settled, or as it is when the time is over. Woken, never polling."""
        deadline = asyncio.get_running_loop().time() + seconds
        feed_broke = True
        while feed_broke and view.settled is None and not self._stopping:
            view, feed_broke = await self._woken(view, deadline)
        return view

    async def _woken(self, view: SubmissionView, deadline: float) -> tuple[SubmissionView, bool]:
        submission = view.submission_id
        feed = self._use(view.conversation_id)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        feed.waiting.setdefault(submission, set()).add(waiter)
        try:
            # Registered first and asked second: a settlement is either seen by this look or brought by the feed.
            await self._reach(feed)
            now = await self.lookup(submission) or view
            if now.settled is not None:
                return now, False
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return now, False
            return await self.lookup(submission) or now, feed.broken
        finally:
            waiters = feed.waiting.get(submission, set())
            waiters.discard(waiter)
            if not waiters:
                feed.waiting.pop(submission, None)
            self._leave(feed)

    async def lookup(self, submission: SubmissionId) -> SubmissionView | None:
        """The submission as it stands. Raises Unavailable."""
        async with answering():
            return await self._store.lookup(submission)

    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records after a seq, as one reader asks for them. Raises Unavailable."""
        async with self._replays, answering():
            return await self._store.read(conversation, after=after, limit=limit)

    async def page_from(
        self, conversation: ConversationId, *, after: str | None, limit: int
    ) -> tuple[int, Page | None]:
        """The seq of an offset and the records behind it. Raises InvalidRequest, OffsetUnknown, Unavailable."""
        if not after:
            return 0, await self.page(conversation, after=0, limit=limit)
        offset = _parsed(after)
        page = None
        if 0 < offset.seq < END_OF_LOG:
            page = await self.page(conversation, after=offset.seq - 1, limit=limit + 1)
        if page is None or not (offset.seq <= page.pruned_to or _starts_with(page.records, offset)):
            raise OffsetUnknown(after, await self._head(conversation))
        rest = [record for record in page.records if record.seq > offset.seq][:limit]
        return offset.seq, Page(records=rest, last_seq=page.last_seq, pruned_to=page.pruned_to, idle=page.idle)

    def stop(self, within: float) -> None:
        """End every stream, each at its own moment within so many seconds; waiters answer at once."""
        self._stopping = True
        now = asyncio.get_running_loop().time()
        self._closes_at = now + within
        for subscription in self._subscriptions:
            subscription.leave_at(now + random.uniform(0, within))
        for feed in self._feeds.values():
            feed.tell_waiters()
            feed.wake()

    async def run(self) -> None:
        """Bring what is appended to the feeds, until cancelled. A lost hint costs one poll."""
        end = self._waker.on_log(self._mark)
        failures = 0
        trouble = Trouble(log, "logs are not followed")
        loop = asyncio.get_running_loop()
        poll_at = loop.time() + jittered(self._poll_seconds)
        try:
            while True:
                try:
                    async with asyncio.timeout_at(poll_at):
                        await self._roused.wait()
                except TimeoutError:
                    pass
                self._roused.clear()
                try:
                    if loop.time() >= poll_at:
                        poll_at = loop.time() + jittered(self._poll_seconds)
                        await self._poll()
                    await self._read_dirty()
                    failures = 0
                    trouble.over()
                except Unavailable as gone:
                    failures += 1
                    trouble.met(gone)
                    self._mark(None)  # after an outage the log may be another one
                    await asyncio.sleep(backoff(failures))
        finally:
            end()

    def _mark(self, conversations: Sequence[ConversationId] | None) -> None:
        if conversations is None:
            for feed in self._feeds.values():
                feed.suspect = True
            self._dirty.update(self._feeds)
        else:
            self._dirty.update(c for c in conversations if c in self._feeds)
        if self._dirty:
            self._roused.set()

    async def _poll(self) -> None:
        watched = {c: feed.tail for c, feed in self._feeds.items() if feed.tail is not None}
        if watched:
            async with answering():
                self._mark(await self._store.moved(watched))

    async def _read_dirty(self) -> None:
        while self._dirty:
            batch = [self._dirty.pop() for _ in range(min(TOGETHER, len(self._dirty)))]
            feeds = [self._feeds[c] for c in batch if c in self._feeds]
            failed: list[Unavailable] = []
            if len(feeds) == 1:
                await self._advance(feeds[0], failed)
            else:
                async with asyncio.TaskGroup() as reads:
                    for feed in feeds:
                        reads.create_task(self._advance(feed, failed))
            if failed:
                raise failed[0]

    async def _advance(self, feed: Feed, failed: list[Unavailable]) -> None:
        """Read what follows a feed's tail. One log that cannot be read disturbs no other (I14)."""
        if feed.tail is None:
            feed.early = True
            return
        try:
            async with answering():
                page = await self._store.read(feed.conversation, after=feed.read_after(), limit=TAIL_PAGE)
            if page is not None and feed.take(page):
                self._dirty.add(feed.conversation)
        except Unavailable as gone:
            self._dirty.add(feed.conversation)
            failed.append(gone)
        except (LogBroken, KubeharnessError):
            log.exception("transcripts: %s is read anew", feed.conversation)
            if self._feeds.get(feed.conversation) is feed:
                del self._feeds[feed.conversation]
            feed.break_off()

    def _use(self, conversation: ConversationId) -> Feed:
        feed = self._feeds.get(conversation)
        if feed is None:
            feed = self._feeds[conversation] = Feed(conversation, self._framer)
        feed.users += 1
        return feed

    def _leave(self, feed: Feed) -> None:
        feed.users -= 1
        if feed.users == 0 and self._feeds.get(feed.conversation) is feed:
            del self._feeds[feed.conversation]

    def _begin(self, feed: Feed, page: Page | None) -> None:
        feed.begin(page.last_seq if page else 0, idle=page.idle if page else True)
        if feed.early:
            feed.early = False
            self._mark([feed.conversation])

    async def _reach(self, feed: Feed) -> None:
        if feed.tail is None:
            self._begin(feed, await self.page(feed.conversation, after=END_OF_LOG, limit=1))

    async def _open(self, feed: Feed, after: str | None, until: Until) -> Subscription:
        ends_at: int | None = None
        if until.settled is not None:
            view = await self.lookup(until.settled)
            if view is None or view.conversation_id != feed.conversation:
                raise NotFound(f"submission {until.settled!r} in this session")
            ends_at = view.settled.seq if view.settled else None
        at, page = await self.page_from(feed.conversation, after=after, limit=FIRST_PAGE)
        self._begin(feed, page)

        async def read(after: int, limit: int) -> Page | None:
            return await self.page(feed.conversation, after=after, limit=limit)

        return Subscription(read, feed, at=at, page=page, until=until, ends_at=ends_at)

    async def _head(self, conversation: ConversationId) -> str | None:
        end = await self.page(conversation, after=END_OF_LOG, limit=1)
        if end is None or end.last_seq == 0:
            return None
        last = await self.page(conversation, after=end.last_seq - 1, limit=1)
        if last is None or not last.records:
            return None
        record = last.records[0]
        return record_id(record.milliseconds, record.seq, record.bits)


def _parsed(after: str) -> Offset:
    try:
        return parse_record_id(after)
    except ValueError:
        raise InvalidRequest("after", "give the id of a record, 26 characters, or leave it out") from None


def _starts_with(records: Sequence[StoredRecord], offset: Offset) -> bool:
    if not records:
        return False
    first = records[0]
    return (first.seq, first.milliseconds, first.bits) == (offset.seq, offset.milliseconds, offset.bits)
