"""From facts and the previous status to the next: what each condition says, and that nothing moves without a change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.kinds.agent import Agent
from kubeharness.kinds.conditions import MESSAGE_LIMIT, ConditionType, Reason
from kubeharness_operator.conditions import (
    FALSE,
    TRUE,
    UNKNOWN,
    AgentFacts,
    Answers,
    Fact,
    SourceFacts,
    Status,
    Verdict,
    agent_status,
    condition,
    pruned,
    same,
    source_status,
    transitions,
)

T0 = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
LATER = T0 + timedelta(minutes=5)
R1, R2 = "sha256:1", "sha256:2"

LOADED = Verdict(TRUE, Fact(Reason.PROGRAMMED, "loaded"))
AWAITED = Verdict(FALSE, Fact(Reason.AWAITING_ACKNOWLEDGEMENT, "not loaded everywhere"))
NO_SECRET = Fact(Reason.SECRET_NOT_FOUND, "Secret ns/key is not there")
NO_PROVIDER = Fact(Reason.PROVIDER_NOT_FOUND, "ModelProvider gone does not exist")
BAD_SPEC = Fact(Reason.INVALID_SPEC, "spec.model: is required")

GOOD = AgentFacts(generation=1, desired=R1, active=R1, programmed=LOADED)
MISSING = AgentFacts(generation=2, unresolved=(NO_PROVIDER,), active=R1, programmed=LOADED)


def said(status: Status) -> dict[str, str]:
    """Condition → status."""
    return {item["type"]: item["status"] for item in status["conditions"]}


def one(status: Status, of: ConditionType) -> Any:
    found = condition(status, of)
    assert found is not None, of
    return found


def default_status() -> Status:
    """What the schema fills in."""
    return Agent.model_fields["status"].default.model_dump(by_alias=True, exclude_none=True)  # type: ignore[no-any-return]


def test_a_good_generation_is_ready_and_available() -> None:
    status = agent_status(GOOD, default_status(), T0)

    assert said(status) == {
        "Accepted": TRUE,
        "ResolvedRefs": TRUE,
        "Programmed": TRUE,
        "Ready": TRUE,
        "Available": TRUE,
    }
    assert (status["desiredRevision"], status["activeRevision"]) == (R1, R1)
    assert {item["observedGeneration"] for item in status["conditions"]} == {1}


def test_a_pending_revision_is_reconciling_and_nothing_is_available_that_nobody_loaded() -> None:
    status = agent_status(replace(GOOD, programmed=AWAITED), {}, T0)

    assert said(status) == {
        "Accepted": TRUE,
        "ResolvedRefs": TRUE,
        "Programmed": FALSE,
        "Ready": FALSE,
        "Available": FALSE,
        "Reconciling": TRUE,
    }
    assert one(status, ConditionType.READY)["reason"] == Reason.AWAITING_ACKNOWLEDGEMENT


def test_while_a_second_revision_is_pending_the_first_one_serves() -> None:
    before = agent_status(GOOD, {}, T0)
    after = agent_status(replace(GOOD, generation=2, desired=R2, active=R2, programmed=AWAITED), before, LATER)

    assert one(after, ConditionType.AVAILABLE)["status"] == TRUE
    assert one(after, ConditionType.READY)["status"] == FALSE


def test_ready_waits_for_the_answers_of_the_checks() -> None:
    waiting = Answers(waiting=("Secret ns/key key 'k'",))
    status = agent_status(replace(GOOD, answers=waiting), {}, T0)

    assert one(status, ConditionType.READY)["status"] == UNKNOWN
    assert one(status, ConditionType.READY)["reason"] == Reason.CHECKS_PENDING
    assert "Secret ns/key key 'k'" in one(status, ConditionType.RESOLVED_REFS)["message"]


def test_a_missing_reference_leaves_the_last_good_revision_serving() -> None:
    status = agent_status(MISSING, agent_status(GOOD, {}, T0), LATER)

    assert said(status) == {
        "Accepted": TRUE,
        "ResolvedRefs": FALSE,
        "Programmed": FALSE,
        "Ready": FALSE,
        "Available": TRUE,
    }
    assert one(status, ConditionType.READY)["reason"] == Reason.PROVIDER_NOT_FOUND
    assert "gone" in one(status, ConditionType.READY)["message"]
    assert one(status, ConditionType.AVAILABLE)["reason"] == Reason.OLDER_REVISION
    assert "desiredRevision" not in status
    assert status["activeRevision"] == R1


def test_a_spec_that_does_not_compile_is_stalled_and_its_references_are_not_judged() -> None:
    status = agent_status(AgentFacts(generation=1, invalid=BAD_SPEC, programmed=LOADED), {}, T0)

    assert said(status) == {
        "Accepted": FALSE,
        "ResolvedRefs": UNKNOWN,
        "Programmed": FALSE,
        "Ready": FALSE,
        "Available": FALSE,
        "Stalled": TRUE,
    }
    assert one(status, ConditionType.AVAILABLE)["reason"] == Reason.NO_REVISION


def test_a_secret_that_is_gone_ends_ready_and_available_and_says_which() -> None:
    facts = replace(GOOD, answers=Answers(failing=(NO_SECRET,)), active_failing=(NO_SECRET,))
    status = agent_status(facts, agent_status(GOOD, {}, T0), LATER)

    assert said(status)["ResolvedRefs"] == said(status)["Ready"] == said(status)["Available"] == FALSE
    assert one(status, ConditionType.PROGRAMMED)["status"] == TRUE
    assert one(status, ConditionType.READY)["reason"] == Reason.SECRET_NOT_FOUND
    assert "Secret ns/key" in one(status, ConditionType.READY)["message"]


def test_without_a_database_only_what_is_pending_turns_unknown() -> None:
    unknown = Verdict(UNKNOWN, Fact(Reason.DATABASE_UNAVAILABLE, "no answer"))
    before = agent_status(GOOD, {}, T0)
    nothing_known = replace(GOOD, active=None, head_known=False, answers=Answers(known=False))
    kept = agent_status(nothing_known, before, LATER)
    edited = agent_status(replace(nothing_known, generation=2, desired=R2, programmed=unknown), before, LATER)

    assert same(kept, before)
    assert said(edited)["Programmed"] == said(edited)["Ready"] == UNKNOWN
    assert one(edited, ConditionType.RECONCILING)["status"] == TRUE
    assert one(edited, ConditionType.AVAILABLE)["status"] == TRUE
    assert edited["activeRevision"] == R1


def test_what_we_see_ourselves_is_not_kept_for_want_of_a_database() -> None:
    missing = agent_status(replace(MISSING, generation=1, head_known=False, active=None), {}, T0)
    there = agent_status(replace(GOOD, head_known=False, answers=Answers(known=False)), missing, LATER)

    assert one(there, ConditionType.RESOLVED_REFS)["reason"] == Reason.DATABASE_UNAVAILABLE


def test_a_transition_time_moves_with_the_status_and_never_without() -> None:
    first = agent_status(GOOD, default_status(), T0)
    second = agent_status(replace(GOOD, generation=2), first, LATER)
    third = agent_status(replace(MISSING, generation=3), second, LATER)

    assert {item["lastTransitionTime"] for item in first["conditions"]} == {"2026-05-01T12:00:00Z"}
    assert {item["lastTransitionTime"] for item in second["conditions"]} == {"2026-05-01T12:00:00Z"}
    assert one(third, ConditionType.ACCEPTED)["lastTransitionTime"] == "2026-05-01T12:00:00Z"
    assert one(third, ConditionType.READY)["lastTransitionTime"] == "2026-05-01T12:05:00Z"


def test_an_unknown_ready_of_the_schema_gets_a_real_time_once_we_looked() -> None:
    facts = replace(GOOD, answers=Answers(waiting=("x",)))
    status = agent_status(facts, default_status(), T0)

    assert one(status, ConditionType.READY)["lastTransitionTime"] == "2026-05-01T12:00:00Z"


def test_every_problem_is_said_and_a_message_fits_the_schema() -> None:
    many = tuple(Fact(Reason.TOOL_SERVER_NOT_FOUND, f"ToolServer t{number} " + 100 * "x") for number in range(100))
    status = agent_status(replace(MISSING, unresolved=(NO_PROVIDER, *many)), {}, T0)
    message = one(status, ConditionType.RESOLVED_REFS)["message"]

    assert "ModelProvider gone" in message
    assert "ToolServer t0 " in message
    assert len(message) == MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (None, TRUE),
        (Answers(), TRUE),
        (Answers(waiting=("tools",)), UNKNOWN),
        (Answers(failing=(NO_SECRET,)), FALSE),
    ],
)
def test_a_source_is_ready_if_all_of_it_is(tools: Answers | None, expected: str) -> None:
    status = source_status(SourceFacts(generation=4, tools=tools), {}, T0)

    assert said(status)["Ready"] == expected
    assert ("Reachable" in said(status)) == (tools is not None)


def test_only_news_is_worth_an_event() -> None:
    pending = agent_status(replace(GOOD, programmed=AWAITED), {}, T0)
    good = agent_status(GOOD, pending, T0)
    bad = agent_status(MISSING, good, LATER)

    assert transitions(pending, default_status()) == ()
    assert [(event.warning, event.reason) for event in transitions(good, pending)] == [(False, "Ready")]
    assert [(event.warning, event.reason) for event in transitions(bad, good)] == [(True, "ProviderNotFound")]
    assert transitions(agent_status(GOOD, good, LATER), good) == ()


def test_order_and_foreign_conditions_are_no_difference() -> None:
    status = agent_status(GOOD, {}, T0)
    shuffled = {**status, "conditions": [{"type": "Foreign", "status": "True"}, *reversed(status["conditions"])]}

    assert same(status, shuffled)
    assert not same(status, {**status, "activeRevision": R2})
    assert not same(status, {**status, "conditions": status["conditions"][1:]})


def test_fields_that_an_older_crd_lacks_are_left_out() -> None:
    schema: dict[str, Any] = {
        "properties": {
            "observedGeneration": {"type": "integer"},
            "conditions": {"items": {"properties": {"type": {}, "status": {}}}},
            "anything": {"properties": {}, "x-kubernetes-preserve-unknown-fields": True},
        }
    }
    status = {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True", "message": "new"}],
        "activeRevision": R1,
        "anything": {"a": 1},
    }

    assert pruned(status, schema) == {
        "observedGeneration": 1,
        "conditions": [{"type": "Ready", "status": "True"}],
        "anything": {"a": 1},
    }


@pytest.mark.parametrize("odd", [{}, {"conditions": None}, {"conditions": "x"}, {"conditions": [1, {"type": 2}]}])
def test_a_status_that_somebody_mangled_is_replaced(odd: Status) -> None:
    assert said(agent_status(GOOD, odd, T0))["Ready"] == TRUE


# --- properties ---------------------------------------------------------------------------------------------------

facts_of = st.sampled_from([NO_SECRET, NO_PROVIDER, Fact(Reason.CONFIG_MAP_NOT_FOUND, "ConfigMap p")])
several = st.lists(facts_of, max_size=2).map(tuple)
names = st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple)
answers_of = st.builds(Answers, failing=several, waiting=names, known=st.booleans())
any_facts = st.builds(
    AgentFacts,
    generation=st.integers(1, 4),
    invalid=st.none() | st.just(BAD_SPEC),
    unresolved=several,
    answers=answers_of,
    desired=st.sampled_from([R1, R2]),
    active=st.sampled_from([None, R1, R2]),
    head_known=st.booleans(),
    programmed=st.sampled_from([LOADED, AWAITED, Verdict(UNKNOWN, AWAITED.fact)]),
    active_failing=several,
    active_waiting=names,
    tools_total=st.integers(0, 2),
)


@given(st.lists(any_facts, min_size=1, max_size=4))
def test_a_repeat_changes_nothing_and_the_conditions_agree(history: list[AgentFacts]) -> None:
    status: Status = default_status()
    for number, facts in enumerate(history):
        status = agent_status(facts, status, T0 + timedelta(seconds=number))
        conditions = said(status)

        assert same(agent_status(facts, status, LATER), status)
        assert conditions["Ready"] != TRUE or {
            *(conditions["Accepted"], conditions["ResolvedRefs"], conditions["Programmed"])
        } == {TRUE}
        assert ("Stalled" in conditions) == (conditions["Accepted"] == FALSE)
        assert not {"Stalled", "Reconciling"} <= conditions.keys()
        assert {item["observedGeneration"] for item in status["conditions"]} == {facts.generation}
        assert all(item["reason"] and item["message"] for item in status["conditions"])
