"""A worker that is killed with -9 in the middle of a run costs nobody anything. Stands last: it counts as alive for a
minute more, so that whatever is applied after it waits for it.
"""

from typing import Any

import pytest

from e2e import manifests
from e2e.rooms import Room, until
from support.site import of_kind

pytestmark = pytest.mark.timeout(120)

STORY: dict[str, Any] = {
    "chunkDelayMilliseconds": 150,
    "chunkCharacters": 8,
    "rules": [{"when": {"contains": "story"}, "steps": [{"text": "Once upon a time there was a worker. " * 6}]}],
}


def test_a_run_whose_worker_is_killed_is_settled_once_by_the_other(room: Room) -> None:
    room.apply(manifests.scripted(**STORY), manifests.agent(provider="script"))
    room.ready()
    submission = room.post("tell me a story")
    until(lambda: of_kind(room.records(), "assistant_text_delta"), room.records, pause=0.05)
    [attempt] = room.installation.sql("SELECT owner FROM attempt WHERE submission = $1", submission)
    [doomed] = [worker for worker in room.installation.workers if f"-{worker.pid}-" in attempt["owner"]]

    assert doomed.kill() == -9
    room.installation.workers.remove(doomed)
    settled = room.settled(submission, within=40)
    room.installation.complete()

    assert settled["status"] == "succeeded"
    assert (settled["attempts"], settled["failures"]) == (2, 1)
    records = room.records()
    assert len(of_kind(records, "submission_settled")) == 1
    assert len(of_kind(records, "user_message")) == 1
    assert len(of_kind(records, "assistant_message_completed")) == 1
    [aborted] = of_kind(records, "assistant_message_aborted")
    assert aborted["payload"]["reason"] == "attempt_died"
    owners = room.installation.sql("SELECT owner FROM attempt WHERE submission = $1 ORDER BY claim", submission)
    assert [f"-{doomed.pid}-" in row["owner"] for row in owners] == [True, False]
    assert "0 violations" in room.installation.processes.run("verify")
