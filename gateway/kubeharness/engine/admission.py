"""Dispatch to submission: derived ids, one transaction, one receipt however often it is asked (I1, I2)."""

from base64 import b32encode
from collections.abc import Callable
from dataclasses import dataclass, field

from kubeharness.core import codec
from kubeharness.core.dispatch import Address, Dispatch, DispatchMessage
from kubeharness.core.errors import AgentNotReady, DispatchConflict, NotFound
from kubeharness.core.ids import SessionKey, conversation_id, submission_id
from kubeharness.core.records import ConversationCreated, Draft
from kubeharness.engine.crashpoints import UNARMED, CrashPoint, CrashPoints
from kubeharness.engine.heads import Heads
from kubeharness.engine.patience import answering, only
from kubeharness.engine.ports import Admission, Clock, Head, Receipt, Store, SubmissionView, Waker

NO_REVISION = "no generation of it could be compiled and resolved so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A dispatch as a caller words it, before the gateway adds the incarnation and a key."""

    address: Address
    message: DispatchMessage
    dispatch_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    principal: str | None = None
    traceparent: str | None = None


class Admissions:
    """The door into the store. A refused or conflicting dispatch leaves no trace."""

    def __init__(
        self,
        store: Store,
        waker: Waker,
        clock: Clock,
        heads: Heads,
        randomness: Callable[[int], bytes],
        crash: CrashPoints = UNARMED,
    ) -> None:
        self._store = store
        self._waker = waker
        self._clock = clock
        self._heads = heads
        self._randomness = randomness
        self._crash = crash

    async def dispatch(self, order: Order) -> Receipt:
        """Admit, or find what the same key admitted before; the answer follows the commit.

        Raises InvalidRequest, NotFound, DispatchConflict, AgentNotReady, AgentClosed, QueueFull, Unavailable.
        """
        order.address.validate()
        head = await self._heads.look(order.address.namespace, order.address.agent)
        if head is None:
            raise NotFound(f"agent {order.address.agent!r}")
        dispatch = Dispatch(
            key=order.address.of(head.uid),
            dispatch_id=order.dispatch_id if order.dispatch_id is not None else self._minted(),
            message=order.message,
            labels=order.labels,
            principal=order.principal,
            traceparent=order.traceparent,
        )
        dispatch.validate()
        if head.active is None:
            return await self._replayed(dispatch, head)
        async with answering():
            receipt = only(await self._store.admit([self._admission(dispatch)]))
        self._crash.reach(CrashPoint.AFTER_ADMIT)
        if not receipt.replayed:
            self._waker.touched([receipt.conversation_id], work=True)
        return receipt

    def _admission(self, dispatch: Dispatch) -> Admission:
        return Admission(
            key=dispatch.key,
            dispatch_id=dispatch.dispatch_id,
            digest=dispatch.digest(codec.canonical_dispatch(dispatch)),
            submission_id=submission_id(dispatch.key.of_instance, dispatch.dispatch_id),
            conversation_id=conversation_id(dispatch.key),
            message=codec.encode_message(dispatch.message),
            created=self._created(dispatch.key),
            principal=dispatch.principal,
            labels=dispatch.labels,
            traceparent=dispatch.traceparent,
        )

    def _created(self, key: SessionKey) -> Draft:
        return codec.draft(
            ConversationCreated(agent=key.agent, instance=key.instance, session=key.session, namespace=key.namespace),
            conversation=conversation_id(key),
            session=key.session,
            submission=None,
            time=self._clock.now(),
            bits=int.from_bytes(self._randomness(2), "big"),
        )

    def _minted(self) -> str:
        return "dsp_" + b32encode(self._randomness(20)).decode().lower()

    async def _replayed(self, dispatch: Dispatch, head: Head) -> Receipt:
        """The receipt of an earlier admission. Raises AgentNotReady if there was none: nothing is admitted."""
        async with answering():
            view = await self._store.lookup(submission_id(dispatch.key.of_instance, dispatch.dispatch_id))
        if view is None:
            raise AgentNotReady(head.name, head.note or NO_REVISION)
        if digest_of(view, dispatch.dispatch_id) != dispatch.digest(codec.canonical_dispatch(dispatch)):
            raise DispatchConflict(dispatch.dispatch_id)
        return Receipt(submission_id=view.submission_id, conversation_id=view.conversation_id, replayed=True)


def digest_of(view: SubmissionView, dispatch_id: str) -> str:
    """The digest of the caller's fields, from what the submission kept of them."""
    kept = Dispatch(
        key=view.key,
        dispatch_id=dispatch_id,
        message=codec.decode_message(view.message),
        labels=dict(view.labels),
    )
    return kept.digest(codec.canonical_dispatch(kept))
