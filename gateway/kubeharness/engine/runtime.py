"""Runtime: what a gateway can do for its callers. The only door for api; it knows nothing of HTTP."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from kubeharness.core import codec
from kubeharness.core.dispatch import Address
from kubeharness.core.errors import KubeharnessError, NotFound, Unavailable
from kubeharness.core.ids import ConversationId, InboxId, RevisionId, SubmissionId, conversation_id, record_id
from kubeharness.core.records import SettledStatus, SubmissionSettled
from kubeharness.engine.admission import Admissions, Order
from kubeharness.engine.cancelling import Cancelling
from kubeharness.engine.crashpoints import UNARMED, CrashPoints
from kubeharness.engine.feed import Framer
from kubeharness.engine.heads import Heads
from kubeharness.engine.patience import Alarm, answering
from kubeharness.engine.ports import Cancelled, Clock, Page, Receipt, Store, SubmissionView, Waker
from kubeharness.engine.snapshot import Snapshot, final_text, fold
from kubeharness.engine.steering import Steering, Via
from kubeharness.engine.subscription import FOR_EVER, Subscription, Until
from kubeharness.engine.transcript import Transcripts

READY_SECONDS = 2.0
OUTPUT_PAGE = 64
OUTPUT_LOOKS = 6
"""How often the search for a final text doubles its reach."""

__all__ = [
    "Address",
    "AgentView",
    "Alarm",
    "Cancelled",
    "Ended",
    "Order",
    "Page",
    "Receipt",
    "Runtime",
    "Snapshot",
    "SubmissionView",
    "Subscription",
    "Until",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView:
    """An agent as it is served now, and who could run it."""

    namespace: str
    name: str
    desired: RevisionId | None
    active: RevisionId | None
    note: str
    """Why the desired one is not the active one, or why there is none."""
    workers: int
    """Live workers of its pool: a beat in the last 60 s, and not draining."""
    releases: Sequence[str]
    """Which releases the live workers and gateways are of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A settled submission, as its waiter gets it."""

    view: SubmissionView
    settled: SubmissionSettled
    output: str | None
    """The final text of a run that succeeded."""


class Runtime:
    """The gateway's half of the engine over one store. `open` builds it with the tasks that it needs."""

    def __init__(
        self,
        store: Store,
        waker: Waker,
        clock: Clock,
        heads: Heads,
        *,
        framer: Framer,
        pool: str = "shared",
        poll_seconds: float = 1.0,
        randomness: Callable[[int], bytes] = os.urandom,
        crash: CrashPoints = UNARMED,
    ) -> None:
        self._store = store
        self._pool = pool
        self._heads = heads
        self._transcripts = Transcripts(store, waker, framer=framer, poll_seconds=poll_seconds)
        self._admissions = Admissions(store, waker, clock, heads, randomness, crash)
        self._steering = Steering(store, waker, randomness)
        self._cancelling = Cancelling(store, waker, clock, randomness)
        self._stopping = False

    @staticmethod
    @asynccontextmanager
    async def open(
        store: Store,
        waker: Waker,
        clock: Clock,
        *,
        component_id: str,
        framer: Framer,
        pool: str = "shared",
        poll_seconds: float = 1.0,
        randomness: Callable[[int], bytes] = os.urandom,
        crash: CrashPoints = UNARMED,
        release: str = "",
    ) -> AsyncIterator["Runtime"]:
        """A running gateway; on leaving, streams end and the process says that it is gone. The store stays open."""
        heads = Heads(store, waker, clock, component_id, "gateway", pool, poll_seconds=poll_seconds, release=release)
        runtime = Runtime(
            store,
            waker,
            clock,
            heads,
            framer=framer,
            pool=pool,
            poll_seconds=poll_seconds,
            randomness=randomness,
            crash=crash,
        )
        async with asyncio.TaskGroup() as tasks:
            life = tasks.create_task(runtime.run(), name="gateway runtime")
            await asyncio.sleep(0)  # they listen to hints before anybody can cause one
            await asyncio.sleep(0)
            try:
                yield runtime
            finally:
                await runtime.aclose()
                life.cancel()

    async def run(self) -> None:
        """Follow heads and logs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heads.run(), name="heads")
            tasks.create_task(self._transcripts.run(), name="transcripts")

    def stop(self, within: float = 5.0) -> None:
        """Begin to leave: not ready any more, streams end one by one within so many seconds."""
        self._stopping = True
        self._transcripts.stop(within)

    async def aclose(self) -> None:
        """Leave: what still streams ends now, and nobody waits for this process's acknowledgement."""
        self.stop(0.0)
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._heads.drain()
        except (KubeharnessError, TimeoutError):
            pass  # its last beat runs out by itself

    async def ready(self) -> None:
        """Raises Unavailable while this gateway should get no traffic."""
        if self._stopping:
            raise Unavailable("the gateway is closing")
        async with answering(READY_SECONDS):
            await self._store.ready()
        if not self._heads.caught_up:
            raise Unavailable("the agents that were published before this start are not loaded yet")

    async def dispatch(self, order: Order) -> Receipt:
        """Admit durably (I1, I2). Raises what `Admissions.dispatch` says."""
        return await self._admissions.dispatch(order)

    async def wait(self, submission: SubmissionId, seconds: float) -> Ended | SubmissionView:
        """How it ended, or how it stands when the time is over. Raises NotFound, Unavailable."""
        return await self.wait_for(await self._view(submission), seconds)

    async def wait_for(self, view: SubmissionView, seconds: float) -> Ended | SubmissionView:
        """The same for one that was looked up."""
        if seconds > 0:
            view = await self._transcripts.wait_settled(view, seconds)
        return await self._ended(view) or view

    async def lookup(self, submission: SubmissionId, *, namespace: str) -> SubmissionView:
        """A submission of a namespace; one of another namespace is missing. Raises NotFound, Unavailable."""
        view = await self._view(submission)
        if view.key.namespace != namespace:
            raise _missing(submission)
        return view

    async def agent(self, namespace: str, name: str) -> AgentView:
        """What of an agent is in force, and how many workers could claim its work. Raises NotFound, Unavailable."""
        head = await self._heads.look(namespace, name)
        if head is None:
            raise NotFound(f"agent {name!r}")
        async with answering():
            live = await self._store.acknowledged(version=0, pool=self._pool)
        return AgentView(
            namespace=namespace,
            name=name,
            desired=head.desired,
            active=head.active,
            note=head.note,
            workers=live.workers,
            releases=live.releases,
        )

    async def conversation(self, address: Address) -> ConversationId:
        """The conversation that an address means, whether or not anything was said. Raises NotFound."""
        address.validate()
        head = await self._heads.look(address.namespace, address.agent)
        if head is None:
            raise NotFound(f"agent {address.agent!r}")
        return conversation_id(address.of(head.uid))

    async def stream(
        self, address: Address, *, after: str | None, until: Until = FOR_EVER
    ) -> AbstractAsyncContextManager[Subscription]:
        """Replay and tail of a session; entering it decides about the offset before anything is sent."""
        return self._transcripts.follow(await self.conversation(address), after=after, until=until)

    async def records(self, address: Address, *, after: str | None, limit: int) -> Page:
        """A page of the log; empty while nothing was said. Raises NotFound, OffsetUnknown, Unavailable."""
        _, page = await self._transcripts.page_from(await self.conversation(address), after=after, limit=limit)
        return page or Page(records=(), last_seq=0, pruned_to=0, idle=True)

    async def snapshot(self, address: Address) -> Snapshot:
        """The projected conversation, what is unsettled, and the offset to tail from."""
        conversation = await self.conversation(address)
        # What is open is asked first: a run that ends in between is shown twice, never lost.
        async with answering():
            unsettled = await self._store.unsettled(conversation)
            loaded = await self._store.load(conversation)
        if loaded is None:
            return Snapshot(conversation_id=conversation, session=address.session)
        last = await self._transcripts.page(conversation, after=loaded.lane.last_seq - 1, limit=1)
        offset = None
        if last is not None and last.records:
            record = last.records[0]
            offset = record_id(record.milliseconds, record.seq, record.bits)
        return Snapshot(
            conversation_id=conversation,
            session=address.session,
            messages=fold([codec.decode_record(stored) for stored in loaded.records]),
            submissions=unsettled,
            offset=offset,
        )

    async def steer(self, address: Address, *, body: str, key: str | None, principal: str | None) -> InboxId:
        """Into the run at its next seam; durable before it returns. Raises NoRunInFlight, Conflict."""
        return await self._put(address, "steer", body, key, principal)

    async def follow_up(self, address: Address, *, body: str, key: str | None, principal: str | None) -> InboxId:
        """After the current exchange, in the same submission. Raises NoRunInFlight, Conflict."""
        return await self._put(address, "followup", body, key, principal)

    async def _put(self, address: Address, via: Via, body: str, key: str | None, principal: str | None) -> InboxId:
        return await self._steering.put(
            await self.conversation(address),
            session=address.session,
            via=via,
            body=body,
            key=key,
            principal=principal,
        )

    async def cancel(
        self, address: Address, *, submission: SubmissionId | None = None, reason: str | None = None
    ) -> Cancelled:
        """Cancel a submission of a session, its head if none is named.

        Raises NotFound (also for one of another session), NoRunInFlight, AlreadySettled, Unavailable.
        """
        conversation = await self.conversation(address)
        if submission is None:
            return await self._cancelling.head(conversation, session=address.session, reason=reason)
        view = await self._view(submission)
        if view.conversation_id != conversation:
            raise _missing(submission)
        return await self._cancelling.submission(view, reason=reason)

    async def cancel_submission(self, view: SubmissionView, *, reason: str | None = None) -> Cancelled:
        """The same for one that was looked up. Raises AlreadySettled, Unavailable."""
        return await self._cancelling.submission(view, reason=reason)

    async def _view(self, submission: SubmissionId) -> SubmissionView:
        view = await self._transcripts.lookup(submission)
        if view is None:
            raise _missing(submission)
        return view

    async def _ended(self, view: SubmissionView) -> Ended | None:
        if view.settled is None:
            return None
        settled = codec.decode_record(view.settled).payload
        if not isinstance(settled, SubmissionSettled):
            return None
        output = await self._output(view, view.settled.seq) if settled.status is SettledStatus.SUCCEEDED else None
        return Ended(view=view, settled=settled, output=output)

    async def _output(self, view: SubmissionView, end: int) -> str | None:
        """Read backwards from the settlement: the final text is nearly always right before it."""
        reach = OUTPUT_PAGE
        for _ in range(OUTPUT_LOOKS):
            after = max(0, end - 1 - reach)
            page = await self._transcripts.page(view.conversation_id, after=after, limit=reach)
            if page is None:
                return None
            text = final_text([codec.decode_record(r) for r in page.records], view.submission_id)
            if text is not None or after == 0:
                return text
            reach *= 2
        return None


def _missing(submission: SubmissionId) -> NotFound:
    return NotFound(f"submission {submission!r}")
