"""From what was found out about an object, and its previous status, to its status and what is worth an Event (pure).

Each condition has its own observedGeneration; its lastTransitionTime moves only when its status changes. Types and
reasons are the documented constants of `kubeharness.kinds.conditions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubeharness.kinds.conditions import MESSAGE_LIMIT, ConditionType, Reason

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
NEVER = "1970-01-01T00:00:00Z"
"""The lastTransitionTime of the schema's default status: no transition at all."""

Json = Any
Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fact:
    """Why something is as it is: a documented word, and a sentence that names the object and the key."""

    reason: str
    """One of `Reason`, or what a worker of a newer release said."""
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition before it is compared with the previous one."""

    status: str
    fact: Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the checks of an object's references say."""

    failing: tuple[Fact, ...] = ()
    waiting: tuple[str, ...] = ()
    """Checks that were never answered as they stand, each by what it asks for."""
    known: bool = True
    """False until the database has told the answers once: then the previous conditions stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """All that the status of an Agent follows from."""

    generation: int
    invalid: Fact | None = None
    """The spec does not compile: nothing but an edit helps."""
    unresolved: tuple[Fact, ...] = ()
    """References that the operator itself found missing or unusable; they keep the generation from being active."""
    answers: Answers = field(default_factory=Answers)
    """Of the references of this generation."""
    desired: str | None = None
    """The revision that this generation compiled to."""
    active: str | None = None
    """The revision that serves."""
    head_known: bool = True
    """False while the database has not told what serves: then what the previous status says stands."""
    programmed: Verdict
    """Of the desired revision; not looked at if there is none."""
    active_failing: tuple[Fact, ...] = ()
    """Checks that keep the active revision from running."""
    active_waiting: tuple[str, ...] = ()
    tools_resolved: int = 0
    tools_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """All that the status of a ModelProvider or a ToolServer follows from."""

    generation: int
    invalid: Fact | None = None
    secrets: Answers = field(default_factory=Answers)
    tools: Answers | None = None
    """The discovery of a ToolServer; None for a ModelProvider, which nobody probes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """Something that happened to an object and is worth an Event."""

    warning: bool
    reason: str
    message: str


def agent_status(facts: AgentFacts, previous: Mapping[str, Json], now: datetime) -> Status:
    """The status of an Agent, equal to the previous one if nothing changed."""
    accepted = _accepted(facts.invalid)
    resolved = _resolved(facts.invalid, facts.unresolved, facts.answers, previous, facts.generation)
    blocked = _blocked(facts)
    programmed = facts.programmed if blocked is None else Verdict(FALSE, blocked)
    ready = _ready([accepted, resolved, programmed], Fact(Reason.READY, f"generation {facts.generation} is in force"))
    verdicts = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.RESOLVED_REFS: resolved,
        ConditionType.PROGRAMMED: programmed,
        ConditionType.READY: ready,
        ConditionType.AVAILABLE: _available(facts, programmed, previous),
    }
    if facts.invalid is not None:
        verdicts[ConditionType.STALLED] = Verdict(TRUE, facts.invalid)
    elif blocked is None and programmed.status != TRUE:
        verdicts[ConditionType.RECONCILING] = Verdict(TRUE, programmed.fact)
    active = facts.active if facts.head_known else previous.get("activeRevision")
    return _status(
        facts.generation,
        verdicts,
        previous,
        now,
        desiredRevision=facts.desired,
        activeRevision=active,
        tools={"resolved": facts.tools_resolved, "total": facts.tools_total} if facts.tools_total else None,
    )


def source_status(facts: SourceFacts, previous: Mapping[str, Json], now: datetime) -> Status:
    """The status of a ModelProvider or ToolServer, equal to the previous one if nothing changed."""
    accepted = _accepted(facts.invalid)
    resolved = _resolved(facts.invalid, (), facts.secrets, previous, facts.generation)
    verdicts = {ConditionType.ACCEPTED: accepted, ConditionType.RESOLVED_REFS: resolved}
    if facts.tools is not None:
        verdicts[ConditionType.REACHABLE] = _answered(
            facts.invalid,
            facts.tools,
            Fact(Reason.REACHABLE, "the last discovery succeeded"),
            _stands(ConditionType.REACHABLE, previous, facts.generation),
        )
    verdicts[ConditionType.READY] = _ready(list(verdicts.values()), Fact(Reason.READY, "agents may use it"))
    return _status(facts.generation, verdicts, previous, now)


def transitions(status: Mapping[str, Json], previous: Mapping[str, Json]) -> Sequence[Transition]:
    """What the change from one status to the next is worth in Events: an object came or went out of force."""
    new, old = condition(status, ConditionType.READY), condition(previous, ConditionType.READY)
    if new is None:
        return ()
    if old is not None and (old.get("status"), old.get("reason")) == (new["status"], new["reason"]):
        return ()
    if new["status"] == TRUE or (new["status"] == FALSE and new["reason"] not in _PASSING):
        return (Transition(warning=new["status"] != TRUE, reason=str(new["reason"]), message=str(new["message"])),)
    return ()


_PASSING = frozenset({str(Reason.AWAITING_ACKNOWLEDGEMENT), str(Reason.CHECKS_PENDING), str(Reason.PENDING)})
"""Reasons that every healthy edit passes through: no news."""


def same(status: Mapping[str, Json], previous: Mapping[str, Json]) -> bool:
    """Whether a status says what the previous one did: the order of conditions and foreign ones do not count."""
    return _comparable(status) == _comparable(previous)


def condition(status: Mapping[str, Json], of: ConditionType) -> Mapping[str, Json] | None:
    """One condition of a status, however odd the status is."""
    conditions = status.get("conditions")
    for item in conditions if isinstance(conditions, list) else ():
        if isinstance(item, dict) and item.get("type") == str(of):
            return item
    return None


def pruned(value: Json, schema: Mapping[str, Json]) -> Json:
    """The value without the fields that a server's schema lacks: one unknown field fails a whole apply."""
    if isinstance(value, dict) and isinstance(schema.get("properties"), dict):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return value
        known = schema["properties"]
        return {name: pruned(item, known[name]) for name, item in value.items() if name in known}
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [pruned(item, schema["items"]) for item in value]
    return value


def _comparable(status: Mapping[str, Json]) -> tuple[Status, dict[str, Json]]:
    conditions = {str(of): condition(status, of) for of in ConditionType}
    return {name: value for name, value in status.items() if name != "conditions"}, conditions


# --- one function a condition -------------------------------------------------------------------------------------


def _accepted(invalid: Fact | None) -> Verdict:
    return Verdict(FALSE, invalid) if invalid else Verdict(TRUE, Fact(Reason.ACCEPTED, "the spec compiles"))


def _resolved(
    invalid: Fact | None,
    unresolved: Sequence[Fact],
    answers: Answers,
    previous: Mapping[str, Json],
    generation: int,
) -> Verdict:
    if unresolved:
        return Verdict(FALSE, _all([*unresolved, *answers.failing]))
    good = Fact(Reason.RESOLVED_REFS, "everything that is referred to exists and is usable")
    return _answered(invalid, answers, good, _stands(ConditionType.RESOLVED_REFS, previous, generation))


def _answered(invalid: Fact | None, answers: Answers, good: Fact, stands: Verdict | None) -> Verdict:
    if answers.failing:
        return Verdict(FALSE, _all(answers.failing))
    if invalid is not None:
        return Verdict(UNKNOWN, Fact(Reason.INVALID_SPEC, "not looked at, since the spec does not compile"))
    if not answers.known:
        why = Fact(Reason.DATABASE_UNAVAILABLE, "the database does not answer, so nothing is known of the checks")
        return stands or Verdict(UNKNOWN, why)
    if answers.waiting:
        asked = ", ".join(answers.waiting)
        return Verdict(UNKNOWN, Fact(Reason.CHECKS_PENDING, f"no worker has answered yet for {asked}"))
    return Verdict(TRUE, good)


def _blocked(facts: AgentFacts) -> Fact | None:
    """Why there is no revision of this generation to load."""
    if facts.invalid is not None:
        return facts.invalid
    return _all(facts.unresolved) if facts.unresolved else None


def _ready(needed: Sequence[Verdict], good: Fact) -> Verdict:
    """True if all are; else as the first that is False, else as the first that is not known."""
    for status in (FALSE, UNKNOWN):
        for verdict in needed:
            if verdict.status == status:
                return verdict
    return Verdict(TRUE, good)


def _available(facts: AgentFacts, programmed: Verdict, previous: Mapping[str, Json]) -> Verdict:
    before = condition(previous, ConditionType.AVAILABLE)
    if not facts.head_known:
        why = Fact(Reason.DATABASE_UNAVAILABLE, "the database does not answer, so it is not known what serves")
        return _as_verdict(before) or Verdict(UNKNOWN, why)
    if facts.active is None:
        return Verdict(FALSE, Fact(Reason.NO_REVISION, "no generation has compiled and resolved yet"))
    if facts.active_failing:
        return Verdict(FALSE, _all(facts.active_failing))
    this = facts.active == facts.desired
    if this and programmed.status != TRUE and (before is None or before.get("status") != TRUE):
        return Verdict(programmed.status, programmed.fact)  # the first revision: nothing older is loaded anywhere
    if facts.active_waiting:
        asked = ", ".join(facts.active_waiting)
        waiting = Verdict(UNKNOWN, Fact(Reason.CHECKS_PENDING, f"no worker has answered yet for {asked}"))
        return _as_verdict(before) or waiting if before and before.get("status") == TRUE else waiting
    if this:
        return Verdict(TRUE, Fact(Reason.AVAILABLE, f"a new dispatch runs on revision {facts.active}"))
    return Verdict(TRUE, Fact(Reason.OLDER_REVISION, f"a new dispatch runs on the last good revision {facts.active}"))


# --- from verdicts to a status ------------------------------------------------------------------------------------


def _status(
    generation: int,
    verdicts: Mapping[ConditionType, Verdict],
    previous: Mapping[str, Json],
    now: datetime,
    **fields: Json,
) -> Status:
    time = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = []
    for of, verdict in verdicts.items():
        old = condition(previous, of)
        kept = old is not None and old.get("status") == verdict.status and old.get("lastTransitionTime") != NEVER
        conditions.append(
            {
                "type": str(of),
                "status": verdict.status,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if old is not None and kept else time,
                "reason": str(verdict.fact.reason),
                "message": _cut(verdict.fact.message),
            }
        )
    present = {name: value for name, value in fields.items() if value is not None}
    return {"observedGeneration": generation, "conditions": conditions, **present}


def _stands(of: ConditionType, previous: Mapping[str, Json], generation: int) -> Verdict | None:
    """The previous verdict, if it was about the same generation and came from checks: the rest we see ourselves."""
    old = condition(previous, of)
    if old is None or old.get("observedGeneration") != generation or old.get("reason") in _OWN:
        return None
    return _as_verdict(old)


_OWN = frozenset(
    {
        *(Reason.PROVIDER_NOT_FOUND, Reason.PROVIDER_NOT_ACCEPTED),
        *(Reason.TOOL_SERVER_NOT_FOUND, Reason.TOOL_SERVER_NOT_ACCEPTED),
        *(Reason.CONFIG_MAP_NOT_FOUND, Reason.CONFIG_MAP_KEY_NOT_FOUND, Reason.CONFIG_MAP_VALUE_INVALID),
        Reason.INVALID_SPEC,
    }
)


def _as_verdict(old: Mapping[str, Json] | None) -> Verdict | None:
    if old is None:
        return None
    return Verdict(str(old.get("status")), Fact(str(old.get("reason")), str(old.get("message"))))


def _all(facts: Sequence[Fact]) -> Fact:
    """The first reason with every message: all that is wrong is said at once."""
    return Fact(facts[0].reason, "; ".join(dict.fromkeys(fact.message for fact in facts)))


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…"
