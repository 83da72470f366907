"""Nothing happens, nothing is written: sixty seconds of the API server's own audit log."""

import datetime
import time

import pytest

from cluster.accounts import USERS
from e2e import manifests
from e2e.rooms import Room, until

pytestmark = pytest.mark.timeout(180)

IDLE_SECONDS = 60


def test_sixty_idle_seconds_are_no_write_of_ours(room: Room) -> None:
    installation = room.installation
    room.apply(manifests.secret(), room.wire(secret="key"), room.tools(), manifests.agent(tools="everything"))
    room.apply(manifests.agent("broken", provider="nowhere"), manifests.scripted(), manifests.agent("other"))
    began = datetime.datetime.now(datetime.UTC)
    room.edit("other", systemPrompt="Edited.")
    for name in ("demo", "other"):
        room.ready(name)
    room.reaches("Ready", "False", "broken")
    written = until(
        lambda: installation.cluster.audit_writes(began, USERS), lambda: "our own writes are not in the log"
    )
    assert {write.user for write in written} == {USERS[0]}, "only the operator writes"
    others = {"default", "kube-system", "kube-public", "kube-node-lease", "kubeharness-system", room.namespace}
    until(  # what earlier tests left is gone
        lambda: set(installation.api.namespaces()) <= others, installation.api.namespaces, within=60, pause=0.5
    )
    time.sleep(2)

    since = datetime.datetime.now(datetime.UTC)
    time.sleep(IDLE_SECONDS)

    assert installation.cluster.audit_writes(since, USERS) == []
