"""Leased checks as pure data: what a question, a lease and an answer change in a check's row."""

from dataclasses import dataclass, replace

from kubeharness.core.json import Json, JsonObject
from kubeharness.engine.ports import CheckLease, CheckPut, CheckResult

_LONGEST_RETRY_MS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """A check, unique by (kind, namespace, name). `version` is the check clock's value of its last change."""

    kind: str
    namespace: str
    name: str
    uid: str
    digest: str
    payload: JsonObject
    interval_ms: int
    due: int
    owner: str | None = None
    lease_until: int | None = None
    failures: int = 0
    done: bool = False
    ok: bool = False
    reason: str = ""
    message: str = ""
    result: Json = None
    version: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What names a check."""
        return (self.kind, self.namespace, self.name)

    def to_lease(self) -> CheckLease:
        """The question in a worker's hands."""
        return CheckLease(
            kind=self.kind, namespace=self.namespace, name=self.name, digest=self.digest, payload=self.payload
        )

    def to_result(self) -> CheckResult:
        """The last answer."""
        return CheckResult(
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
            uid=self.uid,
            digest=self.digest,
            done=self.done,
            ok=self.ok,
            reason=self.reason,
            message=self.message,
            result=self.result,
            version=self.version,
        )


def put(row: CheckRow | None, item: CheckPut, *, now: int, version: int) -> CheckRow | None:
    """The row after a question was put; None if it is the same question. A new or changed one is due at once.

    The last good result outlives a changed digest, not another object of the same name (uid).
    """
    if row is not None and (row.uid, row.digest) == (item.uid, item.digest):
        return None if row.interval_ms == item.interval_ms else replace(row, interval_ms=item.interval_ms)
    return CheckRow(
        kind=item.kind,
        namespace=item.namespace,
        name=item.name,
        uid=item.uid,
        digest=item.digest,
        payload=item.payload,
        interval_ms=item.interval_ms,
        due=now,
        result=row.result if row is not None and row.uid == item.uid else None,
        version=version,
    )


def is_due(row: CheckRow, *, now: int) -> bool:
    """Whether a worker may lease it."""
    return row.due <= now and (row.lease_until is None or row.lease_until <= now)


def leased(row: CheckRow, *, owner: str, now: int, lease_ms: int) -> CheckRow:
    """The row in a worker's hands."""
    return replace(row, owner=owner, lease_until=now + lease_ms)


def retry_ms(failures: int) -> int:
    """After 1, 2, 4 … 20 s."""
    return min(_LONGEST_RETRY_MS, 1000 << min(max(failures, 1) - 1, 16))


def answered(
    row: CheckRow | None,
    lease: CheckLease,
    *,
    ok: bool,
    reason: str,
    message: str,
    result: Json,
    now: int,
    version: int,
) -> CheckRow | None:
    """The row after an answer; None if the question is gone or is another one by now.

    It carries `version` only if the answer changed. A failure keeps the last good result.
    """
    if row is None or row.digest != lease.digest:
        return None
    failures = 0 if ok else row.failures + 1
    after = replace(
        row,
        owner=None,
        lease_until=None,
        failures=failures,
        due=now + (row.interval_ms if ok else retry_ms(failures)),
        done=True,
        ok=ok,
        reason=reason,
        message=message,
        result=result if ok else row.result,
    )
    changed = after.to_result() != row.to_result()
    return replace(after, version=version) if changed else after
