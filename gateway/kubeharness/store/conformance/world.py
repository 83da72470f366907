"""A corner of the store that one case has to itself: an agent, its sessions, its pool; and short words for verbs."""

import secrets
from collections.abc import Sequence
from itertools import count

from kubeharness.core import codec
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
    submission_id,
)
from kubeharness.core.lane import InboxMessage, Lane
from kubeharness.core.records import (
    ConversationCreated,
    Draft,
    Payload,
    SettledCode,
    SettledStatus,
    StoredRecord,
    SubmissionSettled,
)
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import (
    Admission,
    Cancel,
    Cancelled,
    HeadWrite,
    Loaded,
    Receipt,
    Store,
    SubmissionView,
)
from kubeharness.store.conformance.answers import INSTALLATION, LEASE_MS, LIFETIME_MS, TIME, good
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.subject import Subject


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
