"""Many senders to one session over many pods, workers killed at random: one run after the other, in order."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.aimock import AIMock
from support.everything import Everything
from support.site import Site, of_kind, site

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

SESSIONS, POSTS, SECONDS = 20, 10, 20

TWO_CALLS = """
apiVersion: kubeharness.dev/v1alpha1
kind: ModelProvider
metadata: {name: demo}
spec:
  type: Scripted
  scripted:
    chunkDelayMilliseconds: 5
    rules:
    - when: {turn: 1}
      steps: [{toolCall: {name: clock, arguments: {}}}]
    - when: {turn: 2}
      steps: [{delayMilliseconds: 100}, {toolCall: {name: clock, arguments: {}}}]
    - when: {turn: 3}
      steps: [{text: "{{input}} is done"}]
---
apiVersion: kubeharness.dev/v1alpha1
kind: Agent
metadata: {name: demo}
spec:
  model: {providerRef: {name: demo}, name: demo, contextWindow: 1000000}
  systemPrompt: Be brief.
  tools: [{name: clock, builtin: {name: clock}}]
"""


def test_runs_of_a_session_never_overlap_and_keep_admission_order_c10(
    tmp_path: Path, postgres_url: str, mock: AIMock, everything: Everything
) -> None:
    with site(tmp_path, postgres_url, mock, everything) as here:
        path = tmp_path / "two.yaml"
        path.write_text(TWO_CALLS)
        here.processes.run("publish", "-f", str(path))
        for _ in range(2):
            here.gateway()
        workers = [here.worker() for _ in range(3)]
        stop = threading.Event()

        def kill_at_random() -> None:
            while not stop.wait(4):
                victim = random.randrange(len(workers))
                workers[victim].kill()
                workers[victim] = here.worker(ready=False)

        killer = threading.Thread(target=kill_at_random, daemon=True)
        killer.start()

        def post(job: tuple[int, int]) -> None:
            session, n = job
            said = ""
            for _ in range(20):
                answer = httpx2.post(
                    f"{here.gateways[n % 2].url}/agents/demo/i",
                    json={"kind": "user", "body": f"m{n}", "session": f"s{session}", "dispatchId": f"{session}-{n}"},
                    timeout=30,
                )
                if answer.status_code == 202:
                    return
                said = answer.text
            raise AssertionError(said)

        with ThreadPoolExecutor(10) as threads:
            list(threads.map(post, [(s, n) for n in range(POSTS) for s in range(SESSIONS)]))
        time.sleep(SECONDS)
        stop.set()
        killer.join(20)
        logs = [_settled_log(here, f"s{session}") for session in range(SESSIONS)]
        here.verify()

    assert sum(len(of_kind(log, "submission_settled")) for log in logs) == SESSIONS * POSTS
    for log in logs:
        assert {record["payload"]["status"] for record in of_kind(log, "submission_settled")} == {"succeeded"}
        runs: list[str] = []
        for record in log:
            submission = record.get("submissionId")
            if submission and (not runs or runs[-1] != submission):
                runs.append(submission)
        assert len(runs) == len(set(runs)) == POSTS, "runs overlap"
        positions = [int(r["turnId"].split(".")[0]) for r in of_kind(log, "assistant_message_completed")]
        assert positions == sorted(positions), "not in admission order"


def _settled_log(here: Site, session: str) -> list[dict[str, Any]]:
    end = time.monotonic() + 90
    while True:
        log: list[dict[str, Any]] = []
        after = ""
        while True:
            query = f"session={session}&limit=500{'&after=' + after if after else ''}"
            page = httpx2.get(f"{here.gateways[0].url}/agents/demo/i/records?{query}", timeout=10).json()
            log += page["records"]
            if not page.get("next"):
                break
            after = page["next"]
        if len(of_kind(log, "submission_settled")) == POSTS:
            return log
        assert time.monotonic() < end, f"{session}: {len(of_kind(log, 'submission_settled'))} settled"
        time.sleep(0.5)
