"""The heartbeat: renews all of a worker's attempts at a third of the lease and tells each what its lane says.

It runs on a thread and connection of its own, so no tool or model code can starve it (I14, C04).
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId
from kubeharness.engine.patience import Trouble, answering
from kubeharness.engine.ports import Renewal

log = logging.getLogger(__name__)

HASTE_SECONDS = 0.2
RETRY_SECONDS = 0.5
GOODBYE_SECONDS = 1.0
SHORTEST_WAIT_SECONDS = 1.0
"""A renewal is given up on, and asked on a fresh connection, after a third of a lease, but not before this."""

Renew = Callable[[Sequence[AttemptId]], Awaitable[Sequence[Renewal]]]
OpenRenewer = Callable[[], AbstractAsyncContextManager[Renew]]
"""Opens a renewal of its own in whatever event loop it is entered in."""


class Lease:
    """Holds the attempts of one worker. `own_thread` False renews on the caller's loop (memory store only)."""

    def __init__(self, open_renewer: OpenRenewer, *, lease_ms: int, own_thread: bool = True) -> None:
        self._open = open_renewer
        self._every = lease_ms / 3000
        self._own_thread = own_thread
        self._held: dict[AttemptId, Callable[[Renewal], None]] = {}
        self._lock = threading.Lock()
        self._hasten: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None

    def hold(self, attempt: AttemptId, learn: Callable[[Renewal], None]) -> None:
        """Renew this attempt from now on; `learn` is called on the worker's loop."""
        with self._lock:
            self._held[attempt] = learn

    def drop(self, attempt: AttemptId) -> None:
        """Renew it no more."""
        with self._lock:
            self._held.pop(attempt, None)

    def hasten(self) -> None:
        """Renew soon: a hint says that a cancel or a message may have come."""
        with self._lock:
            if self._held:
                self._hasten()

    async def run(self) -> None:
        """Renew until cancelled."""
        self._loop = asyncio.get_running_loop()
        stop = threading.Event()
        if not self._own_thread:
            await self._renew_for_ever(stop)
            return
        ended = asyncio.Event()
        loop = self._loop

        def body() -> None:
            try:
                asyncio.run(self._renew_for_ever(stop))
            except Exception:
                log.exception("the lease thread died")
            finally:
                try:
                    loop.call_soon_threadsafe(ended.set)
                except RuntimeError:
                    pass  # the worker's loop is closed already

        thread = threading.Thread(target=body, name="lease", daemon=True)
        thread.start()
        try:
            await ended.wait()
            raise RuntimeError("the lease thread ended")
        finally:
            stop.set()
            with self._lock:
                self._hasten()
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await ended.wait()
            except TimeoutError:
                log.warning("the lease thread is left behind in a renewal")

    async def _renew_for_ever(self, stop: threading.Event) -> None:
        mine = asyncio.get_running_loop()
        hurry = asyncio.Event()
        trouble = Trouble(log, "leases are not renewed")
        with self._lock:
            self._hasten = lambda: None if mine.is_closed() else _ignore(mine.call_soon_threadsafe(hurry.set))
        while not stop.is_set():
            try:
                async with self._open() as renew:
                    while not stop.is_set():
                        await self._renew_once(renew)
                        trouble.over()
                        await _first_of(hurry, self._every, stop)
            except Unavailable as error:
                trouble.met(error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # renewal must go on: a lease lost is work done twice
                log.exception("renewal failed")
                await asyncio.sleep(RETRY_SECONDS)

    async def _renew_once(self, renew: Renew) -> None:
        with self._lock:
            held = list(self._held)
        if not held or self._loop is None:
            return
        async with answering(max(SHORTEST_WAIT_SECONDS, self._every)):
            renewals = await renew(held)
        for renewal in renewals:
            with self._lock:
                learn = self._held.get(renewal.attempt)
            if learn is not None:
                self._loop.call_soon_threadsafe(learn, renewal)


async def _first_of(hurry: asyncio.Event, seconds: float, stop: threading.Event) -> None:
    """Wait for the next beat, or for haste, which is bounded to five a second."""
    try:
        async with asyncio.timeout(seconds):
            await hurry.wait()
            if not stop.is_set():
                await asyncio.sleep(HASTE_SECONDS)
            hurry.clear()
    except TimeoutError:
        hurry.clear()


def _ignore(_: object) -> None:
    return None
