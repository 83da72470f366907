"""Deleting an Agent needs nobody: it is gone at once, and whoever comes later under its name is somebody else."""

import time

import pytest

from e2e import manifests
from e2e.rooms import Room, until
from support.site import of_kind

pytestmark = pytest.mark.timeout(120)


def test_a_delete_ends_at_once_without_the_operator_which_retires_the_head_when_it_is_back(room: Room) -> None:
    room.apply(manifests.scripted(), manifests.agent(provider="script"))
    room.ready()
    old = room.post("hello", dispatchId="d-1")
    assert room.settled(old)["status"] == "succeeded"
    assert room.installation.operators.pop().stop() is not None

    began = time.monotonic()
    room.kubectl("delete", "kha", "demo")
    assert time.monotonic() - began < 3
    assert room.installation.api.find(room.namespace, "Agent", "demo") is None
    assert room.dispatch("hello again").status_code == 202, "without an operator what was in force serves on"

    room.installation.start_operator().wait_ready()
    gone = until(
        lambda: (answer := room.dispatch("anybody?", to="late")).status_code == 404 and answer,
        lambda: room.dispatch("anybody?", to="late").text,
        within=40,
        pause=0.25,
    )
    assert gone.json()["code"] == "not_found"
    until(lambda: room.dispatch("anybody?", gateway=1).status_code == 404, lambda: "the other gateway serves it")

    room.apply(manifests.agent(provider="script", prompt="Another one."))
    room.ready()
    assert room.records() == []
    answer = room.dispatch("hello", dispatchId="d-1")
    assert answer.status_code == 202
    assert "Idempotency-Replayed" not in answer.headers
    new = answer.json()["submissionId"]
    assert new != old
    assert room.settled(new)["status"] == "succeeded"
    assert len(of_kind(room.records(), "user_message")) == 1
