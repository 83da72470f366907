"""A worker killed with one call finished and one open: the log is repaired once, in call order, by a record."""

import time
from typing import Any

import httpx2
import pytest

from support.site import Site, of_kind

pytestmark = pytest.mark.timeout(120)

SLOW = {"id": "c1", "name": "trigger-long-running-operation", "arguments": {"duration": 30, "steps": 3}}
QUICK = {"id": "c2", "name": "echo", "arguments": {"message": "quick-nonce"}}


def fixtures() -> list[dict[str, Any]]:
    """Two calls in one turn, the slow one first; every other message gets a plain answer."""
    return [
        {"match": {"userMessage": "second message"}, "response": {"content": "Second answer."}},
        {
            "match": {"userMessage": "run slow", "hasToolResult": False},
            "response": {"content": "I run both.", "toolCalls": [SLOW, QUICK]},
        },
        {"match": {"userMessage": "run slow", "hasToolResult": True}, "response": {"content": "One of two."}},
    ]


def test_the_finished_call_keeps_its_outcome_and_the_open_one_gets_one_interrupted_c01(here: Site) -> None:
    here.mock.answer(fixtures())
    here.gateway()
    first = here.worker()
    submission = here.post("run slow")
    end = time.monotonic() + 20
    while not of_kind(here.records(), "tool_outcome") and time.monotonic() < end:
        time.sleep(0.05)
    first.kill()
    second = here.worker()
    assert here.settled(submission)["payload"]["status"] == "succeeded"
    second.kill()

    again = here.post("second message")
    third = here.worker(ready=False)
    time.sleep(0.3)
    third.kill()
    here.worker()
    assert here.settled(again)["payload"]["status"] == "succeeded"

    records = here.records()
    outcomes = {record["payload"]["callId"]: record["payload"] for record in of_kind(records, "tool_outcome")}
    calls = [record["payload"] for record in of_kind(records, "assistant_tool_call")]
    assert len(of_kind(records, "tool_outcome")) == len(outcomes) == 2
    by_tool = {call["toolName"]: outcomes[call["callId"]] for call in calls}
    assert "quick-nonce" in by_tool["echo"]["content"]
    assert by_tool["trigger-long-running-operation"]["cause"] == "interrupted"
    for request in here.mock.requests()[1:]:
        asked = [call["id"] for m in request["messages"] for call in m.get("tool_calls") or ()]
        answered = [m["tool_call_id"] for m in request["messages"] if m["role"] == "tool"]
        assert asked == answered, "every call with one result, in call order"
    assert len(of_kind(records, "submission_settled")) == 2
    here.verify()


def test_a_cancel_while_a_tool_runs_settles_within_seconds_and_closes_the_call(here: Site) -> None:
    here.mock.answer(fixtures())
    here.gateway()
    here.worker()
    submission = here.post("run slow")
    end = time.monotonic() + 20
    while not of_kind(here.records(), "tool_outcome") and time.monotonic() < end:
        time.sleep(0.05)

    answer = httpx2.post(
        f"{here.gateways[0].url}/submissions/{submission}/cancel", json={"reason": "enough"}, timeout=10
    )
    cancelled = time.monotonic()
    settled = here.settled(submission, within=10)

    assert answer.status_code == 202, answer.text
    assert time.monotonic() - cancelled < 5
    assert settled["payload"]["errorCode"] == "cancelled"
    records = here.records()
    assert {record["payload"].get("cause") for record in of_kind(records, "tool_outcome")} == {None, "cancelled"}
    here.verify()
