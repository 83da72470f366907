"""A corner of the store that one case has to itself: an agent, its sessions, its pool; and short words for verbs."""

import asyncio
import secrets
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, TypeVar

from kubeharness.core import codec
from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import (
    AttemptId,
    CallId,
    ConversationId,
    InboxId,
    RevisionId,
    SessionKey,
    SubmissionId,
    TurnId,
    attempt_id,
    conversation_id,
    record_id,
    submission_id,
)
from kubeharness.core.lane import CallState, Claimed, InboxMessage, Lane, OpenCall
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    AssistantMessageStarted,
    AssistantToolCall,
    ConversationCreated,
    Draft,
    OutcomeCause,
    Payload,
    RunWarning,
    SettledCode,
    SettledStatus,
    StoredRecord,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.revision import StoredRevision
from kubeharness.core.transitions import NO_CHANGE, CounterChange, ReleaseCause
from kubeharness.engine.ports import (
    Admission,
    Append,
    Appended,
    Cancel,
    Cancelled,
    HeadWrite,
    Loaded,
    Receipt,
    Release,
    Settle,
    Store,
    SubmissionView,
    UsageRow,
)
from kubeharness.store.conformance.subject import Subject

T = TypeVar("T")
INSTALLATION = "conformance"
LEASE_MS = 30_000
LIFETIME_MS = 3_600_000
TOLERANCE_MS = 2_000
"""How far a real clock may have run between two statements of a case."""
TIME = datetime(2026, 11, 30, 21, 6, 33, 123456, tzinfo=UTC)


def near(milliseconds: int, expected: int) -> bool:
    """Equal, but for what a real clock ran meanwhile."""
    return abs(milliseconds - expected) <= TOLERANCE_MS


def good(result: T | KubeharnessError) -> T:
    """The answer of an item that must not be refused."""
    if isinstance(result, KubeharnessError):
        raise AssertionError(f"refused: {result!r}")
    return result


def refused(result: object, by: type[KubeharnessError]) -> None:
    """Assert that an item was refused, and by what."""
    assert isinstance(result, by), f"expected {by.__name__}, not {result!r}"


async def together(*actions: Coroutine[Any, Any, T]) -> list[T]:
    """Start them at once, and wait for all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(action) for action in actions]
    return [task.result() for task in tasks]


@dataclass(slots=True)
class Run:
    """A claimed lane, and the numbers of its writes."""

    world: "World"
    claimed: Claimed
    number: int = 0

    @property
    def conversation(self) -> ConversationId:
        """Its conversation."""
        return self.claimed.lane.id

    @property
    def attempt(self) -> AttemptId:
        """Its attempt."""
        return self.claimed.attempt

    @property
    def submission(self) -> SubmissionId:
        """Its submission."""
        return self.claimed.submission_id

    def draft(self, payload: Payload, *, turn: TurnId | None = None) -> Draft:
        """A record of this submission."""
        return self.world.draft(payload, self.claimed.key, submission=self.submission, turn=turn, attempt=self.attempt)

    def text(self, body: str = "hello") -> Draft:
        """An input record."""
        return self.draft(UserMessage(body=body, via="dispatch"))

    def steered(self, body: str = "psst", *, undelivered: bool | None = None) -> Draft:
        """The record of a message that was put into the run."""
        return self.draft(UserMessage(body=body, via="steer", undelivered=undelivered))

    def begun(self, turn: TurnId) -> Draft:
        """The record that opens a message."""
        return self.draft(AssistantMessageStarted(model="m"), turn=turn)

    def note(self, message: str = "note") -> Draft:
        """A record that means nothing."""
        return self.draft(RunWarning(code="test", message=message))

    def call(self, call: str, *, state: CallState = CallState.STARTED, idempotent: bool = False) -> OpenCall:
        """A ledger row."""
        return OpenCall(
            call_id=CallId(call),
            conversation=self.conversation,
            submission_id=self.submission,
            tool_name="clock",
            state=state,
            idempotent=idempotent,
        )

    def called(self, *calls: OpenCall) -> list[Draft]:
        """Their records."""
        return [self.draft(AssistantToolCall(call_id=call.call_id, tool_name=call.tool_name)) for call in calls]

    def outcome(self, call: str) -> Draft:
        """The outcome of a call."""
        return self.draft(
            ToolOutcome(call_id=CallId(call), tool_name="clock", content="12", cause=OutcomeCause.INTERRUPTED)
        )

    def write(
        self,
        *drafts: Draft,
        opened: Sequence[OpenCall] = (),
        closed: Sequence[str] = (),
        started: Sequence[str] = (),
        consumed: Sequence[str] = (),
        counters: CounterChange = NO_CHANGE,
        open_turn: TurnId | None = None,
        usage: UsageRow | None = None,
        lease_ms: int = LEASE_MS,
    ) -> Append:
        """The next numbered write."""
        self.number += 1
        return Append(
            conversation=self.conversation,
            attempt=self.attempt,
            number=self.number,
            lease_ms=lease_ms,
            drafts=drafts,
            opened=opened,
            closed=[CallId(call) for call in closed],
            started=[CallId(call) for call in started],
            consumed=[InboxId(message) for message in consumed],
            counters=counters,
            open_turn=open_turn,
            usage=usage,
        )

    async def begin(self) -> Appended:
        """The input record: what each run writes first."""
        return await self.append(self.write(self.text()))

    async def append(self, item: Append) -> Appended:
        """Append, which must be accepted."""
        return good((await self.world.store.append([item]))[0])

    async def try_append(self, item: Append) -> Appended | KubeharnessError:
        """Append, and take the answer as it is. A refused write has not used up its number."""
        (result,) = await self.world.store.append([item])
        if isinstance(result, KubeharnessError):
            self.number -= 1
        return result

    def aborted(self, turn: TurnId) -> Draft:
        """The end of a dead try."""
        return self.draft(AssistantMessageAborted(turn_id=turn, reason=AbortReason.ATTEMPT_DIED), turn=turn)

    def ending(
        self,
        *before: Draft,
        success: bool = True,
        closes: Sequence[str] = (),
        drains: Sequence[str] = (),
        submission: SubmissionId | None = None,
    ) -> Settle:
        """The settlement, as the next numbered write."""
        self.number += 1
        return Settle(
            conversation=self.conversation,
            attempt=self.attempt,
            number=self.number,
            submission_id=submission or self.submission,
            drafts=[*before, self.draft(settled(success))],
            closes=[CallId(call) for call in closes],
            drains=[InboxId(message) for message in drains],
            success=success,
        )

    async def settle(self, item: Settle | None = None) -> Appended:
        """Settle, which must be accepted."""
        return good((await self.world.store.settle([item or self.ending()]))[0])

    async def try_settle(self, item: Settle) -> Appended | KubeharnessError:
        """Settle, and take the answer as it is."""
        (result,) = await self.world.store.settle([item])
        if isinstance(result, KubeharnessError):
            self.number -= 1
        return result

    def back(self, cause: ReleaseCause, *, delay_ms: int = 0, last_error: str = "") -> Release:
        """A release."""
        return Release(
            conversation=self.conversation,
            attempt=self.attempt,
            cause=cause,
            delay_ms=delay_ms,
            last_error=last_error,
        )

    async def release(self, cause: ReleaseCause, *, delay_ms: int = 0, last_error: str = "") -> None:
        """Give the lane back, which must be accepted."""
        item = self.back(cause, delay_ms=delay_ms, last_error=last_error)
        good((await self.world.store.release([item]))[0])


def settled(success: bool) -> SubmissionSettled:
    """The end of a submission."""
    if success:
        return SubmissionSettled(status=SettledStatus.SUCCEEDED)
    return SubmissionSettled(status=SettledStatus.FAILED, error="it failed", error_code=SettledCode.RUN_FAILED)


class World:
    """One case's agent in namespace, incarnation and pool of its own, published and ready to run."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.store: Store = subject.store
        self._token = secrets.token_hex(6)
        self._bits = count(1)
        self._ids = count(1)
        self.namespace = f"ns-{self._token}"
        self.agent = "agent"
        self.incarnation = f"uid-{self._token}"
        self.pool = f"pool-{self._token}"
        self.epoch = 0

    async def set_up(self) -> None:
        """Publish the agent's first revision."""
        self.epoch = await self.store.epoch(INSTALLATION)
        await self.publish(self.revision("one"))

    def revision(self, name: str, *, format: int = 1) -> StoredRevision:
        """A revision of this world."""
        raw = codec.canonical({"name": name, "world": self._token, "systemPrompt": "sha256:p", "provider": "sha256:q"})
        parts = {"sha256:p": b'"prompt"', "sha256:q": b'"provider"'}
        return StoredRevision(id=RevisionId(codec.digest_of(raw)), format=format, body=raw, parts=parts)

    def head(
        self,
        revision: StoredRevision | None,
        *,
        generation: int = 1,
        uid: str | None = None,
        name: str | None = None,
        activate: bool = True,
        lifetime_ms: int = LIFETIME_MS,
        note: str = "",
    ) -> HeadWrite:
        """A publication of this world's agent."""
        return HeadWrite(
            namespace=self.namespace,
            name=name or self.agent,
            uid=uid or self.incarnation,
            generation=generation,
            desired=revision.id if revision else None,
            activate=activate,
            revision=revision,
            lifetime_ms=lifetime_ms,
            note=note,
        )

    async def publish(self, revision: StoredRevision | None, *, generation: int = 1, uid: str | None = None) -> int:
        """Publish, and say the head clock."""
        return await self.store.publish(self.epoch, [self.head(revision, generation=generation, uid=uid)])

    # --- sessions --------------------------------------------------------------------------------------------------

    def key(self, session: str = "default", *, instance: str = "i", incarnation: str | None = None) -> SessionKey:
        """A session of this world's agent."""
        return SessionKey(
            namespace=self.namespace,
            agent=self.agent,
            incarnation=incarnation or self.incarnation,
            instance=instance,
            session=session,
        )

    def draft(
        self,
        payload: Payload,
        key: SessionKey,
        *,
        submission: SubmissionId | None,
        turn: TurnId | None = None,
        attempt: AttemptId | None = None,
    ) -> Draft:
        """A record."""
        return codec.draft(
            payload,
            conversation=conversation_id(key),
            session=key.session,
            submission=submission,
            turn=turn,
            attempt=attempt,
            time=TIME,
            bits=next(self._bits),
        )

    def admission(
        self,
        dispatch: str,
        key: SessionKey | None = None,
        *,
        body: str = "hello",
        closed: bool = False,
        max_queued: int | None = None,
    ) -> Admission:
        """A dispatch; its digest is over session and body, as the caller's fields are."""
        key = key or self.key()
        created = ConversationCreated(agent=key.agent, instance=key.instance, session=key.session)
        return Admission(
            key=key,
            dispatch_id=dispatch,
            digest=codec.digest_of(f"{key.session}/{body}".encode()),
            submission_id=submission_id(key.of_instance, dispatch),
            conversation_id=conversation_id(key),
            message=codec.dumps({"kind": "user", "body": body}),
            created=self.draft(created, key, submission=None),
            principal="ann",
            labels={"team": "red"},
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            pool=self.pool,
            closed=closed,
            max_queued=max_queued,
        )

    async def admit(self, *dispatches: str, key: SessionKey | None = None) -> list[Receipt]:
        """Admit one after the other in a session; all must be accepted."""
        results = await self.store.admit([self.admission(dispatch, key) for dispatch in dispatches])
        return [good(result) for result in results]

    def new_attempt(self) -> AttemptId:
        """An attempt's name, made by the claimer."""
        return attempt_id(1_700_000_000_000 + next(self._ids), secrets.token_bytes(10))

    async def claims(
        self, limit: int, *, lease_ms: int = LEASE_MS, failed: int = 100, store: Store | None = None
    ) -> list[Run]:
        """Claim up to so many lanes of this world."""
        found = await (store or self.store).claim(
            owner="worker",
            pool=self.pool,
            attempts=[self.new_attempt() for _ in range(limit)],
            lease_ms=lease_ms,
            failed=failed,
            formats=[1],
            all_ready=True,
        )
        return [Run(self, claimed) for claimed in found]

    async def claim(self, *, lease_ms: int = LEASE_MS) -> Run:
        """Claim the one lane that is ready."""
        runs = await self.claims(2, lease_ms=lease_ms)
        assert len(runs) == 1, f"expected one ready lane, found {len(runs)}"
        return runs[0]

    async def started(self, dispatch: str = "d1", key: SessionKey | None = None) -> Run:
        """Admit, claim, and write the input."""
        await self.admit(dispatch, key=key)
        run = await self.claim()
        await run.begin()
        return run

    async def lost(self, run: Run) -> None:
        """Let the run's worker die: its lease runs out, the reaper takes the lane, its delay goes by."""
        await self.advance(LEASE_MS + 1)
        assert run.conversation in await self.store.reap(), "the lease is over and nobody took the lane"
        await self.rested()

    async def rested(self) -> None:
        """Let every delay go by."""
        await self.advance(61_000)
        await self.store.sweep()

    async def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.subject.advance(milliseconds)

    # --- looking ---------------------------------------------------------------------------------------------------

    async def log(self, conversation: ConversationId | None = None) -> list[StoredRecord]:
        """The whole log, read in pages of two."""
        found: list[StoredRecord] = []
        while True:
            page = await self.store.read(
                conversation or conversation_id(self.key()), after=found[-1].seq if found else 0, limit=2
            )
            if page is None or not page.records:
                return found
            if found and page.records[0].seq <= found[-1].seq:
                raise AssertionError(f"a page after {found[-1].seq} begins with {page.records[0].seq}")
            found += page.records

    async def kinds(self) -> list[str]:
        """The kinds in the default session's log."""
        return [record.kind for record in await self.log()]

    async def load(self, key: SessionKey | None = None) -> Loaded:
        """A session as an attempt would load it."""
        loaded = await self.store.load(conversation_id(key or self.key()))
        assert loaded is not None
        return loaded

    async def lane(self, key: SessionKey | None = None) -> Lane:
        """A session's lane."""
        return (await self.load(key)).lane

    async def view(self, submission: SubmissionId) -> SubmissionView:
        """A submission."""
        found = await self.store.lookup(submission)
        assert found is not None, f"{submission} was admitted and is not found"
        return found

    # --- from the outside ------------------------------------------------------------------------------------------

    def message(self, id: str, *, body: str = "psst", key: SessionKey | None = None) -> InboxMessage:
        """A message for a run in flight."""
        return InboxMessage(
            id=InboxId(id),
            conversation=conversation_id(key or self.key()),
            via="steer",
            body=body,
            digest=codec.digest_of(body.encode()),
            principal="ann",
        )

    async def steer(self, id: str) -> None:
        """Put a message, which must be accepted."""
        good((await self.store.inbox_put([self.message(id)]))[0])

    def cancelling(
        self,
        submission: SubmissionId | None,
        *before: Draft,
        closes: Sequence[str] = (),
        drains: Sequence[str] = (),
        key: SessionKey | None = None,
        head: SubmissionId | None = None,
    ) -> Cancel:
        """A cancel with the drafts that it needs if it settles at once."""
        key = key or self.key()
        end = SubmissionSettled(status=SettledStatus.FAILED, error_code=SettledCode.CANCELLED, error="cancelled")
        return Cancel(
            conversation=conversation_id(key),
            submission_id=submission,
            reason="cancelled",
            drafts=[*before, self.draft(end, key, submission=submission or head)],
            closes=[CallId(call) for call in closes],
            drains=[InboxId(message) for message in drains],
        )

    async def cancel(self, submission: SubmissionId | None) -> Cancelled:
        """Cancel, which must be accepted."""
        return good((await self.store.cancel([self.cancelling(submission)]))[0])


def ids(records: Sequence[StoredRecord]) -> list[str]:
    """The ids of records, which are offsets."""
    return [record_id(record.milliseconds, record.seq, record.bits) for record in records]


def contiguous(records: Sequence[StoredRecord]) -> bool:
    """Whether seq counts from 1 without a gap and ids strictly increase (I6)."""
    names = ids(records)
    return [record.seq for record in records] == list(range(1, len(records) + 1)) and names == sorted(set(names))
