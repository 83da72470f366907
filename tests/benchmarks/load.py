"""The load generator, a process of its own: closed loops for a time, or one request after another with rests.

Says `started` when all its connections are open, and at its end one line of JSON. Stops by itself.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.windows import run
from benchmarks.wire import Wire

AGENT = "bench"
PER_SESSION = 10
REST_SECONDS = (0.015, 0.035)
ANSWER_SECONDS = 20.0
TEXT = "Say something of some length, please: "


@dataclass(slots=True)
class Said:
    """What a run of the generator tells at its end."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)
    accepted_ms: list[float] = field(default_factory=list)
    """POST to its 202, or under load to its settlement."""
    first_ms: list[float] = field(default_factory=list)
    settled_ms: list[float] = field(default_factory=list)

    def tell(self) -> None:
        """One line."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        print(json.dumps(fields), flush=True)


async def closed_loops(url: str, clients: int, seconds: float) -> Said:
    """So many clients, each with one submission in flight; first, each fills a session's queue three deep."""
    said = Said()
    wires = [await Wire.open(url) for _ in range(clients)]
    over_at = time.monotonic() + seconds
    print("started", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for number, wire in enumerate(wires):
            tasks.create_task(_client(wire, number, over_at, said))
    for wire in wires:
        wire.close()
    return said


async def _client(wire: Wire, number: int, over_at: float, said: Said) -> None:
    queue = f"/agents/{AGENT}/queue-{number}"
    for path in itertools.chain([queue] * 3, (f"/agents/{AGENT}/c-{number}-{n}" for n in itertools.count())):
        waits = path is not queue
        if waits and time.monotonic() >= over_at:
            return
        began = time.perf_counter()
        async with asyncio.timeout(ANSWER_SECONDS):
            status, answer = await wire.post(path + ("?wait=true" if waits else ""), {"kind": "user", "body": TEXT})
        if status != (200 if waits else 202) or answer.get("status", "succeeded") != "succeeded":
            said.failed.append(f"{status} {answer}")
            return
        said.answered += 1
        if waits:
            said.accepted_ms.append((time.perf_counter() - began) * 1000)


async def one_by_one(url: str, samples: int) -> Said:
    """One submission after another into sessions whose readers listen already; the system rests in between."""
    said = Said()
    wire = await Wire.open(url)
    print("started", flush=True)
    while len(said.settled_ms) < samples:
        path = f"/agents/{AGENT}/idle-{len(said.settled_ms)}"
        reading = await Wire.open(url)
        async with asyncio.timeout(ANSWER_SECONDS * 2):
            events = reading.events(path)
            await anext(events)  # its opening
            for n in range(min(PER_SESSION, samples - len(said.settled_ms)) + 1):
                await asyncio.sleep(random.uniform(*REST_SECONDS))
                took = await _one(wire, path, events)
                said.answered += 1
                if n > 0:  # the first makes the session
                    for name, spent in zip(("accepted_ms", "first_ms", "settled_ms"), took, strict=True):
                        getattr(said, name).append(spent)
        reading.close()
    wire.close()
    return said


async def _one(wire: Wire, path: str, events: AsyncIterator[tuple[str, bytes]]) -> tuple[float, float, float]:
    """Milliseconds from the POST to its 202, to the first event of its run, and to its settlement."""
    accepted: list[float] = []
    first = settled = 0.0
    began = time.perf_counter()

    async def post() -> None:
        status, answer = await wire.post(path, {"kind": "user", "body": TEXT})
        accepted.append(time.perf_counter() - began)
        assert status == 202, f"{status} {answer}"

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(post())
        async for kind, _ in events:
            if kind == "conversation_created":
                continue
            first = first or time.perf_counter() - began
            if kind == "submission_settled":
                settled = time.perf_counter() - began
                break
    return accepted[0] * 1000, first * 1000, settled * 1000


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--samples", type=int, default=0)
    given = parser.parse_args()
    work = (
        one_by_one(given.url, given.samples) if given.samples else closed_loops(given.url, given.clients, given.seconds)
    )
    said = run(work)
    said.tell()
    sys.exit(1 if said.failed else 0)


if __name__ == "__main__":
    main()
