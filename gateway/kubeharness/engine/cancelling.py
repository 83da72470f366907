"""Cancel: what nobody has claimed settles at once, what runs is flagged and its owner settles it (I7)."""

from collections.abc import Callable

from kubeharness.core import codec
from kubeharness.core.errors import AlreadySettled, NoRunInFlight, NotFound, SettlementRefused, Unavailable
from kubeharness.core.ids import ConversationId
from kubeharness.core.lane import Lane
from kubeharness.core.messages import Usage
from kubeharness.core.records import SettledCode, SettledStatus, SubmissionSettled
from kubeharness.core.text import clean_text
from kubeharness.engine.closing import closing_drafts
from kubeharness.engine.patience import answering, only
from kubeharness.engine.ports import Cancel, Cancelled, Clock, Loaded, Store, SubmissionView, Waker

TRIES = 8
DEFAULT_REASON = "the caller asked for it"


class Cancelling:
    """Composes what a cancel must write, and tries again when something committed in between."""

    def __init__(self, store: Store, waker: Waker, clock: Clock, randomness: Callable[[int], bytes]) -> None:
        self._store = store
        self._waker = waker
        self._clock = clock
        self._randomness = randomness

    async def head(self, conversation: ConversationId, *, session: str, reason: str | None) -> Cancelled:
        """Cancel the submission at the head of the session as it stands now. Raises NoRunInFlight."""
        async with answering():
            unsettled = await self._store.unsettled(conversation, limit=1)
        if not unsettled:
            raise NoRunInFlight(session)
        return await self.submission(unsettled[0], reason=reason)

    async def submission(self, view: SubmissionView, *, reason: str | None) -> Cancelled:
        """Cancel this submission; one that a cancel settled before is answered alike.

        Raises AlreadySettled, Unavailable.
        """
        reason = clean_text(reason or DEFAULT_REASON)[:1000]
        for _ in range(TRIES):
            async with answering():
                loaded = await self._store.load(view.conversation_id)
            if loaded is None:
                raise NotFound("submission")
            try:
                async with answering():
                    done = only(await self._store.cancel([self._cancel(view, loaded, reason)]))
            except SettlementRefused:
                continue  # a worker or a message committed first: read again what is open
            except AlreadySettled:
                return await self._cancelled_before(view)
            self._waker.touched([view.conversation_id], work=True)
            return done
        raise Unavailable("the run changes faster than it can be cancelled")

    def _cancel(self, view: SubmissionView, loaded: Loaded, reason: str) -> Cancel:
        lane = loaded.lane
        at_head = view.position == lane.head
        calls = loaded.calls if at_head else ()
        inbox = loaded.inbox if at_head else ()
        drafts = closing_drafts(
            lane if at_head else Lane(id=lane.id, incarnation=lane.incarnation),
            calls,
            inbox,
            settled=self._settled(lane if at_head else None, reason),
            submission=view.submission_id,
            session=view.key.session,
            time=self._clock.now(),
            bits=lambda: int.from_bytes(self._randomness(2), "big"),
        )
        return Cancel(
            conversation=view.conversation_id,
            submission_id=view.submission_id,
            reason=reason,
            drafts=drafts,
            closes=[call.call_id for call in calls],
            drains=[message.id for message in inbox],
        )

    def _settled(self, lane: Lane | None, reason: str) -> SubmissionSettled:
        """The settlement; one that was still queued has spent nothing."""
        usage = lane.counters.usage if lane is not None else Usage()
        return SubmissionSettled(
            status=SettledStatus.FAILED,
            error=f"cancelled: {reason}",
            error_code=SettledCode.CANCELLED,
            usage=usage if usage != Usage() else None,
            attempts=lane.claim if lane is not None else 0,
            failures=lane.counters.failures if lane is not None else 0,
        )

    async def _cancelled_before(self, view: SubmissionView) -> Cancelled:
        async with answering():
            now = await self._store.lookup(view.submission_id)
        if now is not None and now.settled is not None:
            payload = codec.decode_record(now.settled).payload
            if isinstance(payload, SubmissionSettled) and payload.error_code is SettledCode.CANCELLED:
                return Cancelled(submission_id=view.submission_id, settled=True)
        raise AlreadySettled(view.submission_id)
