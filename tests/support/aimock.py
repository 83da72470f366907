"""aimock: a model wire in a process of its own, told by fixtures what to answer, with a journal of what it was asked.

with running_aimock(tmp_path) as mock:
    mock.answer([{"match": {"userMessage": "hello"}, "response": {"content": "Hi!"}}])
    ...  # a provider with base_url=mock.base_url
    mock.requests()[-1]["messages"]
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx2

from support.nodeserver import NODE_MODULES, running_node

_CLI = NODE_MODULES / "@copilotkit" / "aimock" / "dist" / "cli.js"
_SECONDS = 5.0


@dataclass(frozen=True)
class AIMock:
    """A running aimock."""

    url: str
    pid: int

    @property
    def base_url(self) -> str:
        """What a ModelProvider's `baseURL` is."""
        return f"{self.url}/v1"

    def answer(self, fixtures: Sequence[dict[str, Any]]) -> None:
        """Forget everything, then answer by these; the first that matches wins."""
        self._post("/__aimock/reset", {})
        self._post("/__aimock/fixtures", {"fixtures": list(fixtures)})

    def journal(self) -> list[dict[str, Any]]:
        """What came in since the last `answer`, oldest first: method, path, headers, body, response."""
        answer = httpx2.get(f"{self.url}/v1/_requests", timeout=_SECONDS).raise_for_status()
        return cast("list[dict[str, Any]]", answer.json())

    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the chat completions that were asked for."""
        return [entry["body"] for entry in self.journal() if entry["path"].endswith("/chat/completions")]

    def _post(self, path: str, body: dict[str, Any]) -> None:
        raw = json.dumps(body)  # escapes what UTF-8 cannot carry, as a model's own wire does
        headers = {"Content-Type": "application/json"}
        httpx2.post(f"{self.url}{path}", content=raw, headers=headers, timeout=_SECONDS).raise_for_status()


@contextmanager
def running_aimock(folder: Path, fixtures: Sequence[dict[str, Any]] = (), *, chunk_size: int = 20) -> Iterator[AIMock]:
    """aimock on a free port of loopback for the block; a request that no fixture matches gets an error."""
    empty = folder / "fixtures.json"
    empty.write_text('{"fixtures": []}')
    arguments = [str(_CLI), "--host", "127.0.0.1", "-p", "0", "-f", str(empty), "-c", str(chunk_size)]
    with running_node(arguments, ready=r"listening on (http://\S+)", log=folder / "aimock.log") as (match, process):
        mock = AIMock(match[1], process.pid)
        mock.answer(fixtures)
        yield mock
