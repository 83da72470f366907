"""`clock`: what time it is, in UTC."""

from collections.abc import Callable
from datetime import UTC, datetime

from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ToolDefinition, ToolResult
from kubeharness.tools.toolbox import Tool


def _utc_now() -> datetime:
    return datetime.now(UTC)


def clock(now: Callable[[], datetime] = _utc_now) -> Tool:
    """The tool; `now` is for tests."""

    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        return ToolResult(now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    return Tool(
        definition=ToolDefinition(
            "clock",
            "The current date and time in UTC, as ISO 8601.",
            {"type": "object", "properties": {}, "additionalProperties": False},
        ),
        run=run,
        idempotent=True,
        timeout_seconds=5,
    )
