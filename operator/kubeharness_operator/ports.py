"""What reconcile needs from the outside: the Kubernetes API, and the store of what is published.

The store's side has the shapes of the engine's configuration verbs, which the operator knows by shape alone: what it
reads are protocols, what it writes are dataclasses with the same fields. A test compares them field by field.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kubeharness.core.ids import RevisionId
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.revision import StoredRevision
from kubeharness.kinds.common import API_VERSION

Document = dict[str, Any]
"""An object as the API server gives it."""

# --- the Kubernetes API -------------------------------------------------------------------------------------------


class ClusterError(Exception):
    """The API server did not do what it was asked; the sentence says what and why."""


class ClusterUnavailable(ClusterError):
    """No answer in time, or one that may be another next time."""


class NotServed(ClusterError):
    """The server does not know our kinds, or not with a status: their CRDs are missing."""


class Conflicted(ClusterError):
    """The object changed since it was read: read it again."""


class SchemaMismatch(ClusterError):
    """The server's CRD lacks a field that was written: ask again what it serves."""


class NamespaceLeaving(ClusterError):
    """The namespace is being deleted and takes no new object."""


class ObjectMeta(NamedTuple):
    """Who stands where."""

    namespace: str
    name: str
    uid: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEvent:
    """A core/v1 Event about an object."""

    api_version: str = API_VERSION
    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    warning: bool
    reason: str
    message: str


class Cluster(Protocol):
    """The few things that we ask of the API server. Each call has a deadline. Raises ClusterError."""

    async def schemas(self) -> Mapping[str, JsonObject]:
        """What the server takes as an object of each of our kinds, `spec` and `status` among its properties.

        By plural. Raises NotServed, naming the CRDs that are missing or have no status.
        """
        ...

    async def get(self, plural: str, namespace: str, name: str) -> Document | None:
        """The object as it is now, one of our kinds or a ConfigMap; None only if the server says that *it* is gone.

        A server that does not know the kind raises NotServed.
        """
        ...

    async def apply_status(
        self, plural: str, namespace: str, name: str, *, version: str, status: JsonObject
    ) -> Document | None:
        """Write the status if the object is still at this version; returns it as stored, None if it is gone.

        Raises Conflicted, SchemaMismatch.
        """
        ...

    async def check_list(self, plural: str, namespace: str | None) -> None:
        """Raises ClusterError unless we may list these, and so watch them."""
        ...

    async def list_metadata(self, plural: str, namespace: str | None) -> Sequence[ObjectMeta]:
        """All objects of a kind, complete and up to date, or an error."""
        ...

    async def record(self, event: ObjectEvent) -> None:
        """Create an Event."""
        ...


# --- the store of what is published -------------------------------------------------------------------------------


class EpochOver(Exception):
    """Another operator took over as publisher: whoever learns this writes nothing more and leaves."""


class Head(Protocol):
    """What is in force for one Agent object (`engine.ports.Head`)."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def desired(self) -> RevisionId | None: ...
    @property
    def active(self) -> RevisionId | None: ...
    @property
    def note(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def retired(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadWrite:
    """One publication (`engine.ports.HeadWrite`)."""

    namespace: str
    name: str
    uid: str
    generation: int
    desired: RevisionId | None
    activate: bool
    revision: StoredRevision | None = None
    lifetime_ms: int = 3_600_000
    note: str = ""


class Acknowledgement(Protocol):
    """Which live processes have loaded a head version (`engine.ports.Acknowledgement`)."""

    @property
    def workers(self) -> int: ...
    @property
    def workers_behind(self) -> int: ...
    @property
    def gateways(self) -> int: ...
    @property
    def gateways_behind(self) -> int: ...
    @property
    def refusals(self) -> Sequence[str]: ...
    @property
    def complete(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPut:
    """A question that only a worker may answer (`engine.ports.CheckPut`)."""

    kind: str
    namespace: str
    name: str
    uid: str
    digest: str
    payload: JsonObject
    interval_ms: int = 20_000


class CheckResult(Protocol):
    """The last answer to a question (`engine.ports.CheckResult`)."""

    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def ok(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def result(self) -> Json: ...
    @property
    def version(self) -> int: ...


class RevisionPublisher(Protocol):
    """The configuration verbs of the store that a publisher uses. Raises core's Unavailable and Conflict."""

    async def ready(self) -> None:
        """Raises Unavailable, with the reason, unless the database answers and this build may run on its schema."""
        ...

    async def epoch(self, installation: str) -> int:
        """Take over as publisher; a foreign installation's database is a Conflict."""
        ...

    async def publish(self, epoch: int, heads: Sequence[HeadWrite]) -> int:
        """Write heads and revisions in one transaction; an epoch that is over is a Conflict."""
        ...

    async def retire(self, epoch: int, uids: Sequence[str]) -> int: ...
    async def heads(self, *, after: int) -> Sequence[Head]:
        """Heads written after this head clock, in its order."""
        ...

    async def revision(self, revision: RevisionId) -> StoredRevision | None: ...
    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement: ...
    async def check_put(self, items: Sequence[CheckPut]) -> None: ...
    async def check_drop(self, items: Sequence[tuple[str, str, str]]) -> None: ...
    async def check_results(self, *, after: int) -> Sequence[CheckResult]: ...
