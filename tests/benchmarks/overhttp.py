"""Over HTTP, with processes as users run them: T1 under load; T5, T6 and T7 on an idle system."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import asyncpg

from benchmarks.server import committed, next_transaction_id
from benchmarks.windows import Pace, Window, contradictions, measured
from support.fleet import Fleet, Process, fleet
from support.postgres_server import PostgresServer

CLIENTS = 32
RECORDS = 6
"""conversation_created, user_message, started, delta, completed, settled."""
IDLE_SECONDS = 4.0
GRACE_SECONDS = 30.0
TESTS = Path(__file__).parent.parent

MANIFESTS = """
apiVersion: kubeharness.dev/v1alpha1
kind: ModelProvider
metadata: {name: script}
spec:
  type: Scripted
  scripted:
    chunkCharacters: 64
    rules:
    - when: {contains: say}
      steps:
      - text: Well, where shall I begin? It was a dark and stormy night, and the rain fell on the just and the unjust.
      - usage: {input: 40, output: 24}
---
apiVersion: kubeharness.dev/v1alpha1
kind: Agent
metadata: {name: bench}
spec:
  model: {providerRef: {name: script}, name: scripted, contextWindow: 128000}
  systemPrompt: Be brief.
"""

SETTLED = "SELECT count(*) FROM settlement"
OF_OTHER_LENGTH = f"""
    SELECT count(*) FROM lane JOIN conversation ON conversation.id = lane.id
     WHERE conversation.instance LIKE 'c-%' AND lane.last_seq <> {RECORDS}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Latencies of an idle system, and what one submission cost the database, reads included."""

    accepted_ms: list[float]
    first_ms: list[float]
    settled_ms: list[float]
    writing_transactions: float
    all_transactions: float
    void: tuple[str, ...]


def percentile(values: list[float], part: float) -> float:
    """The value below which this part lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


@contextmanager
def site(folder: Path, url: str) -> Iterator[tuple[Process, Fleet]]:
    """One gateway and one worker over a database, with the agent published."""
    folder.mkdir(parents=True, exist_ok=True)
    with fleet(folder, DATABASE_URL=url) as processes:
        manifests = folder / "agent.yaml"
        manifests.write_text(MANIFESTS)
        processes.run("publish", "-f", str(manifests))
        gateway = processes.start("gateway", AUTH="none", LOG_LEVEL="warning")
        worker = processes.start("worker", LOG_LEVEL="warning")
        worker.wait_ready()
        yield gateway.wait_ready(), processes


@contextmanager
def _generator(*words: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "benchmarks.load", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n", "the load generator did not start"
            yield process
        finally:
            process.kill()


def _ended(process: "subprocess.Popen[str]", within: float) -> Mapping[str, Any]:
    said, _ = process.communicate(timeout=within)
    return cast("dict[str, Any]", json.loads(said))


async def settled_under_load(folder: Path, url: str, pace: Pace) -> Window:
    """T1's subject: settled rows a second with 32 clients that each wait for their submission to end."""
    with site(folder, url) as (gateway, _):
        seconds = pace.warm + pace.window + 0.5
        connection = await asyncpg.connect(url)

        async def settled() -> int:
            return int(await connection.fetchval(SETTLED))

        with _generator(gateway.url, "--clients", str(CLIENTS), "--seconds", str(seconds)) as process:
            await asyncio.sleep(pace.warm)
            found = await measured(pace.window, settled)
            said = await asyncio.to_thread(_ended, process, seconds + GRACE_SECONDS)
        deadline = time.monotonic() + GRACE_SECONDS
        while await settled() < said["answered"] and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        void = (*said["failed"], *await contradictions(url, answered=said["answered"]))
        if other := await connection.fetchval(OF_OTHER_LENGTH):
            void += (f"{other} runs of other than {RECORDS} records",)
        await connection.close()
    waits = said["accepted_ms"]
    return found.window(void, client_p50_ms=statistics.median(waits), client_p99_ms=percentile(waits, 0.99))


async def idle_latencies(folder: Path, url: str, server: PostgresServer, samples: int) -> Idle:
    """T5, T6, T7: one submission at a time into sessions that somebody reads."""
    with site(folder, url) as (gateway, processes):
        await asyncio.sleep(1.0)
        transactions_a_second, writes_a_second = await _idle_rates(server, url)
        all_before, writes_before = committed(server, url), next_transaction_id(server)
        started = time.monotonic()
        with _generator(gateway.url, "--samples", str(samples)) as process:
            said = await asyncio.to_thread(_ended, process, samples + GRACE_SECONDS)
        seconds = time.monotonic() - started
        writes = next_transaction_id(server) - writes_before - writes_a_second * seconds
        await asyncio.sleep(1.5)  # a backend tells its counts a second after it has changed them
        all_of_them = committed(server, url) - all_before - transactions_a_second * (seconds + 1.5)
        void = await contradictions(url, answered=said["answered"])
        processes.stop_all()
    return Idle(
        accepted_ms=said["accepted_ms"],
        first_ms=said["first_ms"],
        settled_ms=said["settled_ms"],
        writing_transactions=writes / said["answered"],
        all_transactions=all_of_them / said["answered"],
        void=void,
    )


async def _idle_rates(server: PostgresServer, url: str) -> tuple[float, float]:
    transactions, writes, started = committed(server, url), next_transaction_id(server), time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - started
    return (
        (committed(server, url) - transactions) / seconds,
        (next_transaction_id(server) - writes) / seconds,
    )
