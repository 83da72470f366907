"""An MCP server that misbehaves as told, over `rawwire`: a handshake, one list of tools, and any answer to a call."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.rawwire import Answer, Request

Say = Callable[[dict[str, Any]], Answer]


def result(request: dict[str, Any], value: Any, **headers: str) -> Answer:
    """The JSON answer to a request."""
    body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": value}).encode()
    return Answer([body], content_type="application/json", headers=headers)


def failure(request: dict[str, Any], message: str, *, code: int = -32000, status: int = 200) -> Answer:
    """A JSON-RPC error."""
    error = {"code": code, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": request.get("id"), "error": error}).encode()
    return Answer([body], status=status, content_type="application/json")


def said(request: dict[str, Any], text: str) -> Answer:
    """A result of one text."""
    return result(request, {"content": [{"type": "text", "text": text}]})


@dataclass
class MCPWire:
    """Give an instance to `raw_wire`. `calls` are the tools/call requests that came."""

    call: Say = lambda request: said(request, "ok")
    listed: Say | None = None
    tools: Sequence[dict[str, Any]] = ({"name": "t", "description": "A tool.", "inputSchema": {"type": "object"}},)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sessions: int = 0
    goodbyes: int = 0

    def __call__(self, request: Request) -> Answer:
        if request.method == "DELETE":
            self.goodbyes += 1
            return Answer([b""])
        if request.method != "POST":
            return Answer([b""], status=405)
        body = request.json()
        match body["method"]:
            case "initialize":
                self.sessions += 1
                about = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "wire", "version": "1"},
                }
                return result(body, about, **{"mcp-session-id": f"session-{self.sessions}"})
            case "tools/list":
                return self.listed(body) if self.listed else result(body, {"tools": list(self.tools)})
            case "tools/call":
                self.calls.append(body)
                return self.call(body)
            case "server/discover":
                return failure(body, "no such method", code=-32601)
            case _:
                return Answer([b""], status=202)
