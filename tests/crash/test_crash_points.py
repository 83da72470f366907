"""A worker (or gateway) kills itself at each named point; another goes on; the caller sees one run.

After each: exit status −9, one settlement, one input, no dead text in a model request, equal frames, `verify` clean.
"""

import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from kubeharness.engine.crashpoints import CrashPoint
from support.site import Site, everything_said, of_kind

pytestmark = pytest.mark.timeout(120)

LONG = "DEADTEXT " + "once upon a time there was a worker that died in the middle of a sentence " * 30
ECHO = {"id": "call_1", "name": "echo", "arguments": {"message": "nonce-77"}}


def answers(body: str, content: str, **more: Any) -> dict[str, Any]:
    """A plain answer to a message."""
    return {"match": {"userMessage": body}, "response": {"content": content}, **more}


def tool_turn(body: str) -> list[dict[str, Any]]:
    """A turn that calls echo, then an answer."""
    return [
        {
            "match": {"userMessage": body, "hasToolResult": False},
            "response": {"content": "I ask.", "toolCalls": [ECHO]},
        },
        {"match": {"userMessage": body, "hasToolResult": True}, "response": {"content": "The tool answered."}},
    ]


def die_and_recover(here: Site, point: CrashPoint, body: str) -> tuple[str, list[dict[str, Any]]]:
    """Run to the point, see the worker die there, let another finish; returns the submission and its log."""
    here.gateway()
    doomed = here.worker(CRASH_POINT=point.value)
    submission = here.post(body)

    assert doomed.exit_status() == -9
    here.worker()
    here.settled(submission)
    records = here.records()
    check(here, submission, records)
    return submission, records


def check(here: Site, submission: str, records: list[dict[str, Any]]) -> None:
    """What holds after every crash."""
    mine = [record for record in records if record.get("submissionId") == submission]
    assert len(of_kind(mine, "submission_settled")) == 1
    assert len([r for r in of_kind(mine, "user_message") if r["payload"].get("via") in (None, "dispatch")]) == 1
    calls = [r["payload"]["callId"] for r in of_kind(mine, "assistant_tool_call")]
    outcomes = [r["payload"]["callId"] for r in of_kind(mine, "tool_outcome")]
    assert sorted(calls) == sorted(outcomes)
    assert here.stream() == here.stream()
    here.verify()


def test_killed_after_admit_the_gateways_answer_is_lost_and_the_repeat_gets_the_same_run(here: Site) -> None:
    here.mock.answer([answers("hello", "Hi.")])
    doomed = here.gateway(CRASH_POINT=CrashPoint.AFTER_ADMIT.value)
    body = {"kind": "user", "body": "hello", "dispatchId": "d-1"}

    with pytest.raises(httpx2.HTTPError):
        httpx2.post(f"{doomed.url}/agents/demo/s1", json=body, timeout=10)

    assert doomed.exit_status() == -9
    here.gateways.clear()
    here.gateway()
    here.worker()
    answer = httpx2.post(f"{here.gateways[0].url}/agents/demo/s1", json=body, timeout=10)
    assert answer.status_code == 202
    assert answer.headers["Idempotency-Replayed"] == "true"
    submission = answer.json()["submissionId"]
    assert here.settled(submission)["payload"]["status"] == "succeeded"
    check(here, submission, here.records())


def test_killed_after_claim_another_worker_runs_it(here: Site) -> None:
    here.mock.answer([answers("hello", "Hi.")])

    _, records = die_and_recover(here, CrashPoint.AFTER_CLAIM, "hello")

    [settled] = of_kind(records, "submission_settled")
    assert settled["payload"]["status"] == "succeeded"
    assert settled["payload"]["attempts"] == 2
    assert settled["payload"]["failures"] == 1


def test_killed_in_mid_stream_the_partial_is_aborted_once_and_never_sent_again_c05(here: Site) -> None:
    here.mock.answer(
        [
            answers("story", LONG, latency=15, chunkSize=20) | {"match": {"userMessage": "story", "sequenceIndex": 0}},
            answers("story", "The short version."),
        ]
    )

    _, records = die_and_recover(here, CrashPoint.MID_STREAM, "story")

    [aborted] = of_kind(records, "assistant_message_aborted")
    assert aborted["payload"]["reason"] == "attempt_died"
    deltas = of_kind(records, "assistant_text_delta")
    assert any("DEADTEXT" in r["payload"]["text"] and r["turnId"] == aborted["payload"]["turnId"] for r in deltas)
    assert "DEADTEXT" not in everything_said(here.mock.requests()[-1])
    assert len(here.mock.requests()) == 2


def test_killed_with_its_calls_recorded_the_call_gets_one_interrupted_outcome_c01(here: Site) -> None:
    here.mock.answer(tool_turn("use echo"))

    _, records = die_and_recover(here, CrashPoint.CALLS_RECORDED, "use echo")

    [outcome] = of_kind(records, "tool_outcome")
    assert outcome["payload"]["cause"] == "interrupted"
    assert outcome["payload"]["isError"] is True
    assert "may have run" in everything_said(here.mock.requests()[-1])


def test_killed_in_mid_tool_the_call_is_not_run_again_c01(here: Site) -> None:
    here.mock.answer(tool_turn("use echo"))

    _, records = die_and_recover(here, CrashPoint.MID_TOOL, "use echo")

    [outcome] = of_kind(records, "tool_outcome")
    assert outcome["payload"]["cause"] == "interrupted"
    again = here.post("use echo again")
    assert here.settled(again)["payload"]["status"] == "succeeded"
    said = [m for m in here.mock.requests()[-1]["messages"] if m["role"] == "tool"]
    assert len(said) >= 1


def test_killed_after_an_outcome_it_is_kept_and_the_tool_is_not_run_again(here: Site) -> None:
    here.mock.answer(tool_turn("use echo"))

    _, records = die_and_recover(here, CrashPoint.AFTER_OUTCOME, "use echo")

    [outcome] = of_kind(records, "tool_outcome")
    assert "nonce-77" in outcome["payload"]["content"]
    assert "cause" not in outcome["payload"]


def test_killed_before_settle_the_turn_is_made_again_and_settles_once(here: Site) -> None:
    here.mock.answer([answers("hello", "Hi.")])

    _, records = die_and_recover(here, CrashPoint.BEFORE_SETTLE, "hello")

    [settled] = of_kind(records, "submission_settled")
    assert settled["payload"]["status"] == "succeeded"


def test_killed_after_settle_nothing_happens_twice(here: Site) -> None:
    here.mock.answer([answers("hello", "Hi.")])

    submission, records = die_and_recover(here, CrashPoint.AFTER_SETTLE, "hello")

    assert len(here.mock.requests()) == 1
    assert len(of_kind(records, "assistant_message_completed")) == 1
    assert here.submission(submission)["state"] == "settled"


def test_killed_with_the_inbox_consumed_the_message_is_said_once(here: Site) -> None:
    here.mock.answer(
        [
            {"match": {"userMessage": "steered"}, "response": {"content": "As you say."}},
            {
                "match": {"userMessage": "slow", "hasToolResult": False},
                "response": {"content": "I ask slowly, so that there is time to steer.", "toolCalls": [ECHO]},
                "latency": 150,
                "chunkSize": 5,
            },
        ]
    )
    here.gateway()
    doomed = here.worker(CRASH_POINT=CrashPoint.INBOX_CONSUMED.value)
    submission = here.post("slow")
    _steer(here, "steered now")

    assert doomed.exit_status() == -9
    here.worker()
    here.settled(submission)
    records = here.records()
    check(here, submission, records)
    steered = [r for r in of_kind(records, "user_message") if r["payload"].get("via") == "steer"]
    assert len(steered) == 1
    assert "steered now" in everything_said(here.mock.requests()[-1])


def test_killed_after_completed_the_message_that_came_first_is_answered(here: Site) -> None:
    here.mock.answer(
        [
            {"match": {"userMessage": "late word"}, "response": {"content": "Heard."}},
            answers("talk", "A first answer that takes its time to be said.", latency=250, chunkSize=5),
        ]
    )
    here.gateway()
    doomed = here.worker(CRASH_POINT=CrashPoint.AFTER_COMPLETED.value)
    submission = here.post("talk")
    _begun(here)  # a word that came before the request would be in it
    _steer(here, "late word")

    assert doomed.exit_status() == -9
    here.worker()
    settled = here.settled(submission)
    records = here.records()
    check(here, submission, records)
    assert settled["payload"]["status"] == "succeeded"
    completed = of_kind(records, "assistant_message_completed")
    assert len(completed) == 2
    assert "A first answer" in everything_said(here.mock.requests()[-1])


def test_an_unknown_commit_is_repeated_and_written_once(here: Site) -> None:
    here.mock.answer(tool_turn("use echo"))
    here.gateway()
    here.worker(CRASH_POINT=CrashPoint.UNKNOWN_COMMIT.value)
    submission = here.post("use echo")

    settled = here.settled(submission)

    records = here.records()
    check(here, submission, records)
    assert settled["payload"]["status"] == "succeeded"
    assert settled["payload"]["attempts"] == 1


def _begun(here: Site) -> None:
    """Wait until the model has begun to answer."""
    end = time.monotonic() + 20
    while not of_kind(here.records(), "assistant_message_started"):
        assert time.monotonic() < end, "the model never began"
        time.sleep(0.05)


def _steer(here: Site, body: str) -> None:
    """Steer as soon as the run has begun."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        answer = httpx2.post(f"{here.gateways[0].url}/agents/demo/s1/steer", json={"body": body}, timeout=10)
        if answer.status_code == 200:
            return
        assert answer.json()["code"] == "no_run_in_flight", answer.text
        time.sleep(0.05)
    raise AssertionError("nothing to steer")


COVERED: dict[CrashPoint, Callable[[Site], None]] = {
    CrashPoint.AFTER_ADMIT: test_killed_after_admit_the_gateways_answer_is_lost_and_the_repeat_gets_the_same_run,
    CrashPoint.AFTER_CLAIM: test_killed_after_claim_another_worker_runs_it,
    CrashPoint.MID_STREAM: test_killed_in_mid_stream_the_partial_is_aborted_once_and_never_sent_again_c05,
    CrashPoint.CALLS_RECORDED: test_killed_with_its_calls_recorded_the_call_gets_one_interrupted_outcome_c01,
    CrashPoint.MID_TOOL: test_killed_in_mid_tool_the_call_is_not_run_again_c01,
    CrashPoint.AFTER_OUTCOME: test_killed_after_an_outcome_it_is_kept_and_the_tool_is_not_run_again,
    CrashPoint.AFTER_COMPLETED: test_killed_after_completed_the_message_that_came_first_is_answered,
    CrashPoint.BEFORE_SETTLE: test_killed_before_settle_the_turn_is_made_again_and_settles_once,
    CrashPoint.AFTER_SETTLE: test_killed_after_settle_nothing_happens_twice,
    CrashPoint.INBOX_CONSUMED: test_killed_with_the_inbox_consumed_the_message_is_said_once,
    CrashPoint.UNKNOWN_COMMIT: test_an_unknown_commit_is_repeated_and_written_once,
}


def test_every_crash_point_has_a_test() -> None:
    assert set(COVERED) == set(CrashPoint)
