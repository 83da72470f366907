"""Any order of applying ends Ready, and Ready never comes before the workers have loaded what it speaks of."""

import asyncio
import itertools
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from e2e import manifests
from e2e.rooms import CONDITIONS, Room, brief, conditions_of, statuses, until
from support.fleet import Process

pytestmark = pytest.mark.timeout(180)  # the first test starts everything

Json = dict[str, Any]

HERTZ = 50
FROZEN_SECONDS = 2.5
KINDS = ("ModelProvider", "ToolServer", "Secret", "Agent")
ORDERS = list(itertools.permutations(KINDS))

# One statement, so one moment: what each head needs, and how far each live worker has come.
ACKNOWLEDGED = """
    SELECT (SELECT jsonb_object_agg(name, version) FROM agent_head
             WHERE namespace = $1 AND retired_at IS NULL AND active IS NOT NULL) AS heads,
           (SELECT jsonb_object_agg(id, applied) FROM component
             WHERE role = 'worker' AND NOT draining
               AND beat_at > extract(epoch FROM clock_timestamp()) * 1000 - 60000) AS workers
"""


@dataclass(frozen=True)
class Sample:
    """One look at both sides: at the API server first, so that what is true there must show in the database."""

    at: float
    ready: dict[str, bool]
    heads: dict[str, int]
    workers: dict[str, int]

    def early(self) -> list[str]:
        """Those that are Ready although a worker has not loaded them, or nobody could have."""
        return [
            name
            for name, ready in self.ready.items()
            if ready
            and (
                len(self.workers) < 2
                or name not in self.heads
                or any(applied < self.heads[name] for applied in self.workers.values())
            )
        ]


async def sample(room: Room, samples: list[Sample]) -> None:
    """Look fifty times a second until cancelled."""
    api, database = room.installation.api, room.installation.database_url
    connection = await asyncpg.connect(database, timeout=10)
    try:
        due = time.monotonic()
        while True:
            agents = await asyncio.to_thread(api.columns, room.namespace, "Agent")
            row = await connection.fetchrow(ACKNOWLEDGED, room.namespace, timeout=10)
            assert row is not None
            ready = {agent["NAME"]: agent["READY"] == "True" for agent in agents}
            samples.append(Sample(time.monotonic(), ready, read(row["heads"]), read(row["workers"])))
            due = max(due + 1 / HERTZ, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
    finally:
        await connection.close(timeout=5)


def read(value: str | None) -> dict[str, int]:
    return dict(json.loads(value)) if value else {}


def documents(room: Room, number: int) -> dict[str, Json]:
    """One set of the four, which refer to each other and to no other set."""
    wire, tools, key, name = (f"{what}-{number:02}" for what in ("wire", "tools", "key", "agent"))
    return {
        "ModelProvider": room.wire(wire, secret=key),
        "ToolServer": room.tools(tools),
        "Secret": manifests.secret(key),
        "Agent": manifests.agent(name, provider=wire, tools=tools),
    }


async def test_applied_in_any_order_an_agent_is_ready_and_never_before_the_workers_acknowledged(room: Room) -> None:
    """One worker stands still while the last of each set is applied: else its load is faster than the checks are,
    and an operator that does not wait for it would go unnoticed."""
    sets = [documents(room, number) for number in range(len(ORDERS))]
    names = [documents["Agent"]["metadata"]["name"] for documents in sets]
    samples: list[Sample] = []
    slow = room.installation.workers[1]
    async with asyncio.TaskGroup() as tasks:
        sampling = tasks.create_task(sample(room, samples))
        for step in range(len(KINDS) - 1):
            for order, one in zip(ORDERS, sets, strict=True):
                await asyncio.to_thread(room.apply, one[order[step]])
            await asyncio.sleep(1)  # what is there so far is looked at, and found wanting
        applied = time.monotonic()
        slow.freeze()
        try:
            for order, one in zip(ORDERS, sets, strict=True):
                await asyncio.to_thread(room.apply, one[order[-1]])
            await asyncio.sleep(FROZEN_SECONDS)
        finally:
            thawed = time.monotonic()
            slow.thaw()
        await asyncio.to_thread(
            until,
            lambda: len(ready := samples[-1].ready) == len(ORDERS) and all(ready.values()),
            lambda: unready(room, samples[-1]),
            within=60,
            pause=0.1,
        )
        sampling.cancel()

    assert [early for one in samples if (early := one.early())] == []
    before = [one for one in samples if one.at < applied]
    assert before, "nothing was seen before the last of the four"
    assert not [one for one in before if any(one.ready.values())], "Ready without all of its parts"
    meanwhile = [one for one in samples if applied < one.at < thawed]
    assert len(meanwhile[-1].heads) == len(ORDERS), "not all was published while the worker stood still"
    assert len(meanwhile[-1].workers) == 2
    pause = statistics.median(later.at - one.at for one, later in itertools.pairwise(samples))
    assert pause < 2 / HERTZ, f"one look each {pause * 1000:.0f} ms is too few to see a moment"
    for name in names:
        found = room.get(name)
        assert statuses(conditions_of(found)) == dict.fromkeys(CONDITIONS, "True"), name
        assert {item["observedGeneration"] for item in found["status"]["conditions"]} == {1}
        assert found["status"]["activeRevision"] == found["status"]["desiredRevision"]
        assert found["status"]["tools"] == {"resolved": 1, "total": 1}
    for kind, prefix in (("ModelProvider", "wire"), ("ToolServer", "tools")):
        for number in range(len(ORDERS)):
            assert room.conditions(f"{prefix}-{number:02}", kind)["Ready"]["status"] == "True"


def unready(room: Room, last: Sample) -> dict[str, dict[str, str]]:
    return {name: brief(room.conditions(name)) for name, ready in last.ready.items() if not ready}


def test_an_agent_is_not_ready_while_a_live_worker_has_not_loaded_it(room: Room) -> None:
    """The same claim with the moment held open: one worker stands still between the publication and its load."""
    frozen: Process = room.installation.workers[1]
    frozen.freeze()
    try:
        room.apply(manifests.scripted(), manifests.agent(provider="script"))
        published = "SELECT 1 FROM agent_head WHERE namespace = $1 AND active IS NOT NULL"
        until(lambda: room.installation.sql(published, room.namespace), lambda: room.get()["status"])
        seen = []
        for _ in range(2 * HERTZ):
            seen.append(room.conditions())
            time.sleep(1 / HERTZ)
    finally:
        frozen.thaw()
    ready = room.ready()

    assert {said["Ready"]["status"] for said in seen} <= {"False", "Unknown"}
    last = seen[-1]
    assert statuses(last)["ResolvedRefs"] == "True"
    assert (last["Programmed"]["status"], last["Programmed"]["reason"]) == ("False", "AwaitingAcknowledgement")
    assert last["Reconciling"]["status"] == "True"
    assert last["Available"]["status"] == "False"
    assert statuses(ready) == dict.fromkeys(CONDITIONS, "True")
    assert "Reconciling" not in ready
