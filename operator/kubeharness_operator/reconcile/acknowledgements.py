"""Which revisions are programmed: asked only while some are pending, and kept for good once they are.

A revision is programmed when its head is committed and every live worker and at least one gateway has loaded it.
That latches: pods that come and go later never turn it False.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kubeharness.core.ids import RevisionId
from kubeharness.kinds.conditions import Reason
from kubeharness_operator.conditions import FALSE, TRUE, UNKNOWN, Fact, Verdict
from kubeharness_operator.objects import Key
from kubeharness_operator.ports import Acknowledgement, RevisionPublisher

POOL = "shared"
MOST_QUESTIONS = 64
"""Head versions asked for in one go; the rest follows in the next."""


@dataclass(slots=True)
class _Pending:
    key: Key
    revision: RevisionId
    version: int
    verdict: Verdict


class Acknowledgements:
    """Verdicts on revisions by Agent uid."""

    def __init__(self, publisher: RevisionPublisher, rouse: Callable[[Key], None]) -> None:
        self._publisher = publisher
        self._rouse = rouse
        self._pending: dict[str, _Pending] = {}
        self._programmed: dict[str, tuple[RevisionId, Verdict]] = {}

    def __len__(self) -> int:
        """How many are pending."""
        return len(self._pending)

    def adopt(self, uid: str, revision: RevisionId, verdict: Verdict) -> None:
        """Take over what an earlier operator found, unless something newer is known of the uid."""
        if uid not in self._pending and uid not in self._programmed:
            self._programmed[uid] = (revision, verdict)

    def expect(self, uid: str, key: Key, revision: RevisionId, version: int) -> Verdict:
        """What is known of this revision, in force since head version `version`; asked from now on if it is nothing."""
        programmed = self._programmed.get(uid)
        if programmed is not None and programmed[0] == revision:
            return programmed[1]
        self._programmed.pop(uid, None)
        pending = self._pending.get(uid)
        if pending is None or pending.revision != revision:
            pending = self._pending[uid] = _Pending(key, revision, version, _verdict(revision, None))
        pending.version = version
        return pending.verdict

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._programmed.pop(uid, None)
        self._pending.pop(uid, None)

    async def ask(self) -> None:
        """Ask who has loaded what is pending, and rouse the keys whose verdict changed."""
        versions = sorted({pending.version for pending in self._pending.values()})[:MOST_QUESTIONS]
        for version in versions:
            answer = await self._publisher.acknowledged(version=version, pool=POOL)
            for uid, pending in list(self._pending.items()):
                if pending.version == version:
                    self._judge(uid, pending, answer)
            if not answer.complete and not answer.refusals:
                break  # who has not come as far as this version has not come further either

    def lost(self) -> None:
        """The database is gone: nobody knows of those that are pending."""
        unknown = Verdict(
            UNKNOWN,
            Fact(Reason.DATABASE_UNAVAILABLE, "the database does not answer, so nobody knows who has loaded it"),
        )
        for pending in self._pending.values():
            self._say(pending, unknown)

    def _judge(self, uid: str, pending: _Pending, answer: Acknowledgement) -> None:
        self._say(pending, _verdict(pending.revision, answer))
        if pending.verdict.status == TRUE:
            self._programmed[uid] = (pending.revision, pending.verdict)
            del self._pending[uid]

    def _say(self, pending: _Pending, verdict: Verdict) -> None:
        if pending.verdict != verdict:
            pending.verdict = verdict
            self._rouse(pending.key)


def _verdict(revision: RevisionId, answer: Acknowledgement | None) -> Verdict:
    """No counts in the message: a status is not rewritten for each pod that has loaded a revision."""
    awaited = Verdict(
        FALSE,
        Fact(Reason.AWAITING_ACKNOWLEDGEMENT, f"revision {revision} is not loaded everywhere it is needed yet"),
    )
    if answer is None:
        return awaited
    if answer.refusals:
        why = "; ".join(answer.refusals)
        return Verdict(FALSE, Fact(Reason.REVISION_REFUSED, f"revision {revision} could not be loaded: {why}"))
    if not answer.complete:
        if answer.gateways == 0:
            return Verdict(FALSE, Fact(Reason.NO_LIVE_GATEWAYS, f"no gateway is alive to load revision {revision}"))
        return awaited
    if answer.workers == 0:
        return Verdict(
            TRUE,
            Fact(
                Reason.NO_LIVE_WORKERS, f"no worker was alive to load revision {revision}; the next one loads it first"
            ),
        )
    return Verdict(TRUE, Fact(Reason.PROGRAMMED, f"revision {revision} is loaded where it is needed"))
