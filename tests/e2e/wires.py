"""A model wire that sees what aimock hides: the key that it was shown."""

import json
from collections.abc import Collection
from typing import Any

from support.rawwire import Answer, Request

Json = dict[str, Any]

SLOW_TOOL = "trigger-long-running-operation"
SLOW_ARGUMENTS = '{"duration": 6, "steps": 3}'


class Wire:
    """Takes certain keys only. A message that asks for time gets a slow tool call first, any other its answer."""

    def __init__(self, *keys: str) -> None:
        self.keys: Collection[str] = keys
        self.shown: list[tuple[str, str]] = []
        """Key and system prompt of each request."""

    def answer(self, request: Request) -> Answer:
        """What `raw_wire` says to a request."""
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        messages = request.json()["messages"]
        self.shown.append((key, "".join(str(one["content"]) for one in messages if one["role"] == "system")))
        if key not in self.keys:
            error = {"error": {"message": "bad key", "type": "invalid_request_error"}}
            return Answer([json.dumps(error).encode()], status=401, content_type="application/json")
        last = messages[-1]
        if last["role"] == "user" and "time" in str(last["content"]):
            return Answer([_call(), _chunk({}, "tool_calls"), DONE])
        return Answer([_chunk({"content": "Done."}), _chunk({}, "stop"), DONE])


DONE = b"data: [DONE]\n\n"


def _call() -> bytes:
    function = {"name": SLOW_TOOL, "arguments": SLOW_ARGUMENTS}
    return _chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})


def _chunk(delta: Json, finish: str | None = None) -> bytes:
    """One event of a chat completion's stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "test-model", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
