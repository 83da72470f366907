"""What a claim does first: each row of the evidence table, and that there is always an answer."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core.making import LANE, SUBMISSION, call, completed, log, outcome
from kubeharness.core.ids import CallId, SubmissionId, TurnId
from kubeharness.core.lane import CallState, Counters, Lane, LaneState, OpenCall
from kubeharness.core.messages import StopReason
from kubeharness.core.records import Record, SettledCode, Signal, UserMessage
from kubeharness.core.recovery import GoOn, Plan, SettleNow, classify
from kubeharness.core.revision import Durability

DURABILITY = Durability(max_attempts=3, max_turns=4, submission_timeout_seconds=60)
CLAIMED = Lane(
    id=LANE, incarnation="u", state=LaneState.RUNNING, head=1, claim=1, deadline=10_000, counters=Counters(failures=1)
)
INPUT = UserMessage(body="go")


def plan(lane: Lane, records: list[Record], *calls: OpenCall, unread: int = 0, now: int = 0) -> Plan:
    """Classify with the defaults of this file."""
    return classify(
        lane=lane,
        submission=SUBMISSION,
        records=records,
        calls=calls,
        unread=unread,
        durability=DURABILITY,
        now=now,
    )


def open_call(call_id: str, state: CallState, *, idempotent: bool = False) -> OpenCall:
    """A row of the ledger."""
    return OpenCall(
        call_id=CallId(call_id),
        conversation=LANE,
        submission_id=SUBMISSION,
        tool_name="echo",
        state=state,
        idempotent=idempotent,
    )


def test_a_cancel_comes_before_everything() -> None:
    answered = log(INPUT, completed("done"))

    assert plan(replace(CLAIMED, cancel="enough"), answered) == SettleNow(code=SettledCode.CANCELLED, error="enough")


def test_no_input_record_means_that_the_first_append_writes_it() -> None:
    assert plan(CLAIMED, []) == GoOn(write_input=True)


def test_another_submissions_input_is_not_ones_own() -> None:
    others = log(INPUT, completed("done"), submission=SubmissionId("sub_0"))

    assert plan(CLAIMED, others) == GoOn(write_input=True)


def test_a_signal_is_an_input_and_a_steered_message_is_none() -> None:
    assert plan(CLAIMED, log(Signal(type="t", body="b"))) == GoOn()
    assert plan(CLAIMED, log(UserMessage(body="b", via="steer"))) == GoOn(write_input=True)


def test_a_message_left_open_is_aborted() -> None:
    assert plan(replace(CLAIMED, open_turn=TurnId("1.1.1")), log(INPUT)) == GoOn(abort_turn=TurnId("1.1.1"))


def test_a_logged_answer_settles_even_past_a_budget() -> None:
    answered = log(INPUT, ("1.1.1", completed("done")))
    spent = replace(CLAIMED, counters=Counters(failures=9, steps=99))

    assert plan(spent, answered, now=99_999) == SettleNow(code=None)


def test_a_logged_answer_with_mail_goes_on() -> None:
    assert plan(CLAIMED, log(INPUT, ("1.1.1", completed("done"))), unread=1) == GoOn()


def test_what_was_said_after_the_answer_is_answered() -> None:
    assert plan(CLAIMED, log(INPUT, ("1.1.1", completed("done")), UserMessage(body="more", via="steer"))) == GoOn()


def test_a_cut_or_refused_answer_is_never_a_success_c35() -> None:
    codes: dict[StopReason, SettledCode] = {
        "length": SettledCode.RUN_FAILED,
        "refusal": SettledCode.REFUSED,
        "content_filter": SettledCode.REFUSED,
        "other": SettledCode.RUN_FAILED,
    }
    for stop, code in codes.items():
        got = plan(CLAIMED, log(INPUT, ("1.1.1", completed("half", stop))))
        assert isinstance(got, SettleNow)
        assert got.code is code


def test_open_calls_are_run_run_again_or_interrupted_in_call_order() -> None:
    records = log(INPUT, ("1.1.1", completed()), *(("1.1.1", call(name)) for name in "abcd"))
    ledger = [
        open_call("d", CallState.APPROVED),
        open_call("c", CallState.STARTED),
        open_call("b", CallState.STARTED, idempotent=True),
        open_call("a", CallState.RECORDED),
    ]

    got = plan(CLAIMED, records, *ledger)

    assert isinstance(got, GoOn)
    assert got.run == ("a", "b", "d")
    assert got.run_started == ("b",)
    assert [c.call_id for c in got.interrupt] == ["c"]


def test_asked_and_child_calls_are_left_alone() -> None:
    records = log(INPUT, ("1.1.1", completed()), ("1.1.1", call("a")), ("1.1.1", call("b")))

    got = plan(CLAIMED, records, open_call("a", CallState.ASKED), open_call("b", CallState.CHILD))

    assert got == GoOn()


def test_three_claims_run_and_the_fourth_settles() -> None:
    def after(failures: int) -> Plan:
        return plan(replace(CLAIMED, counters=Counters(failures=failures), last_error="boom"), log(INPUT))

    got = after(4)

    assert isinstance(after(3), GoOn)
    assert isinstance(got, SettleNow)
    assert got.code is SettledCode.ATTEMPT_BUDGET_EXHAUSTED
    assert got.attempts_back
    assert "boom" in (got.error or "")


def test_a_lifetime_that_is_over_settles() -> None:
    got = plan(CLAIMED, log(INPUT), now=10_000)

    assert isinstance(got, SettleNow)
    assert got.code is SettledCode.TIMEOUT_EXCEEDED


def test_every_call_closed_and_the_steps_used_up_settles_c11() -> None:
    records = log(INPUT, ("1.1.1", completed()), ("1.1.1", call("a")), ("1.1.1", outcome("a")))

    got = plan(replace(CLAIMED, counters=Counters(failures=1, steps=4)), records)

    assert isinstance(got, SettleNow)
    assert got.code is SettledCode.MAX_STEPS_REACHED


ENTRIES = st.sampled_from(
    [
        INPUT,
        UserMessage(body="s", via="steer"),
        Signal(type="t", body="b"),
        ("1.1.1", completed("x")),
        ("1.1.1", completed("x", "length")),
        ("1.1.1", call("a")),
        ("1.1.1", outcome("a")),
    ]
)


@given(
    entries=st.lists(ENTRIES, max_size=6),
    states=st.lists(st.tuples(st.sampled_from(CallState), st.booleans()), max_size=3),
    failures=st.integers(1, 6),
    steps=st.integers(0, 6),
    unread=st.integers(0, 2),
    now=st.integers(0, 20_000),
    cancel=st.sampled_from([None, "why"]),
    turn=st.sampled_from([None, TurnId("1.1.2")]),
)
def test_there_is_always_an_answer_and_what_it_runs_or_closes_is_open(
    entries: list[object],
    states: list[tuple[CallState, bool]],
    failures: int,
    steps: int,
    unread: int,
    now: int,
    cancel: str | None,
    turn: TurnId | None,
) -> None:
    lane = replace(CLAIMED, counters=Counters(failures=failures, steps=steps), cancel=cancel, open_turn=turn)
    calls = [open_call(f"c{n}", state, idempotent=idem) for n, (state, idem) in enumerate(states)]

    got = plan(lane, log(*entries), *calls, unread=unread, now=now)  # type: ignore[arg-type]  # sampled payloads

    if isinstance(got, SettleNow):
        assert cancel is None or got.code is SettledCode.CANCELLED
        return
    assert cancel is None
    assert got.abort_turn == turn
    touched = {*got.run, *(c.call_id for c in got.interrupt)}
    assert touched <= {c.call_id for c in calls}
    assert not set(got.run) & {c.call_id for c in got.interrupt}
