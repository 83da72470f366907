"""What an Agent that was applied does: its tools answer the model, and an edit is in force once Programmed says so."""

import secrets

import pytest

from e2e import manifests
from e2e.rooms import CONDITIONS, Room, statuses, system_of
from support.site import everything_said, of_kind

pytestmark = pytest.mark.timeout(120)


def echo(message: str) -> dict[str, object]:
    """A call of server-everything's echo."""
    return {"id": "call_1", "name": "echo", "arguments": {"message": message}}


def test_a_nonce_goes_through_the_mcp_tool_into_the_second_model_request(room: Room) -> None:
    nonce = secrets.token_hex(8)
    room.apply(room.wire(), room.tools(), manifests.agent(tools="everything"))
    room.ready()
    room.installation.mock.answer(
        [
            {"match": {"userMessage": "use echo", "hasToolResult": False}, "response": {"toolCalls": [echo(nonce)]}},
            {"match": {"userMessage": "use echo", "hasToolResult": True}, "response": {"content": "Done."}},
        ]
    )

    settled = room.succeeds("use echo")

    first, second = room.installation.mock.requests()
    assert "echo" in [tool["function"]["name"] for tool in first["tools"]]
    assert nonce not in everything_said(first)
    [result] = [message for message in second["messages"] if message["role"] == "tool"]
    assert f"Echo: {nonce}" in str(result["content"])  # the server's words, not the call's
    [outcome] = of_kind(room.records(), "tool_outcome")
    assert f"Echo: {nonce}" in outcome["payload"]["content"]
    assert settled["attempts"] == 1


def test_a_prompt_edit_is_in_the_first_request_after_programmed_and_not_in_an_attempt_begun_before(room: Room) -> None:
    old, new = (f"Be brief. Nonce {secrets.token_hex(8)}." for _ in range(2))
    room.apply(room.wire(), room.tools(), manifests.agent(prompt=old, tools="everything"))
    room.ready()
    slow = {"latency": 100, "chunkSize": 5}  # some five seconds
    room.installation.mock.answer(
        [
            {
                "match": {"userMessage": "slowly", "hasToolResult": False},
                "response": {"content": "word " * 50, "toolCalls": [echo("x")]},
                **slow,
            },
            {"match": {"userMessage": "slowly", "hasToolResult": True}, "response": {"content": "Slowly done."}},
            {"match": {"userMessage": "at once"}, "response": {"content": "Done."}},
        ]
    )
    pids = room.installation.pids()
    begun = room.post("slowly", to="before")
    room.until_asked("slowly")

    generation = room.edit(systemPrompt=new)
    room.reaches("Programmed", "True", generation=generation)
    after = room.post("at once", to="after")
    assert room.settled(after)["status"] == "succeeded"
    assert room.submission(begun)["state"] == "running", "the edit was not in force before the slow run went on"
    assert room.settled(begun)["status"] == "succeeded"

    asked = [
        (system_of(request), "slowly" in everything_said(request)) for request in room.installation.mock.requests()
    ]
    assert asked == [(old, True), (new, False), (old, True)]
    assert room.installation.pids() == pids
    assert statuses(room.conditions()) == dict.fromkeys(CONDITIONS, "True")
    room.succeeds("at once", to="before")
    assert system_of(room.installation.mock.requests()[-1]) == new
