"""A whole installation without a cluster: Postgres, aimock, server-everything, gateways and workers as processes."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2

from support.aimock import AIMock
from support.everything import Everything
from support.fleet import Fleet, Process, fleet

SETTLE_SECONDS = 40.0

MANIFESTS = """
apiVersion: kubeharness.dev/v1alpha1
kind: ModelProvider
metadata: {{name: wire}}
spec:
  type: OpenAICompatible
  baseURL: {base_url}
  insecure: Allow
---
apiVersion: kubeharness.dev/v1alpha1
kind: ToolServer
metadata: {{name: everything}}
spec:
  type: MCP
  url: {tool_url}
  insecure: Allow
---
apiVersion: kubeharness.dev/v1alpha1
kind: Agent
metadata: {{name: demo}}
spec:
  model: {{providerRef: {{name: wire}}, name: test-model, contextWindow: 100000}}
  systemPrompt: {prompt}
  tools:
  - name: everything
    toolServer: {{ref: {{name: everything}}}}
  durability: {{maxAttempts: {max_attempts}}}
"""


@dataclass(slots=True)
class Site:
    """What a test drives. `gateway` is the first one started."""

    processes: Fleet
    mock: AIMock
    everything: Everything
    folder: Path
    gateways: list[Process] = field(default_factory=list)

    def publish(self, *, prompt: str = "Be brief.", max_attempts: int = 10) -> None:
        """Compile and publish the demo agent."""
        text = MANIFESTS.format(
            base_url=self.mock.base_url, tool_url=self.everything.url, prompt=prompt, max_attempts=max_attempts
        )
        path = self.folder / "manifests.yaml"
        path.write_text(text)
        self.processes.run("publish", "-f", str(path))

    def gateway(self, **settings: str) -> Process:
        """One more gateway, ready."""
        started = self.processes.start("gateway", AUTH="none", **settings)
        self.gateways.append(started)
        return started.wait_ready()

    def worker(self, *, ready: bool = True, **settings: str) -> Process:
        """One more worker."""
        started = self.processes.start("worker", **settings)
        return started.wait_ready() if ready else started

    def post(self, body: str, *, at: str = "/agents/demo/s1", gateway: int = 0, **more: Any) -> str:
        """Dispatch; returns the submission id."""
        answer = httpx2.post(
            f"{self.gateways[gateway].url}{at}", json={"kind": "user", "body": body, **more}, timeout=10
        )
        assert answer.status_code == 202, answer.text
        return cast("str", answer.json()["submissionId"])

    def submission(self, submission: str, gateway: int = 0) -> dict[str, Any]:
        """What the gateway says of it."""
        answer = httpx2.get(f"{self.gateways[gateway].url}/submissions/{submission}", timeout=10)
        assert answer.status_code == 200, answer.text
        return cast("dict[str, Any]", answer.json())

    def settled(self, submission: str, *, within: float = SETTLE_SECONDS) -> dict[str, Any]:
        """Wait for its settlement; returns the settled record."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            found = [
                record
                for record in self.records()
                if record["kind"] == "submission_settled" and record["submissionId"] == submission
            ]
            if found:
                return found[0]
            time.sleep(0.1)
        logs = "\n".join(f"--- {p.name}\n{p.said()[-1500:]}" for p in self.processes.processes)
        raise AssertionError(f"{submission} did not settle within {within} s: {self.submission(submission)}\n{logs}")

    def records(self, at: str = "/agents/demo/s1", gateway: int = 0) -> list[dict[str, Any]]:
        """The whole log, by pages."""
        out: list[dict[str, Any]] = []
        after = ""
        while True:
            query = f"?limit=200{'&after=' + after if after else ''}"
            answer = httpx2.get(f"{self.gateways[gateway].url}{at}/records{query}", timeout=10)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            out += page["records"]
            if not page.get("next"):
                return out
            after = page["next"]

    def stream(self, at: str = "/agents/demo/s1", gateway: int = 0, *, after: str | None = None) -> bytes:
        """All frames until the session is idle, comments left out."""
        headers = {"Last-Event-ID": after} if after else {}
        with httpx2.stream(
            "GET", f"{self.gateways[gateway].url}{at}?until=idle", headers=headers, timeout=30
        ) as answer:
            assert answer.status_code == 200
            body = b"".join(answer.iter_bytes())
        frames = [f for f in body.split(b"\n\n") if f.strip() and not f.startswith((b":", b"retry:"))]
        return b"\n\n".join(frames)

    def verify(self) -> None:
        """`kubeharness verify` finds nothing."""
        self.processes.run("verify")


def of_kind(records: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of a kind."""
    return [record for record in records if record["kind"] == kind]


def everything_said(request: dict[str, Any]) -> str:
    """All that a model request tells the model."""
    return json.dumps(request["messages"], ensure_ascii=False)


@contextmanager
def site(folder: Path, url: str, mock: AIMock, everything: Everything, **settings: str) -> Iterator[Site]:
    """A site over a database; gone at the end of the block."""
    base = {"DATABASE_URL": url, "LEASE_SECONDS": "2", "SWEEP_MILLISECONDS": "200", "DRAIN_SECONDS": "2", **settings}
    with fleet(folder, **base) as processes:
        yield Site(processes, mock, everything, folder)
