"""What a database must do for `store.verbs`, and nothing about states: rows, transactions, plain reads.

A verb locks lanes (in id order), reads side rows once, decides with `core.transitions`, and hands over one
`Writes`. The lock comes first and the side rows are read by a later statement, so that nothing is decided
from a snapshot older than the lock (I7). Times are milliseconds of the backend's own clock, read after the
lock (I4).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

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
)
from kubeharness.core.json import Json
from kubeharness.core.lane import CallState, InboxMessage, Lane, OpenCall
from kubeharness.core.records import StoredRecord
from kubeharness.core.revision import StoredRevision
from kubeharness.engine.ports import (
    Acknowledgement,
    CheckLease,
    CheckPut,
    CheckResult,
    Component,
    Head,
    HeadWrite,
    Loaded,
    Page,
    UsageRow,
)


class RaceLost(Exception):
    """Another transaction came first: a unique key was taken, a deadlock, a serialisation failure.

    Nothing of this transaction is stored. The verbs run its items again, each in a transaction of its own,
    and then find what came first (I2, I14).
    """


class SchemaRefused(KubeharnessError):
    """The schema is one that this build may not run on, or none at all; nothing was touched."""

    code: ClassVar[str] = "schema_refused"


# --- rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRow:
    """Insert-only identity of a conversation. Unique by `id` (derived from `key`)."""

    id: ConversationId
    key: SessionKey
    owner: str | None = None
    """The principal that created it."""
    fork_conversation: ConversationId | None = None
    fork_seq: int | None = None
    """A fork shares its prefix by reference and counts on from there."""
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRow:
    """Key, digest and receipt of an admitted dispatch (I2); outlives the data by `idempotencySeconds`.

    Unique by `submission_id`, which is derived from instance and dispatch id and so *is* the key.
    """

    submission_id: SubmissionId
    conversation: ConversationId
    dispatch_id: str
    digest: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow:
    """One admitted dispatch. Unique by `id` and by (conversation, position)."""

    id: SubmissionId
    conversation: ConversationId
    position: int
    message: bytes
    digest: str
    principal: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: str = "interactive"
    traceparent: str | None = None
    parent_submission: SubmissionId | None = None
    parent_call: CallId | None = None
    depth: int = 0
    revision: RevisionId | None = None
    """Pinned by the first claim (I4)."""
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One claim, insert-only. Unique by `id`."""

    id: AttemptId
    conversation: ConversationId
    position: int
    submission_id: SubmissionId
    claim: int
    owner: str
    revision: RevisionId
    initialised: bytes | None = None
    """What the initialiser returned."""
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """One entry of a log. Unique by (conversation, seq)."""

    conversation: ConversationId
    record: StoredRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """A message for a run. Unique by (conversation, message.id); kept after it was consumed, for repeats.

    The backend keeps the order in which they were put (written under the lane's lock).
    """

    message: InboxMessage
    consumed: bool = False
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRow:
    """The end of a submission, with its record. Insert-only, unique by `submission_id`, which guards I7."""

    submission_id: SubmissionId
    conversation: ConversationId
    position: int
    attempts: int
    record: StoredRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageEntry:
    """What one model call cost. Unique by (attempt, number): each numbered write carries at most one."""

    attempt: AttemptId
    number: int
    conversation: ConversationId
    position: int
    """The submission's."""
    usage: UsageRow
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """Something to be told to the outside once, after the commit (a later release sends them)."""

    conversation: ConversationId
    kind: str
    body: bytes
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The first claim's revision, written on the submission (I4)."""

    submission_id: SubmissionId
    conversation: ConversationId
    position: int
    revision: RevisionId


@dataclass(slots=True)
class Writes:
    """All that one transaction changes. No row is in two lists: a call opened and closed is in neither.

    Instances are inserted if missing. Every other insert that meets an existing row raises `RaceLost`.
    Updates and deletes name rows that the transaction has read under the lane's lock.
    """

    instances: list[InstanceKey] = field(default_factory=list)
    conversations: list[ConversationRow] = field(default_factory=list)
    lanes_new: list[Lane] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    """Whole rows, changed."""
    dispatches: list[DispatchRow] = field(default_factory=list)
    submissions: list[SubmissionRow] = field(default_factory=list)
    pins: list[Pin] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    records: list[RecordRow] = field(default_factory=list)
    calls_opened: list[OpenCall] = field(default_factory=list)
    calls_changed: list[tuple[ConversationId, CallId, CallState]] = field(default_factory=list)
    calls_closed: list[tuple[ConversationId, CallId]] = field(default_factory=list)
    """Ledger rows to delete."""
    inbox_put: list[InboxRow] = field(default_factory=list)
    inbox_consumed: list[tuple[ConversationId, InboxId]] = field(default_factory=list)
    settlements: list[SettlementRow] = field(default_factory=list)
    usage: list[UsageEntry] = field(default_factory=list)
    outbox: list[OutboxRow] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return any(getattr(self, name) for name in Writes.__slots__)


# --- a transaction ------------------------------------------------------------------------------


@dataclass(slots=True)
class Need:
    """Which side rows a verb wants once it holds its lanes; asked in one go, so a backend may fuse them."""

    conversations: set[ConversationId] = field(default_factory=set)
    dispatches: set[SubmissionId] = field(default_factory=set)
    """By key, wherever they are: the row may belong to a lane that is not locked."""
    submissions: set[SubmissionId] = field(default_factory=set)
    """By id."""
    positions: set[tuple[ConversationId, int]] = field(default_factory=set)
    """Submissions by their place."""
    calls: set[ConversationId] = field(default_factory=set)
    """The whole ledger of these."""
    inbox: set[ConversationId] = field(default_factory=set)
    """Their unread messages."""
    inbox_ids: set[tuple[ConversationId, InboxId]] = field(default_factory=set)
    """Single messages, consumed or not."""

    def __bool__(self) -> bool:
        """Whether there is anything to ask."""
        return any(getattr(self, name) for name in Need.__slots__)


@dataclass(slots=True)
class Side:
    """The answer to a `Need`. What is missing is absent; ledgers and inboxes asked for may be empty lists."""

    conversations: dict[ConversationId, ConversationRow] = field(default_factory=dict)
    dispatches: dict[SubmissionId, DispatchRow] = field(default_factory=dict)
    submissions: dict[SubmissionId, SubmissionRow] = field(default_factory=dict)
    positions: dict[tuple[ConversationId, int], SubmissionRow] = field(default_factory=dict)
    calls: dict[ConversationId, list[OpenCall]] = field(default_factory=dict)
    """In the order in which they were opened."""
    inbox: dict[ConversationId, list[InboxMessage]] = field(default_factory=dict)
    """In the order in which they were put."""
    inbox_ids: dict[tuple[ConversationId, InboxId], InboxRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A locked ready lane, the revision that a claim would run, and the lifetime that its head is given."""

    lane: Lane
    revision: RevisionId
    """The lane's pinned one, else the active one of its incarnation's head (retired or not)."""
    lifetime_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Which lanes attempts hold. An attempt in neither has lost its lane."""

    lanes: Mapping[AttemptId, Lane]
    skipped: frozenset[AttemptId] = frozenset()
    """Holds its lane, which somebody else has locked just now."""


class Transaction(Protocol):
    """An open transaction. Committed when its block ends, rolled back when the block raises."""

    @property
    def now(self) -> int:
        """The store's clock in milliseconds; after a lock it is read anew, so never older than the lock."""
        ...

    async def lock_lanes(self, ids: Sequence[ConversationId]) -> dict[ConversationId, Lane]:
        """Lock and read these lanes in id order, waiting (at most the lock timeout); missing ones are absent.

        `ids` are sorted and distinct. The order is that of code points (`COLLATE "C"`).
        """
        ...

    async def lock_candidates(
        self, *, pool: str, limit: int, failed: int, formats: Sequence[int], all_ready: bool
    ) -> Sequence[Candidate]:
        """Lock up to `limit` ready lanes of a pool, oldest ready time first, skipping rows that are locked.

        At most `failed` of them have failures > 0 (I10). Lanes without a revision to run, or with one of
        another format, are left out by the query itself, so that they hide no other lane (I14).
        `all_ready` leaves a low-water bound of the scan out, where there is one.
        """
        ...

    async def lock_expired(self, limit: int) -> Sequence[Lane]:
        """Lock running lanes whose lease is over by the store's clock, skipping rows that are locked."""
        ...

    async def lock_delayed(self, limit: int) -> Sequence[Lane]:
        """Lock delayed lanes whose time has come by the store's clock, skipping rows that are locked."""
        ...

    async def lock_held(self, attempts: Sequence[AttemptId], *, skip_locked: bool) -> Holdings:
        """Lock the lanes that these attempts hold; without `skip_locked`, wait for them."""
        ...

    async def side(self, need: Need) -> Side:
        """Read side rows by a statement of its own, begun after the locks were taken."""
        ...

    async def write(self, writes: Writes) -> None:
        """Store all of it. Raises RaceLost; called at most once, last."""
        ...


# --- reads --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A submission with all that its state derives from, read in one snapshot."""

    submission: SubmissionRow
    conversation: ConversationRow
    lane: Lane
    settlement: SettlementRow | None


class Snapshot(Protocol):
    """One consistent, read-only view of everything, for `verify`.

    Each walk is ordered by conversation first (by code points), then as said; several may be under way at
    once, and none holds more than a batch of rows in memory.
    """

    def conversations(self) -> AsyncIterator[ConversationRow]: ...
    def lanes(self) -> AsyncIterator[Lane]: ...
    def submissions(self) -> AsyncIterator[SubmissionRow]:
        """Then by position."""
        ...

    def settlements(self) -> AsyncIterator[SettlementRow]:
        """Then by position."""
        ...

    def attempts(self) -> AsyncIterator[AttemptRow]:
        """Then by position and claim."""
        ...

    def dispatches(self) -> AsyncIterator[DispatchRow]:
        """Then by submission id."""
        ...

    def records(self) -> AsyncIterator[RecordRow]:
        """Then by seq."""
        ...

    def calls(self) -> AsyncIterator[OpenCall]:
        """Then in the order of opening."""
        ...

    def inbox(self) -> AsyncIterator[InboxRow]:
        """Then in the order of putting."""
        ...


class Backend(Protocol):
    """One database. Raises `core.errors.Unavailable` where it does not answer; no driver error leaves it."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...
    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]: ...

    # plain reads, each one snapshot
    async def page(self, conversation: ConversationId, *, after: int, limit: int) -> Page | None:
        """Records with a greater seq, in order, with the lane as of the same snapshot (I6)."""
        ...

    async def moved(self, watched: Mapping[ConversationId, int]) -> Sequence[ConversationId]:
        """Those whose lane's last_seq is beyond the given one."""
        ...

    async def load(self, conversation: ConversationId) -> Loaded | None:
        """Lane, ledger, unread inbox, and the records after `load_seq` that are no deltas."""
        ...

    async def find(self, submission: SubmissionId) -> Found | None: ...
    async def find_unsettled(self, conversation: ConversationId, *, limit: int) -> Sequence[Found]:
        """Submissions from the head on that have no settlement, in order of position."""
        ...

    # configuration: as `engine.ports.Store` promises it; `store.heads` and `store.checks` decide, purely
    async def epoch(self, installation: str) -> int: ...
    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int: ...
    async def retire(self, epoch: int, uids: Sequence[str]) -> int: ...
    async def heads(self, *, after: int) -> Sequence[Head]: ...
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
