"""Micro-batches: items of many callers in few transactions, without a wait when nothing else is on its way.

A free write connection takes what is there at once; while all are busy, items gather. A caller is answered after
the commit of its transaction, and each item by itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from kubeharness.core.errors import Unavailable
from kubeharness.store import verbs
from kubeharness.store.backend import RaceLost, Transaction
from kubeharness.store.postgres.database import LockedTooLong
from kubeharness.store.postgres.guarded import GuardedTransaction, Stale, guardable
from kubeharness.store.verbs import Item, Result

Guarded = Callable[[], AbstractAsyncContextManager[Callable[[Sequence[Item]], GuardedTransaction]]]
"""Takes a write connection and gives what makes a transaction for these items on it."""

MOST_ITEMS = 32
MOST_BYTES = 1 << 20
CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Call:
    """The items of one caller and the place where it waits for their answers."""

    items: Sequence[Item]
    answer: asyncio.Future[list[Result]]
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Weigh what goes over the wire, roughly: the records."""
        self.size = sum(len(draft.body) for item in self.items for draft in getattr(item, "drafts", ()))


class Batcher:
    """Merges calls into transactions; `singly` runs one call alone when a merged batch failed (I14).

    With `guarded` a batch is tried as one guarded statement first, and under locks if that does not fit.
    """

    def __init__(
        self,
        transaction: Callable[[], AbstractAsyncContextManager[Transaction]],
        singly: Callable[[Sequence[Item]], Awaitable[list[Result]]],
        guarded: Guarded | None = None,
    ) -> None:
        self._transaction = transaction
        self._singly = singly
        self._guarded = guarded
        self._queue: asyncio.Queue[Call] = asyncio.Queue()
        self._open = 0
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def execute(self, items: Sequence[Item]) -> list[Result]:
        """Answer these items, in order. Raises Unavailable: then they may or may not be stored."""
        if not items:
            return []
        if self._closing:
            raise Unavailable("this process is closing")
        call = Call(items, asyncio.get_running_loop().create_future())
        self._open += 1
        self._idle.clear()
        call.answer.add_done_callback(self._answered)
        self._queue.put_nowait(call)
        return await call.answer

    def _answered(self, _: object) -> None:
        self._open -= 1
        if self._open == 0:
            self._idle.set()

    async def serve(self) -> None:
        """Serve calls until cancelled: one such task for each write connection."""
        while True:
            first = await self._queue.get()
            if first.answer.done():
                continue
            calls = [first]
            try:
                await self._serve(calls)
            except asyncio.CancelledError:
                _fail(calls, Unavailable("this process is closing"))
                raise

    async def close(self) -> None:
        """Take no more calls, and let those that wait be served."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d calls were not answered before the store closed", self._open)

    async def _serve(self, calls: list[Call]) -> None:
        """One batch. `calls` holds the first and takes up the others once the transaction is open."""
        try:
            results = await self._try_guarded(self._guarded, calls) if self._guarded is not None else None
            if results is None:
                async with self._transaction() as tx:
                    self._gather(calls)
                    results = await verbs.execute(tx, [item for call in calls for item in call.items])
        except (RaceLost, LockedTooLong) as race:
            log.debug("a batch of %d calls is run again singly: %s", len(calls), race)
            await self._serve_singly(calls)
        except Unavailable as error:
            _fail(calls, error)
        except Exception:
            log.exception("a batch of %d calls failed and is run again singly", len(calls))
            await self._serve_singly(calls)
        else:
            for call in calls:
                mine, results = results[: len(call.items)], results[len(call.items) :]
                if not call.answer.done():
                    call.answer.set_result(mine)

    async def _try_guarded(self, guarded: Guarded, calls: list[Call]) -> list[Result] | None:
        """The batch as one guarded statement; None if nothing of it is stored: it has to be done under locks."""
        tx: GuardedTransaction | None = None
        try:
            async with guarded() as begin:
                self._gather(calls)
                items = [item for call in calls for item in call.items]
                if not guardable(items):
                    return None
                tx = begin(items)
                results = await verbs.execute(tx, items)
                return results if tx.stored else None
        except (Stale, RaceLost):
            return None
        except Unavailable:
            if tx is not None and tx.sent:
                raise
            return None  # only reads have failed: a connection that died while nobody used it is replaced unseen

    def _gather(self, calls: list[Call]) -> None:
        """Take up what has come meanwhile, within bounds; whole calls only."""
        items = sum(len(call.items) for call in calls)
        size = sum(call.size for call in calls)
        while items < MOST_ITEMS and size < MOST_BYTES and not self._queue.empty():
            call = self._queue.get_nowait()
            if call.answer.done():  # its caller has gone, and nothing of it was begun
                continue
            calls.append(call)
            items += len(call.items)
            size += call.size

    async def _serve_singly(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.answer.done():
                continue
            try:
                results = await self._singly(call.items)
            except Unavailable as error:
                _fail([call], error)
            else:
                if not call.answer.done():
                    call.answer.set_result(results)


def _fail(calls: Sequence[Call], error: Unavailable) -> None:
    """Each caller gets an error of its own: a shared one would gather the tracebacks of all."""
    for call in calls:
        if not call.answer.done():
            mine = type(error).__new__(type(error))
            mine.args = error.args
            mine.__cause__ = error.__cause__ or error
            call.answer.set_exception(mine)
