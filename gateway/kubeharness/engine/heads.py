"""Which agents there are: the heads that this process has loaded, kept close to the store's head clock.

A process acknowledges a head clock only once all up to it is loaded; that is what Programmed means in a status.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from kubeharness.core.errors import Unavailable
from kubeharness.engine.patience import Trouble, answering, backoff, jittered
from kubeharness.engine.ports import Clock, Component, Head, Store, Waker

log = logging.getLogger(__name__)

FRESH_SECONDS = 30.0
BEAT_SECONDS = 20.0
SPACING_SECONDS = 0.25
"""Between two loads or beats, however many hints come."""
RETRY_REFUSED_SECONDS = 20.0

Prepare = Callable[[Head], Awaitable[None]]
"""Loads what a head needs before its version is acknowledged; what it raises becomes a refusal."""


class Heads:
    """The loaded heads of one process, and its acknowledgement of them.

    `applied` never passes a head that `prepare` refused, until a later version of that head is accepted; the
    refused one is tried again now and then, and the one before it goes on serving meanwhile.
    """

    def __init__(
        self,
        store: Store,
        waker: Waker,
        clock: Clock,
        component_id: str,
        role: str,
        pool: str,
        formats: Sequence[int] = (1,),
        prepare: Prepare | None = None,
        poll_seconds: float = 1.0,
        release: str = "",
    ) -> None:
        self._store = store
        self._waker = waker
        self._clock = clock
        self._component_id = component_id
        self._role = role
        self._pool = pool
        self._formats = tuple(formats)
        self._prepare = prepare
        self._poll_seconds = poll_seconds
        self._release = release
        self._heads: dict[tuple[str, str], Head] = {}
        self._refused: dict[tuple[str, str], Head] = {}
        self._retry_refused_at = 0.0
        self._cursor = 0
        self._loaded_at: float | None = None
        self._beaten: tuple[int, float] | None = None
        self._wanted: int | None = None
        self._caught_up = asyncio.Event()
        self._hint = asyncio.Event()
        self._loading = asyncio.Lock()
        self._draining = False

    def find(self, namespace: str, name: str) -> Head | None:
        """The agent's head, if this process knows of it."""
        return self._heads.get((namespace, name))

    async def look(self, namespace: str, name: str) -> Head | None:
        """The same, after one more look at the store if the agent is missing or has nothing to run.

        An Agent that another gateway has acknowledged a moment ago is found here too. Raises Unavailable.
        """
        head = self.find(namespace, name)
        if head is None or head.active is None:
            await self.refresh()
            head = self.find(namespace, name)
        return head

    @property
    def applied(self) -> int:
        """The head clock up to which everything is loaded."""
        return min([self._cursor, *(head.version - 1 for head in self._refused.values())])

    @property
    def fresh(self) -> bool:
        """The last successful look at the store is at most 30 seconds old."""
        return self._loaded_at is not None and self._clock.monotonic() - self._loaded_at <= FRESH_SECONDS

    @property
    def caught_up(self) -> bool:
        """The head clock that stood when this process first looked is loaded."""
        return self._caught_up.is_set()

    async def wait_caught_up(self) -> None:
        """Return once `caught_up`; the caller limits the wait."""
        await self._caught_up.wait()

    async def refresh(self) -> None:
        """Load what was published; callers that wait for the same look share it. Raises Unavailable."""
        asked = self._clock.monotonic()
        async with self._loading:
            if self._loaded_at is None or self._loaded_at <= asked:
                await self._load(asked_at=self._clock.monotonic())

    async def run(self) -> None:
        """Keep up with the store until cancelled. A store that does not answer is asked again, with back-off."""
        end = self._waker.on_work(self._hint.set)
        failures = 0
        trouble = Trouble(log, "heads are not followed")
        try:
            while True:
                self._hint.clear()
                try:
                    await self.refresh()
                    await self._beat_if_due()
                except Unavailable as gone:
                    failures += 1
                    trouble.met(gone)
                    await asyncio.sleep(backoff(failures))
                    continue
                except Exception:  # a row that cannot be read must not end the process, again and again
                    failures += 1
                    log.exception("heads are not followed")
                    await asyncio.sleep(backoff(failures))
                    continue
                failures = 0
                trouble.over()
                await self._pause()
        finally:
            end()

    async def drain(self) -> None:
        """Say that this process is leaving: from now on nobody waits for its acknowledgement."""
        self._draining = True
        await self._beat()

    async def _pause(self) -> None:
        await asyncio.sleep(SPACING_SECONDS)
        since = 0.0 if self._beaten is None else self._clock.monotonic() - self._beaten[1]
        try:
            async with asyncio.timeout(max(0.0, min(jittered(self._poll_seconds), BEAT_SECONDS - since))):
                await self._hint.wait()
        except TimeoutError:
            pass

    async def _load(self, *, asked_at: float) -> None:
        async with answering():
            clock = await self._store.head_clock()
        if self._wanted is None:
            self._wanted = clock
        if clock < self._cursor:  # a restored or failed-over database: what we know may never have been
            log.warning("heads: the head clock went back from %d to %d, loading all anew", self._cursor, clock)
            self._heads, self._refused, self._cursor, self._wanted = {}, {}, 0, clock
        if clock > self._cursor:
            async with answering():
                found = await self._store.heads(after=self._cursor)
            for head in sorted(found, key=lambda head: head.version):
                await self._take(head)
            # The clock was read first, so all up to it is among what was found.
            self._cursor = max(clock, *(head.version for head in found)) if found else clock
        await self._retry_refused()
        self._loaded_at = asked_at
        if self.applied >= self._wanted:
            self._caught_up.set()

    async def _take(self, head: Head) -> None:
        key = (head.namespace, head.name)
        if head.retired:
            for kept in (self._heads, self._refused):
                if key in kept and kept[key].uid == head.uid:  # else another uid took the name over already
                    del kept[key]
            return
        if self._prepare is not None:
            try:
                async with answering():
                    await self._prepare(head)
            except Unavailable:
                raise
            except Exception as refused:
                # One bad revision stops no other (I14): say so, and leave the head before it in force.
                log.warning("heads: %s/%s cannot be loaded", head.namespace, head.name, exc_info=True)
                self._refused[key] = head
                await self._refuse(head, refused)
                return
        self._refused.pop(key, None)
        self._heads[key] = head

    async def _refuse(self, head: Head, why: Exception) -> None:
        revision = head.desired or head.active
        if revision is not None:
            async with answering():
                await self._store.refuse(self._component_id, revision, f"{type(why).__name__}: {why}"[:1000])

    async def _retry_refused(self) -> None:
        now = self._clock.monotonic()
        if not self._refused or now < self._retry_refused_at:
            return
        self._retry_refused_at = now + RETRY_REFUSED_SECONDS
        for head in list(self._refused.values()):
            await self._take(head)

    async def _beat_if_due(self) -> None:
        if self._beaten is not None:
            applied, at = self._beaten
            if applied == self.applied and self._clock.monotonic() - at < BEAT_SECONDS:
                return
        await self._beat()

    async def _beat(self) -> None:
        component = Component(
            id=self._component_id,
            role=self._role,
            pool=self._pool,
            formats=self._formats,
            applied=self.applied,
            draining=self._draining,
            release=self._release,
        )
        async with answering():
            await self._store.beat(component)
        self._beaten = (component.applied, self._clock.monotonic())
