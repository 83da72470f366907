"""Agents: resolved, compiled, published under last good, and told what became of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from kubeharness.core.errors import Unavailable
from kubeharness.core.revision import AgentRevision
from kubeharness.kinds.checks import TOOLS, CheckSpec, checks_for, checks_of
from kubeharness.kinds.compiler import Compiled, compile_agent, compile_tool_server
from kubeharness.kinds.conditions import ConditionType, Reason
from kubeharness.kinds.problems import Problem, ProblemKind, Problems
from kubeharness.kinds.references import references_of
from kubeharness_operator.conditions import (
    TRUE,
    UNKNOWN,
    AgentFacts,
    Fact,
    Verdict,
    agent_status,
    condition,
)
from kubeharness_operator.objects import CONFIG_MAPS, KINDS, PROVIDERS, TOOL_SERVERS, Document, Key, Objects, Seen
from kubeharness_operator.ports import Conflicted, Head, HeadWrite
from kubeharness_operator.reconcile.acknowledgements import Acknowledgements
from kubeharness_operator.reconcile.checks import Checks
from kubeharness_operator.reconcile.heads import Heads
from kubeharness_operator.reconcile.lookups import Lookups
from kubeharness_operator.reconcile.reports import Reports
from kubeharness_operator.references import References

_PLURALS = {kind: plural for plural, kind in KINDS.items()} | {"ConfigMap": CONFIG_MAPS}


@dataclass(frozen=True, slots=True)
class _Judged:
    """What became of one generation."""

    compiled: Compiled | None
    problems: tuple[Problem, ...]
    specs: tuple[CheckSpec, ...]
    """The checks without which this generation is not usable."""

    def of(self, kind: ProblemKind) -> tuple[Fact, ...]:
        return tuple(Fact(problem.reason, str(problem)) for problem in self.problems if problem.kind is kind)


@dataclass(frozen=True, slots=True)
class _Serving:
    """What the database says; `head` is None and `known` False where it says nothing."""

    head: Head | None
    revision: AgentRevision | None
    known: bool
    done: bool
    """Everything was written that had to be."""


class Agents:
    """The use case for Agents."""

    def __init__(
        self,
        *,
        objects: Objects,
        lookups: Lookups,
        references: References[Key, Key],
        heads: Heads,
        checks: Checks,
        acknowledgements: Acknowledgements,
        reports: Reports,
        now: Callable[[], datetime],
    ) -> None:
        self._objects = objects
        self._lookups = lookups
        self._references = references
        self._heads = heads
        self._checks = checks
        self._acknowledgements = acknowledgements
        self._reports = reports
        self._now = now

    async def work(self, key: Key) -> bool:
        """Handle one key; False if something is left to do once the database answers."""
        seen = self._objects.get(key)
        if seen is None:
            return await self._gone(key)
        judged = await self._judge(seen)
        serving = await self._publish(seen, judged)
        done = await self._need(seen, judged, serving)
        status = agent_status(self._facts(seen, judged, serving), seen.status, self._now())
        await self._reports.report(seen, status)
        return serving.done and done

    # --- look up, resolve, compile --------------------------------------------------------------------------------

    async def _judge(self, seen: Seen) -> _Judged:
        named = _named(seen)
        self._references.put(seen.key, named)  # before the look-ups: what changes meanwhile rouses this key again
        found = {key: document for key in named if (document := await self._lookups.find(key)) is not None}
        specs = [spec for key, document in found.items() for spec in checks_for(document) if _needed(spec, document)]
        compiled = compile_agent(
            seen.document,
            providers=_by_name(found, PROVIDERS),
            tool_servers=_by_name(found, TOOL_SERVERS),
            config_maps=_by_name(found, CONFIG_MAPS),
        )
        if isinstance(compiled, Problems):
            return _Judged(None, tuple(compiled), tuple(specs))
        return _Judged(compiled, (), tuple(specs))

    # --- publish --------------------------------------------------------------------------------------------------

    async def _publish(self, seen: Seen, judged: _Judged) -> _Serving:
        """Last good: a generation that does not compile or resolve moves `desired` only; `active` goes on serving."""
        before = self._heads.get(seen.uid)
        try:
            head = await self._heads.publish(_write(seen, judged))
        except Unavailable:
            return await self._serving(before, judged, known=self._heads.known, done=False)
        if head.generation > seen.generation:
            await self._lookups.find_now(seen.key)
            raise Conflicted(f"{seen.key}: generation {head.generation} is published, {seen.generation} was seen")
        if head.active != (before.active if before else None) and head.active is not None:
            self._acknowledgements.expect(seen.uid, seen.key, head.active, head.version)
        return await self._serving(head, judged, known=True, done=True)

    async def _serving(self, head: Head | None, judged: _Judged, *, known: bool, done: bool) -> _Serving:
        revision = None
        if judged.compiled is not None and head is not None and head.active == judged.compiled.stored.id:
            revision = judged.compiled.revision
        elif head is not None and head.active is not None:
            try:
                revision = await self._heads.revision(head.active)
            except Unavailable:
                done = False
        return _Serving(head, revision, known, done)

    async def _need(self, seen: Seen, judged: _Judged, serving: _Serving) -> bool:
        """Keep the checks alive that this generation or the revision in force stands on."""
        namespace = seen.key.namespace
        needed = list(checks_of(judged.compiled.revision, namespace)) if judged.compiled else []
        if serving.revision is not None:
            needed += checks_of(serving.revision, namespace)
        try:
            await self._checks.need(seen.key, needed)
        except Unavailable:
            return False
        return True

    # --- report ---------------------------------------------------------------------------------------------------

    def _facts(self, seen: Seen, judged: _Judged, serving: _Serving) -> AgentFacts:
        namespace = seen.key.namespace
        invalid = judged.of(ProblemKind.NOT_COMPILING)
        failing: tuple[Fact, ...] = ()
        waiting: tuple[str, ...] = ()
        if serving.revision is not None:
            failing, waiting = self._checks.keeps_from_running(serving.revision, namespace)
        grants = judged.compiled.revision.tools if judged.compiled else ()
        answers = self._checks.answers(judged.specs)
        if judged.compiled is not None:
            unknown = self._checks.not_offered(judged.compiled.revision, namespace)
            answers = replace(answers, failing=(*answers.failing, *unknown))
        return AgentFacts(
            generation=seen.generation,
            invalid=Fact(invalid[0].reason, "; ".join(fact.message for fact in invalid)) if invalid else None,
            unresolved=judged.of(ProblemKind.UNRESOLVED),
            answers=answers,
            desired=judged.compiled.stored.id if judged.compiled else None,
            active=serving.head.active if serving.head else None,
            head_known=serving.known,
            programmed=self._programmed(seen, judged, serving),
            active_failing=failing,
            active_waiting=waiting,
            tools_resolved=sum(
                grant.server is None or self._checks.discovered(namespace, grant.server.name) for grant in grants
            ),
            tools_total=len(grants),
        )

    def _programmed(self, seen: Seen, judged: _Judged, serving: _Serving) -> Verdict:
        if judged.compiled is None:
            return Verdict(UNKNOWN, Fact(Reason.PENDING, "there is no revision to load"))
        desired = judged.compiled.stored.id
        earlier = _earlier(seen, desired)
        head = serving.head
        if head is not None and head.active == desired and head.generation == seen.generation:
            if earlier is not None:
                self._acknowledgements.adopt(seen.uid, desired, earlier)
            return self._acknowledgements.expect(seen.uid, seen.key, desired, head.version)
        # Not published, since the database does not answer. An operator before us may have done it, and said so.
        why = Fact(Reason.DATABASE_UNAVAILABLE, f"the database does not answer, so {desired} cannot be published")
        return earlier if earlier is not None and head is None else Verdict(UNKNOWN, why)

    # --- gone -----------------------------------------------------------------------------------------------------

    async def _gone(self, key: Key) -> bool:
        """Retire what stands under a name that no watch shows, once the API server has said that it is gone."""
        self._references.drop(key)
        if not self._heads.known:
            return False
        heads = self._heads.at(key.namespace, key.name)
        if heads:
            if await self._lookups.find_now(key) is not None:
                return await self.work(key)
            try:
                await self._heads.retire([head.uid for head in heads])
            except Unavailable:
                return False
            for head in heads:
                self._acknowledgements.forget(head.uid)
        try:
            await self._checks.need(key, ())
        except Unavailable:
            return False
        return True


def _named(seen: Seen) -> list[Key]:
    """What the object refers to, Secrets left out: those are nobody's to read here."""
    named = references_of({**seen.document, "kind": KINDS[seen.key.plural]})
    return [Key(_PLURALS[ref.kind], seen.key.namespace, ref.name) for ref in named if ref.kind in _PLURALS]


def _needed(spec: CheckSpec, document: Document) -> bool:
    """A tool server whose discovery is optional does not hold an Agent back; its Secrets do."""
    if spec.kind != TOOLS:
        return True
    server = compile_tool_server(document)
    return isinstance(server, Problems) or server.required


def _by_name(found: dict[Key, Document], plural: str) -> dict[str, Document]:
    return {key.name: document for key, document in found.items() if key.plural == plural}


def _write(seen: Seen, judged: _Judged) -> HeadWrite:
    compiled = judged.compiled
    if compiled is None:
        return HeadWrite(
            namespace=seen.key.namespace,
            name=seen.key.name,
            uid=seen.uid,
            generation=seen.generation,
            desired=None,
            activate=False,
            note=Problems(judged.problems).message(),
        )
    return HeadWrite(
        namespace=seen.key.namespace,
        name=seen.key.name,
        uid=seen.uid,
        generation=seen.generation,
        desired=compiled.stored.id,
        activate=True,
        revision=compiled.stored,
        lifetime_ms=compiled.revision.durability.submission_timeout_seconds * 1000,
    )


def _earlier(seen: Seen, desired: str) -> Verdict | None:
    """What the status says of this very revision and generation: that it is programmed, or nothing."""
    said = condition(seen.status, ConditionType.PROGRAMMED)
    if (
        said is None
        or said.get("status") != TRUE
        or said.get("observedGeneration") != seen.generation
        or seen.status.get("activeRevision") != desired
    ):
        return None
    return Verdict(TRUE, Fact(str(said.get("reason")), str(said.get("message"))))
