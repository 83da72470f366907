"""Secrets: read by workers alone, only where they may, at each claim; one that is missing is named and waited for."""

import asyncio
import secrets
import time

import pytest

from cluster.accounts import OPERATOR, WORKER
from cluster.errors import KubectlFailed
from e2e import manifests
from e2e.rooms import Room, until
from e2e.wires import Wire
from support.rawwire import raw_wire
from support.site import of_kind

pytestmark = pytest.mark.timeout(180)

CACHE_SECONDS = 15.0
"""How long a worker may go on with what it read; a check reads past it."""


def test_the_operator_may_not_read_secrets_and_a_worker_only_where_it_serves(unserved: Room) -> None:
    cluster, accounts = unserved.installation.cluster, unserved.installation.accounts
    unserved.apply(manifests.secret())

    for verb in ("get", "list", "watch"):
        assert not cluster.can_i(verb, "secrets", namespace=unserved.namespace, kubeconfig=accounts[OPERATOR])
        assert not cluster.can_i(verb, "secrets", namespace=unserved.namespace, kubeconfig=accounts[WORKER])
    for args in (("secrets",), ("secret", "key")):
        with pytest.raises(KubectlFailed, match="forbidden"):
            unserved.kubectl("get", *args, kubeconfig=accounts[OPERATOR])
    unserved.serve()
    assert cluster.can_i("get", "secrets", namespace=unserved.namespace, kubeconfig=accounts[WORKER])
    assert not cluster.can_i("list", "secrets", namespace=unserved.namespace, kubeconfig=accounts[WORKER])
    assert not cluster.can_i("get", "secrets", namespace=unserved.namespace, kubeconfig=accounts[OPERATOR])


def test_a_namespace_that_is_not_served_is_told_the_command_that_serves_it(unserved: Room) -> None:
    unserved.installation.mock.answer([{"match": {"userMessage": "at once"}, "response": {"content": "Done."}}])
    unserved.apply(manifests.secret(), unserved.wire(secret="key"), manifests.agent())

    bad = unserved.reaches("ResolvedRefs", "False", reason="SecretForbidden")
    message = bad["ResolvedRefs"]["message"]
    assert f"Secret {unserved.namespace}/key" in message
    command = message[message.index("kubectl create rolebinding") :].split(";")[0]

    unserved.installation.cluster.kubectl(*command.split()[1:])  # as printed
    unserved.ready(within=40)
    unserved.succeeds("at once")


def test_a_secret_that_is_deleted_is_named_a_new_submission_waits_and_succeeds_once_it_is_back(room: Room) -> None:
    room.installation.mock.answer([{"match": {"userMessage": "at once"}, "response": {"content": "Done."}}])
    room.apply(manifests.secret(), room.wire(secret="key"), manifests.agent())
    room.ready()
    room.succeeds("at once", to="before")

    room.installation.api.delete(room.namespace, "Secret", "key")
    gone = time.monotonic()
    bad = room.reaches("ResolvedRefs", "False", reason="SecretNotFound", within=40)
    assert f"Secret {room.namespace}/key" in bad["ResolvedRefs"]["message"]
    assert (bad["Ready"]["status"], bad["Ready"]["reason"]) == ("False", "SecretNotFound")
    assert bad["Available"]["status"] == "False"
    assert bad["Programmed"]["status"] == "True", "a Secret is no part of a revision"
    time.sleep(max(0.0, gone + CACHE_SECONDS + 1 - time.monotonic()))

    waiting = room.post("at once", to="after")
    said = until(
        lambda: (found := room.submission(waiting)) and "lastError" in found and found,
        lambda: room.submission(waiting),
        pause=0.1,
    )
    assert f"Secret {room.namespace}/key" in said["lastError"]
    time.sleep(5)  # two more claims
    assert room.submission(waiting)["state"] == "queued"
    [lane] = room.installation.sql(
        "SELECT state, failures, handovers FROM lane WHERE id = (SELECT conversation FROM submission WHERE id = $1)",
        waiting,
    )
    assert lane["failures"] == (1 if lane["state"] == "running" else 0)  # a claim counts one until it is given back
    assert not of_kind(room.records(of="after"), "user_message"), "something was written for a run that did not begin"

    room.apply(manifests.secret())
    settled = room.settled(waiting)
    assert settled["status"] == "succeeded"
    assert settled.get("failures", 0) == 0
    room.ready(within=40)


async def test_the_key_of_the_secret_reaches_the_wire_and_a_rotated_one_needs_no_restart_c46(room: Room) -> None:
    first, second, third, wrong = (f"sk-{secrets.token_hex(12)}" for _ in range(4))
    wire = Wire(first)
    pids = room.installation.pids()
    async with raw_wire(wire.answer) as served:
        provider = manifests.provider(base_url=served.base_url, secret="key")
        await asyncio.to_thread(
            room.apply, manifests.secret(value=first), provider, room.tools(), manifests.agent(tools="everything")
        )
        await asyncio.to_thread(room.ready)
        long = await asyncio.to_thread(room.post, "take your time", to="long")
        await asyncio.to_thread(until, lambda: wire.shown, lambda: wire.shown)
        assert [key for key, _ in wire.shown] == [first]

        wire.keys = [second]  # while the tool runs
        await asyncio.to_thread(room.apply, manifests.secret(value=second))
        settled = await asyncio.to_thread(room.settled, long)
        assert settled["status"] == "succeeded"
        assert settled["attempts"] == 1
        assert wire.shown[-1][0] == second

        wire.keys = [third]
        await asyncio.to_thread(room.installation.api.delete, room.namespace, "Secret", "key")
        await asyncio.to_thread(room.apply, manifests.secret(value=third))  # another uid
        await asyncio.to_thread(room.succeeds, "quick", to="third")
        assert wire.shown[-1][0] == third

        wire.keys = []
        await asyncio.to_thread(room.apply, manifests.secret(value=wrong))
        refused = await asyncio.to_thread(room.settled, await asyncio.to_thread(room.post, "quick", to="wrong"))
        assert refused["status"] == "failed"
        assert f"Secret {room.namespace}/key" in refused["error"]
        assert wire.shown[-1][0] == wrong

    assert room.installation.pids() == pids
    logs = "".join(said for _, said in room.installation.logs())
    dumped = str([room.records(of=of) for of in ("long", "third", "wrong")]) + str(room.get()) + logs
    assert not [key for key in (first, second, third, wrong) if key in dumped], "a key is where people can read it"
