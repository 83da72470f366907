"""An Agent's name counts in its namespace alone."""

import asyncio
import secrets
from collections.abc import Iterator

import httpx2
import pytest

from e2e import manifests
from e2e.rooms import Room, until
from e2e.wires import Wire
from support.rawwire import raw_wire
from support.site import of_kind

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def other(room: Room) -> Iterator[Room]:
    """A second namespace."""
    second = Room(room.installation, f"{room.namespace}-b")
    room.installation.cluster.kubectl("create", "namespace", second.namespace)
    second.serve()
    yield second
    room.installation.cluster.kubectl("delete", "namespace", second.namespace, "--wait=false")


async def test_two_agents_of_one_name_share_neither_prompt_nor_key_nor_conversation_nor_fate_c47(
    room: Room, other: Room
) -> None:
    keys = [f"sk-{secrets.token_hex(12)}" for _ in range(2)]
    wire = Wire(*keys)
    async with raw_wire(wire.answer) as served:

        def set_up(there: Room, key: str, prompt: str) -> None:
            provider = manifests.provider(base_url=served.base_url, secret="key")
            there.apply(manifests.secret(value=key), provider, manifests.agent(prompt=prompt))
            there.ready()

        for there, key, prompt in ((room, keys[0], "Prompt A."), (other, keys[1], "Prompt B.")):
            await asyncio.to_thread(set_up, there, key, prompt)
        submissions = [
            await asyncio.to_thread(there.post, "hello", to="same", dispatchId="d-1") for there in (room, other)
        ]
        settled = [
            await asyncio.to_thread(there.settled, submission)
            for there, submission in zip((room, other), submissions, strict=True)
        ]

        assert [one["status"] for one in settled] == ["succeeded", "succeeded"]
        assert submissions[0] != submissions[1]
        assert sorted(wire.shown) == sorted([(keys[0], "Prompt A."), (keys[1], "Prompt B.")])
        logs = [await asyncio.to_thread(there.records, of="same") for there in (room, other)]
        assert logs[0][0]["conversationId"] != logs[1][0]["conversationId"]
        assert [len(of_kind(log, "user_message")) for log in logs] == [1, 1]
        bare = f"{room.installation.gateways[0].url}/agents/demo/same"
        answer = httpx2.post(bare, json={"kind": "user", "body": "whose?"}, timeout=10)
        assert answer.status_code == 404, "a bare path means namespace `default`, where there is none"

        await asyncio.to_thread(other.kubectl, "delete", "kha", "demo")
        await asyncio.to_thread(
            until, lambda: other.dispatch("hello").status_code == 404, lambda: other.dispatch("hello").text, pause=0.2
        )
        assert (await asyncio.to_thread(room.records, of="same"))[: len(logs[0])] == logs[0]
        await asyncio.to_thread(room.succeeds, "hello", to="same")
        assert wire.shown[-1] == (keys[0], "Prompt A.")
