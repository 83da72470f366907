"""The API server's audit log, read back: who wrote what, and when.

This is how "zero writes when idle" is measured: by what the server saw, not by what a client believes.
"""

import datetime
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITE_VERBS = ("create", "update", "patch", "delete", "deletecollection")

# Reads are never logged; a write is logged once, when it is answered.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "verbs": list(WRITE_VERBS)}, {"level": "None"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One answered write request, refused ones included (`code` tells)."""

    time: datetime.datetime
    user: str
    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int
    user_agent: str


def service_account_user(namespace: str, name: str) -> str:
    """Return the user name under which the API server knows a ServiceAccount."""
    return f"system:serviceaccount:{namespace}:{name}"


def read_writes(log: Path, *, since: datetime.datetime, users: Collection[str] | None = None) -> list[Write]:
    """Return the writes answered at or after `since`, oldest first; `users` limits them to these users.

    Refused writes are listed too, and reviews (can-i, token reviews): creates that store nothing.
    """
    return [write for write in _parsed(log) if write.time >= since and (users is None or write.user in users)]


def _parsed(log: Path) -> Iterator[Write]:
    with log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # the server is in the middle of writing it
            event = json.loads(line)
            if event["stage"] == "ResponseComplete" and event["verb"] in WRITE_VERBS:
                yield _write(event)


def _write(event: dict[str, Any]) -> Write:
    target = event.get("objectRef", {})
    return Write(
        time=datetime.datetime.fromisoformat(event["stageTimestamp"]),
        user=event["user"].get("username", ""),
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        user_agent=event.get("userAgent", ""),
    )
