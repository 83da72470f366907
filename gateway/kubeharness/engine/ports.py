"""What the engine needs from the outside: the store contract (engine.md, section 12) and five small seams.

Verbs take a list and answer per item, in order; an item that is refused answers with the error as a value, so one
bad item stops no other (I14). One call is one transaction per lane. Raises `Unavailable` if the store does not
answer. Times are milliseconds of the store's clock.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import (
    AttemptId,
    CallId,
    ConversationId,
    InboxId,
    InstanceKey,
    RevisionId,
    SessionKey,
    SubmissionId,
    TurnId,
)
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.lane import Claimed, InboxMessage, Lane, OpenCall, SubmissionState
from kubeharness.core.messages import Usage
from kubeharness.core.ports import Provider, ToolRuntime
from kubeharness.core.records import Draft, StoredRecord
from kubeharness.core.revision import AgentRevision, StoredRevision
from kubeharness.core.transitions import NO_CHANGE, CounterChange, ReleaseCause

# --- what verbs take and give -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One dispatch at the door (I1, I2)."""

    key: SessionKey
    dispatch_id: str
    digest: str
    submission_id: SubmissionId
    conversation_id: ConversationId
    message: bytes
    created: Draft
    """The `conversation_created` record, used if the conversation is new."""
    principal: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: str = "interactive"
    traceparent: str | None = None
    pool: str = "shared"
    closed: bool = False
    max_queued: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to an admitted dispatch; a replay gets the first one's ids."""

    submission_id: SubmissionId
    conversation_id: ConversationId
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One numbered write of an attempt (I5). Drafts go into the log in order."""

    conversation: ConversationId
    attempt: AttemptId
    number: int
    lease_ms: int
    drafts: Sequence[Draft] = ()
    opened: Sequence[OpenCall] = ()
    """Ledger rows inserted with their `assistant_tool_call` records."""
    closed: Sequence[CallId] = ()
    """Ledger rows deleted with their `tool_outcome` records; one that is not there refuses the write (I8)."""
    started: Sequence[CallId] = ()
    """Recorded (or approved) calls that begin to run after this write (I9)."""
    consumed: Sequence[InboxId] = ()
    counters: CounterChange = NO_CHANGE
    open_turn: TurnId | None = None
    """The message left started and not ended after this write."""
    usage: "UsageRow | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """What one model call cost."""

    turn_id: TurnId
    model: str
    provider: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where the drafts went: seq base+1 … base+count, all at these milliseconds."""

    base: int
    count: int
    milliseconds: int
    cancel: str | None
    unread: int
    """What the lane knows after the write: the owner need not ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """The end of the claimed submission (I7). The last draft is its `submission_settled`."""

    conversation: ConversationId
    attempt: AttemptId
    number: int
    submission_id: SubmissionId
    drafts: Sequence[Draft]
    closes: Sequence[CallId] = ()
    """Every open call; their outcomes are among the drafts."""
    drains: Sequence[InboxId] = ()
    """Every unread message; each is among the drafts, marked undelivered."""
    success: bool
    usage: UsageRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give a lane back without settling."""

    conversation: ConversationId
    attempt: AttemptId
    cause: ReleaseCause
    delay_ms: int = 0
    last_error: str = ""
    seen: int = 0
    """Unread messages that the owner knows of and that do not end a back-off: followups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Cancel a submission; None means the head. An unclaimed head needs all that it leaves open named."""

    conversation: ConversationId
    submission_id: SubmissionId | None
    reason: str
    drafts: Sequence[Draft] = ()
    """Used only if the cancel settles it at once; the last is the `submission_settled`."""
    closes: Sequence[CallId] = ()
    drains: Sequence[InboxId] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Settled at once, or flagged for its owner."""

    submission_id: SubmissionId
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What a renewal tells an owner about one of its attempts; `skipped` means locked just now, never lost."""

    attempt: AttemptId
    lost: bool = False
    skipped: bool = False
    cancel: str | None = None
    unread: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Records in order, and what the lane said in the same read."""

    records: Sequence[StoredRecord]
    last_seq: int
    pruned_to: int
    idle: bool
    """Nothing is unsettled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What an attempt starts from: the records that are context (deltas left out), ledger, inbox."""

    records: Sequence[StoredRecord]
    calls: Sequence[OpenCall]
    inbox: Sequence[InboxMessage]
    lane: Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionView:
    """A submission as readers see it."""

    submission_id: SubmissionId
    conversation_id: ConversationId
    key: SessionKey
    position: int
    state: SubmissionState
    attempts: int
    message: bytes
    labels: Mapping[str, str]
    last_error: str = ""
    settled: StoredRecord | None = None
    """Its `submission_settled` record."""


# --- configuration: revisions, heads, acknowledgements, checks --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is in force for one Agent object."""

    namespace: str
    name: str
    uid: str
    generation: int
    desired: RevisionId | None
    active: RevisionId | None
    """Serves now; None until a first generation compiled and resolved."""
    note: str = ""
    """Why there is no active revision, or the newest is not it: a condition's message."""
    version: int = 0
    """The head clock's value at the commit that wrote it."""
    retired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWrite:
    """One publication: the desired revision, and whether it becomes active in the same transaction."""

    namespace: str
    name: str
    uid: str
    generation: int
    desired: RevisionId | None
    activate: bool
    revision: StoredRevision | None = None
    lifetime_ms: int = 3_600_000
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A live process and the head version that it has loaded."""

    id: str
    role: str
    """gateway or worker"""
    pool: str
    formats: Sequence[int]
    applied: int
    draining: bool = False
    release: str = ""
    """Which release it is of; empty for one from before processes said it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Who has loaded a head version: live means a beat in the last 60 s and not draining."""

    workers: int
    workers_behind: int
    gateways: int
    gateways_behind: int
    refusals: Sequence[str] = ()
    """Why processes could not load it."""
    releases: Sequence[str] = ()
    """Of the live workers and gateways, each once: more than one while an upgrade is under way."""

    @property
    def complete(self) -> bool:
        """Each live worker and at least one gateway have it (Programmed); no live worker at all passes too."""
        return self.workers_behind == 0 and self.gateways - self.gateways_behind >= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPut:
    """A question that only a worker may answer: is a Secret's key there, which tools does a server offer."""

    kind: str
    """secret or tools"""
    namespace: str
    name: str
    """For kind secret `{secret}/{key}`; for kind tools the ToolServer's name."""
    uid: str
    digest: str
    """Of the payload; another digest makes the check due at once."""
    payload: JsonObject
    interval_ms: int = 20_000
    """Between two successes; failures are repeated after 1, 2, 4 … 20 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLease:
    """A due check in a worker's hands."""

    kind: str
    namespace: str
    name: str
    digest: str
    payload: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The last answer. `result` is the last good one (a catalogue never shrinks by a failure)."""

    kind: str
    namespace: str
    name: str
    uid: str
    digest: str
    done: bool
    """The question as it stands was answered at least once."""
    ok: bool
    reason: str = ""
    """A condition reason: SecretNotFound, SecretKeyNotFound, SecretForbidden, ToolServerUnreachable …"""
    message: str = ""
    result: Json = None
    version: int = 0
    """Grows with every change of an answer, for `check_results(after)`."""


# --- the store ---------------------------------------------------------------------------------------------------


class Store(Protocol):
    """The durable half of the house. Memory, SQLite and Postgres pass one conformance suite."""

    # submissions
    async def admit(self, items: Sequence[Admission]) -> Sequence[Receipt | KubeharnessError]: ...
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
        """Claim up to len(attempts) ready lanes, at most `failed` of them with earlier failures (I10).

        `all_ready` leaves the low-water bound of the scan out.
        """
        ...

    async def held(self, attempts: Sequence[AttemptId]) -> Sequence[Claimed]:
        """What these attempts hold: the question after an unknown commit of a claim (I4)."""
        ...

    async def renew(self, *, owner: str, attempts: Sequence[AttemptId], lease_ms: int) -> Sequence[Renewal]: ...
    async def append(self, items: Sequence[Append]) -> Sequence[Appended | KubeharnessError]: ...
    async def settle(self, items: Sequence[Settle]) -> Sequence[Appended | KubeharnessError]: ...
    async def release(self, items: Sequence[Release]) -> Sequence[None | KubeharnessError]: ...
    async def reap(self, *, limit: int = 100) -> Sequence[ConversationId]:
        """Take lanes whose lease has run out from their owners."""
        ...

    async def sweep(self, *, limit: int = 1000) -> Sequence[ConversationId]:
        """Make lanes ready whose delay is over."""
        ...

    async def cancel(self, items: Sequence[Cancel]) -> Sequence[Cancelled | KubeharnessError]: ...
    async def inbox_put(self, items: Sequence[InboxMessage]) -> Sequence[None | KubeharnessError]:
        """Durable before the answer; the same id with the same digest again is answered alike, another: Conflict."""
        ...

    # reading
    async def read(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq, in order; None if there is no such conversation."""
        ...

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose log has grown beyond the given seq."""
        ...

    async def load(self, conversation: ConversationId) -> Loaded | None: ...
    async def inbox(self, conversation: ConversationId) -> Sequence[InboxMessage]:
        """Unread messages in the order in which they were put; costs nothing of the log."""
        ...

    async def lookup(self, submission: SubmissionId) -> SubmissionView | None: ...
    async def unsettled(self, conversation: ConversationId, *, limit: int = 100) -> Sequence[SubmissionView]: ...

    # later releases: each raises NotInThisRelease
    async def wait(self, conversation: ConversationId, attempt: AttemptId) -> None: ...
    async def wake(self, conversation: ConversationId) -> None: ...
    async def answer(self, call: CallId, content: str) -> None: ...
    async def purge(self, instance: InstanceKey) -> None: ...
    async def prune(self, conversation: ConversationId, to: int) -> None: ...
    async def attachment_put(self, digest: str, media_type: str, data: bytes) -> None: ...
    async def attachment_get(self, digest: str) -> bytes: ...

    # configuration
    async def epoch(self, installation: str) -> int:
        """Take over as publisher: a new epoch fences the one before. A foreign installation: Conflict."""
        ...

    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction; returns the head clock. A stale epoch: Conflict.

        An older generation of the same uid changes nothing; another uid retires the head of the same name.
        Writes nothing, and does not raise the clock, where nothing changed.
        """
        ...

    async def retire(self, epoch: int, uids: Sequence[str]) -> int: ...
    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock, retired ones included, in the clock's order."""
        ...

    async def head_clock(self) -> int: ...
    async def revision(self, revision: RevisionId) -> StoredRevision | None: ...
    async def beat(self, component: Component) -> None: ...
    async def refuse(self, component: str, revision: RevisionId, message: str) -> None: ...
    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement: ...
    async def check_put(self, items: Sequence[CheckPut]) -> None: ...
    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None: ...
    async def check_claim(self, *, owner: str, limit: int, lease_ms: int) -> Sequence[CheckLease]: ...
    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None: ...
    async def check_results(self, *, after: int) -> Sequence[CheckResult]: ...
    async def check_get(self, kind: str, namespace: str, name: str) -> CheckResult | None: ...

    # life
    async def ready(self) -> None:
        """Raises Unavailable if the database does not answer or its schema is not ours."""
        ...

    async def aclose(self) -> None: ...


class Waker(Protocol):
    """Hints that something was committed. Losing one costs one poll, never more (I1)."""

    def touched(self, conversations: Sequence[ConversationId], *, work: bool) -> None:
        """Say that these logs grew and, if `work`, that a lane may be ready or a head was published."""
        ...

    def on_work(self, rouse: Callable[[], None]) -> Callable[[], None]:
        """Call `rouse` at each hint of work; returns what ends it. `rouse` must return at once."""
        ...

    def on_log(self, dirty: Callable[[Sequence[ConversationId] | None], None]) -> Callable[[], None]:
        """Call `dirty` with the logs that grew; None means all (after a re-listen)."""
        ...


class Clock(Protocol):
    """The process's own clock, for record times and local waits; leases never come from it."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...


class SecretSource(Protocol):
    """Reads the value of a Secret's key. Raises SecretMissing naming Secret and key, never the value."""

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str: ...


class Models(Protocol):
    """From a revision to the provider of one turn."""

    def provider(self, revision: AgentRevision, *, api_key: str | None, failed_tries: int) -> Provider: ...


class Toolboxes(Protocol):
    """From a revision to the tools of one attempt."""

    def open(
        self,
        revision: AgentRevision,
        *,
        catalogues: Mapping[str, Json],
        headers: Mapping[str, Mapping[str, str]],
    ) -> AbstractAsyncContextManager["Toolbox"]: ...


class Toolbox(ToolRuntime, Protocol):
    """A ToolRuntime that knows of each tool what the ledger must say."""

    @property
    def warnings(self) -> Sequence[str]: ...
    def policy(self, name: str) -> tuple[bool, bool]:
        """(idempotent, sequential) of a tool; an unknown one is (False, False)."""
        ...

    def keyed(self, submission: SubmissionId) -> None:
        """Name the submission: the idempotency key of a call is submission id + call id (I9)."""
        ...


class Probe(Protocol):
    """Runs a check: reads a Secret, discovers the tools of a server."""

    async def run(self, check: CheckLease) -> tuple[bool, str, str, Json]:
        """(ok, reason, message, result), never raising for what the outside does."""
        ...
