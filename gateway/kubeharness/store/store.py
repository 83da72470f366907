"""The store: `engine.ports.Store` over any backend. A batch that loses a race, or fails, is rerun singly (I14)."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar, cast

from kubeharness.core.errors import KubeharnessError, NotInThisRelease, Unavailable
from kubeharness.core.ids import AttemptId, CallId, ConversationId, InstanceKey, RevisionId, SubmissionId
from kubeharness.core.json import Json
from kubeharness.core.lane import Claimed, InboxMessage, LaneState, SubmissionState
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import (
    Acknowledgement,
    Admission,
    Append,
    Appended,
    Cancel,
    Cancelled,
    CheckLease,
    CheckPut,
    CheckResult,
    Component,
    Head,
    HeadWrite,
    Loaded,
    Page,
    Receipt,
    Release,
    Renewal,
    Settle,
    SubmissionView,
)
from kubeharness.store import verbs
from kubeharness.store.backend import Backend, Found, Need, RaceLost, Transaction

T = TypeVar("T")
_RACES = 8
"""A single item that loses this many races in a row is answered with Unavailable."""

_log = logging.getLogger(__name__)


class TransactionalStore:
    """All three stores: the verbs are the same, the backend differs."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    # --- submissions -----------------------------------------------------------------------------------------------

    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]:
        """Conversation, its first record, submission and ready lane in one transaction (I1, I2)."""
        return cast("list[Receipt | KubeharnessError]", await self.execute(items))

    async def append(self, items: Sequence[Append]) -> Sequence[Appended | KubeharnessError]:
        """Numbered writes of owners (I5, I6, I8)."""
        return cast("list[Appended | KubeharnessError]", await self.execute(items))

    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]:
        """Ends of claimed submissions (I7)."""
        return cast("list[Appended | KubeharnessError]", await self.execute(items))

    async def release(self, items: Sequence[Release]) -> Sequence[None | KubeharnessError]:
        """Lanes given back (I10)."""
        return cast("list[None | KubeharnessError]", await self.execute(items))

    async def cancel(self, items: Sequence[Cancel]) -> Sequence[Cancelled | KubeharnessError]:
        """Submissions settled at once, or flagged for their owner."""
        return cast("list[Cancelled | KubeharnessError]", await self.execute(items))

    async def inbox_put(self, items: Sequence[InboxMessage]) -> Sequence[None | KubeharnessError]:
        """Messages for runs in flight."""
        return cast("list[None | KubeharnessError]", await self.execute(items))

    async def execute(self, items: Sequence[verbs.Item]) -> list[verbs.Result]:
        """A batch of items, of one kind or mixed, in one transaction; if that fails, each in its own (I14)."""
        if not items:
            return []
        if len(items) > 1:
            try:
                return await self._execute_once(items)
            except Unavailable:
                raise
            except (RaceLost, KubeharnessError) as lost:  # the latter: a value that cannot be stored
                _log.debug("batch of %d is rerun singly: %s", len(items), lost)
            except Exception:  # noqa: BLE001 - whatever one item provoked must not reach the others
                _log.exception("batch of %d failed and is rerun singly", len(items))
        return [await self._execute_single(item) for item in items]

    async def _execute_once(self, items: Sequence[verbs.Item]) -> list[verbs.Result]:
        async with self.backend.transaction() as tx:
            return await verbs.execute(tx, items)

    async def _execute_single(self, item: verbs.Item) -> verbs.Result:
        try:
            return (await self._raced(lambda tx: verbs.execute(tx, [item])))[0]
        except Unavailable:
            raise
        except KubeharnessError as refusal:
            return refusal
        except Exception:  # noqa: BLE001 - see above
            _log.exception("an item could not be applied: %s of lane %s", type(item).__name__, verbs.lane_id(item))
            return KubeharnessError("the store could not apply this; its log says why")

    async def _raced(self, verb: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run a verb in a transaction of its own, again if another came first."""
        lost: RaceLost | None = None
        for _ in range(_RACES):
            try:
                async with self.backend.transaction() as tx:
                    return await verb(tx)
            except RaceLost as race:
                lost = race
        raise Unavailable("the store is contended") from lost

    async def claim(
        self,
        *,
        owner: str,
        pool: str,
        attempts: Sequence[AttemptId],
        lease_ms: int,
        failed: int,
        formats: Sequence[int],
        all_ready: bool = False,
    ) -> Sequence[Claimed]:
        """Take up to len(attempts) ready lanes (I3, I4)."""
        if not attempts:
            return []
        return await self._raced(
            lambda tx: verbs.claim(
                tx,
                owner=owner,
                pool=pool,
                attempts=attempts,
                lease_ms=lease_ms,
                failed=failed,
                formats=formats,
                all_ready=all_ready,
            )
        )

    async def held(self, attempts: Sequence[AttemptId]) -> Sequence[Claimed]:
        """What these attempts hold."""
        return await self._raced(lambda tx: verbs.held(tx, attempts)) if attempts else []

    async def renew(self, *, owner: str, attempts: Sequence[AttemptId], lease_ms: int) -> Sequence[Renewal]:
        """Extend the leases of these attempts; the attempt id is the fence, the owner is for the log."""
        if not attempts:
            return []
        return await self._raced(lambda tx: verbs.renew(tx, attempts=attempts, lease_ms=lease_ms))

    async def reap(self, *, limit: int = 100) -> Sequence[ConversationId]:
        """Take lanes whose lease has run out from their owners."""
        return await self._raced(lambda tx: verbs.reap(tx, limit=limit))

    async def sweep(self, *, limit: int = 1000) -> Sequence[ConversationId]:
        """Make lanes ready whose delay is over."""
        return await self._raced(lambda tx: verbs.sweep(tx, limit=limit))

    # --- reading ---------------------------------------------------------------------------------------------------

    async def read(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq (I6)."""
        return await self.backend.page(conversation, after=after, limit=limit)

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose log has grown."""
        return await self.backend.moved(watched) if watched else []

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """What an attempt starts from."""
        return await self.backend.load(conversation)

    async def inbox(self, conversation: ConversationId) -> Sequence[InboxMessage]:
        """Unread messages, without the log."""
        side = await self._raced(lambda tx: tx.side(Need(inbox={conversation})))
        return side.inbox.get(conversation, ())

    async def lookup(self, submission: SubmissionId) -> SubmissionView | None:
        """A submission with its derived state."""
        found = await self.backend.find(submission)
        return view(found) if found else None

    async def unsettled(self, conversation: ConversationId, *, limit: int = 100) -> Sequence[SubmissionView]:
        """The head and what is queued behind it, in order."""
        return [view(found) for found in await self.backend.find_unsettled(conversation, limit=limit)]

    # --- later releases --------------------------------------------------------------------------------------------

    async def wait(self, conversation: ConversationId, attempt: AttemptId) -> None:
        """Not in this release."""
        raise NotInThisRelease("wait")

    async def wake(self, conversation: ConversationId) -> None:
        """Not in this release."""
        raise NotInThisRelease("wake")

    async def answer(self, call: CallId, content: str) -> None:
        """Not in this release."""
        raise NotInThisRelease("answer")

    async def purge(self, instance: InstanceKey) -> None:
        """Not in this release."""
        raise NotInThisRelease("purge")

    async def prune(self, conversation: ConversationId, to: int) -> None:
        """Not in this release."""
        raise NotInThisRelease("prune")

    async def attachment_put(self, digest: str, media_type: str, data: bytes) -> None:
        """Not in this release."""
        raise NotInThisRelease("attachment_put")

    async def attachment_get(self, digest: str) -> bytes:
        """Not in this release."""
        raise NotInThisRelease("attachment_get")

    # --- configuration ---------------------------------------------------------------------------------------------

    async def epoch(self, installation: str) -> int:
        """Take over as publisher."""
        return await self.backend.epoch(installation)

    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction."""
        return await self.backend.publish(epoch, heads)

    async def retire(self, epoch: int, uids: Sequence[str]) -> int:
        """Take heads out of service."""
        return await self.backend.retire(epoch, uids)

    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock."""
        return await self.backend.heads(after=after)

    async def head_clock(self) -> int:
        """The version of the last publication that changed something."""
        return await self.backend.head_clock()

    async def revision(self, revision: RevisionId) -> StoredRevision | None:
        """A revision with its parts."""
        return await self.backend.revision(revision)

    async def beat(self, component: Component) -> None:
        """A process lives, and has loaded this much."""
        await self.backend.beat(component)

    async def refuse(self, component: str, revision: RevisionId, message: str) -> None:
        """A process could not load a revision."""
        await self.backend.refuse(component, revision, message)

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        """Who has loaded a head version."""
        return await self.backend.acknowledged(version=version, pool=pool)

    async def check_put(self, items: Sequence[CheckPut]) -> None:
        """Put questions."""
        await self.backend.check_put(items)

    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None:
        """Take questions back: (kind, namespace, name)."""
        await self.backend.check_drop(items)

    async def check_claim(self, *, owner: str, limit: int, lease_ms: int) -> Sequence[CheckLease]:
        """Lease due questions."""
        return await self.backend.check_claim(owner=owner, limit=limit, lease_ms=lease_ms)

    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None:
        """Answer a question."""
        await self.backend.check_done(lease, ok=ok, reason=reason, message=message, result=result)

    async def check_results(self, *, after: int) -> Sequence[CheckResult]:
        """Answers that changed after this check clock."""
        return await self.backend.check_results(after=after)

    async def check_get(self, kind: str, namespace: str, name: str) -> CheckResult | None:
        """The last answer to a question."""
        return await self.backend.check_get(kind, namespace, name)

    # --- life ------------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Raises Unavailable if the database does not answer or its schema is not ours."""
        await self.backend.ready()

    async def aclose(self) -> None:
        """Close the backend."""
        await self.backend.aclose()


_OF_HEAD = {LaneState.RUNNING: SubmissionState.RUNNING, LaneState.WAITING: SubmissionState.WAITING}


def view(found: Found) -> SubmissionView:
    """A submission as readers see it: settled if its settlement is stored, else the lane's state if it is the head."""
    submission, lane, settlement = found.submission, found.lane, found.settlement
    is_head = settlement is None and submission.position == lane.head
    if settlement is not None:
        state, attempts = SubmissionState.SETTLED, settlement.attempts
    elif is_head:
        state, attempts = _OF_HEAD.get(lane.state, SubmissionState.QUEUED), lane.claim
    else:
        state, attempts = SubmissionState.QUEUED, 0
    return SubmissionView(
        submission_id=submission.id,
        conversation_id=submission.conversation,
        key=found.conversation.key,
        position=submission.position,
        state=state,
        attempts=attempts,
        message=submission.message,
        labels=submission.labels,
        last_error=lane.last_error if is_head else "",
        settled=settlement.record if settlement else None,
    )
