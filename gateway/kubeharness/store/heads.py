"""What a publication changes: pure decisions over the stored heads, the same for every store.

Who may publish is one number, the epoch; when it became so is another, the head clock. A backend locks the epoch's
row, reads the heads concerned, and writes what these functions return, in one transaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubeharness.core.errors import Conflict
from kubeharness.core.ids import RevisionId
from kubeharness.engine.ports import Acknowledgement, Component, Head, HeadWrite

LIVE_MS = 60_000
"""A component whose last beat is older has gone."""
FORGOTTEN_MS = 3_600_000
"""… and its row may be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRow:
    """A head as stored, unique by `head.uid`; of one namespace and name at most one is not retired."""

    head: Head
    lifetime_ms: int
    """Of a submission whose first claim takes the active revision."""


def bound(installation: str, stored: str | None) -> str:
    """A database belongs to one installation. Raises Conflict for another."""
    if stored is not None and stored != installation:
        raise Conflict(f"this database belongs to installation {stored!r}, not to {installation!r}")
    return installation


def fenced(epoch: int, stored: int) -> None:
    """Raise Conflict if somebody took over as publisher since `epoch` was given out."""
    if epoch != stored:
        raise Conflict(f"epoch {epoch} is over, {stored} publishes now")


def published(stored: Sequence[HeadRow], writes: Sequence[HeadWrite], *, clock: int) -> list[HeadRow]:
    """The rows that change, stamped clock + 1; none if nothing changes, and then the clock stays.

    `stored` holds the rows of the uids written and the rows of the namespaces and names written.
    """
    rows = {row.head.uid: row for row in stored}
    before = dict(rows)
    for write in writes:
        row = rows.get(write.uid)
        if row is not None and row.head.generation > write.generation:
            continue
        for other in list(rows.values()):
            same_name = (other.head.namespace, other.head.name) == (write.namespace, write.name)
            if same_name and other.head.uid != write.uid:
                rows[other.head.uid] = _retired(other)
        rows[write.uid] = _written(row, write)
    return [_stamped(row, clock + 1) for uid, row in rows.items() if row != before.get(uid)]


def _written(row: HeadRow | None, write: HeadWrite) -> HeadRow:
    """Last good: the active revision changes only with a generation that compiled and resolved."""
    active = row.head.active if row else None
    lifetime_ms = row.lifetime_ms if row else write.lifetime_ms
    if write.activate and write.desired is not None:
        active, lifetime_ms = write.desired, write.lifetime_ms
    head = Head(
        namespace=write.namespace,
        name=write.name,
        uid=write.uid,
        generation=write.generation,
        desired=write.desired,
        active=active,
        note=write.note,
        version=row.head.version if row else 0,
    )
    return HeadRow(head=head, lifetime_ms=lifetime_ms)


def retired(stored: Sequence[HeadRow], *, clock: int) -> list[HeadRow]:
    """The rows that a retirement changes, stamped clock + 1. Runs that began before still find their revision."""
    return [_stamped(_retired(row), clock + 1) for row in stored if not row.head.retired]


def _retired(row: HeadRow) -> HeadRow:
    return replace(row, head=replace(row.head, retired=True))


def _stamped(row: HeadRow, version: int) -> HeadRow:
    return replace(row, head=replace(row.head, version=version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A process could not load a revision."""

    component: str
    revision: RevisionId
    message: str


def acknowledged(
    live: Sequence[Component],
    refusals: Sequence[Refusal],
    of_version: Sequence[Head],
    *,
    version: int,
    pool: str,
) -> Acknowledgement:
    """Who of the live processes has loaded a head version, and why others could not.

    `live` have beaten within LIVE_MS; those that drain are left out here. `of_version` are the heads that carry
    this very version: refusals of their revisions are told.
    """
    counted = [component for component in live if not component.draining]
    workers = [component for component in counted if component.role == "worker" and component.pool == pool]
    gateways = [component for component in counted if component.role == "gateway"]
    revisions = {head.desired for head in of_version} | {head.active for head in of_version}
    ids = {component.id for component in counted}
    return Acknowledgement(
        workers=len(workers),
        workers_behind=sum(component.applied < version for component in workers),
        gateways=len(gateways),
        gateways_behind=sum(component.applied < version for component in gateways),
        refusals=tuple(
            sorted(
                {refusal.message for refusal in refusals if refusal.component in ids and refusal.revision in revisions}
            )
        ),
        releases=tuple(sorted({component.release for component in (*workers, *gateways) if component.release})),
    )
