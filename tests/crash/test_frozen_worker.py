"""A worker that stood still while another took its lane wakes up and writes nothing (I5)."""

import time

import pytest

from support.fleet import Process
from support.site import Site, of_kind

pytestmark = pytest.mark.timeout(120)

LONG = "FROZEN " + "word after word after word " * 60
ECHO = {"id": "call_1", "name": "echo", "arguments": {"message": "x"}}
SLOW_TOOL = {"id": "call_1", "name": "trigger-long-running-operation", "arguments": {"duration": 20, "steps": 2}}


def freeze_until_taken(here: Site, first: Process, submission: str) -> Process:
    """SIGSTOP the first worker, start another, and wait until it has the lane."""
    first.freeze()
    second = here.worker()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if here.submission(submission)["attempts"] >= 2:
            return second
        time.sleep(0.05)
    raise AssertionError("nobody took the lane")


def writes_of(here: Site, attempt: str) -> int:
    """How many records an attempt has in the log."""
    return len([record for record in here.records() if record.get("attemptId") == attempt])


def test_frozen_in_mid_stream_it_writes_nothing_after_the_thaw_c05(here: Site) -> None:
    here.mock.answer(
        [
            {"match": {"userMessage": "story", "sequenceIndex": 0}, "response": {"content": LONG}, "latency": 60},
            {"match": {"userMessage": "story"}, "response": {"content": "Short."}},
        ]
    )
    here.gateway()
    first = here.worker()
    submission = here.post("story")
    while not of_kind(here.records(), "assistant_text_delta"):
        time.sleep(0.05)
    attempt = of_kind(here.records(), "assistant_text_delta")[0]["attemptId"]

    freeze_until_taken(here, first, submission)
    before = writes_of(here, attempt)
    here.settled(submission)
    first.thaw()
    time.sleep(3)

    records = here.records()
    assert writes_of(here, attempt) == before
    assert len(of_kind(records, "submission_settled")) == 1
    [aborted] = of_kind(records, "assistant_message_aborted")
    assert aborted["payload"]["reason"] == "attempt_died"
    assert first.alive()
    assert first.said().count("lost its lane") >= 1
    here.verify()


def test_frozen_inside_a_tool_and_thawed_before_the_second_settles_it_writes_nothing_c05(here: Site) -> None:
    here.mock.answer(
        [
            {
                "match": {"userMessage": "wait", "hasToolResult": False},
                "response": {"content": "I wait.", "toolCalls": [SLOW_TOOL]},
            },
            {"match": {"userMessage": "wait", "hasToolResult": True}, "response": {"content": LONG}, "latency": 40},
        ]
    )
    here.gateway()
    first = here.worker()
    submission = here.post("wait")
    while not of_kind(here.records(), "assistant_tool_call"):
        time.sleep(0.05)
    attempt = of_kind(here.records(), "assistant_tool_call")[0]["attemptId"]

    freeze_until_taken(here, first, submission)
    before = writes_of(here, attempt)
    first.thaw()
    settled = here.settled(submission)
    time.sleep(1)

    assert settled["payload"]["status"] == "succeeded"
    assert writes_of(here, attempt) == before
    [outcome] = of_kind(here.records(), "tool_outcome")
    assert outcome["payload"]["cause"] == "interrupted"
    here.verify()
