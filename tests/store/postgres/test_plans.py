"""Statements that are prepared on empty tables keep the right plan when 20,000 lanes run.

Their plans are generic and made once a connection, so what the planner thought of empty tables is what production
runs. A plan that scans lanes would be found here, not at the first busy hour.
"""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from kubeharness.store.postgres import locks, reads, renewal, sides
from kubeharness.store.postgres.database import Connection, connect
from kubeharness.store.postgres.sides import PARTS
from kubeharness.store.postgres.unnest import columns_of
from kubeharness.store.postgres.writes import SECTIONS, UPDATE_LANES, Part, Shape, statement

LANES = 20_000

FILL = f"""
    INSERT INTO lane (id, incarnation, pool, state, head, last_position, attempt, owner, lease_until, claim, failures)
    SELECT 'conv_' || n, 'uid', 'shared', 'running', 1, 1, 'att_' || n, 'w', 0, 1, 1
      FROM generate_series(1, {LANES}) AS n;
    INSERT INTO submission (id, conversation, position, message, digest, admitted_at)
    SELECT 'sub_' || n, 'conv_' || n, 1, '', '', 0 FROM generate_series(1, {LANES}) AS n;
    INSERT INTO attempt (id, conversation, position, submission, claim, owner, revision, claimed_at)
    SELECT 'att_' || n, 'conv_' || n, 1, 'sub_' || n, 1, 'w', 'r', 0 FROM generate_series(1, {LANES}) AS n;
    INSERT INTO record (conversation, seq, ms, bits, kind, body)
    SELECT 'conv_' || n, s, 0, 0, 'user_message', '' FROM generate_series(1, {LANES}) AS n, generate_series(1, 2) AS s;
    INSERT INTO conversation (id, namespace, agent, incarnation, instance, session, created_at)
    SELECT 'conv_' || n, 'n', 'a', 'uid', n::text, 'default', 0 FROM generate_series(1, {LANES}) AS n;
    INSERT INTO dispatch (submission, conversation, dispatch_id, digest, admitted_at)
    SELECT 'sub_' || n, 'conv_' || n, '', '', 0 FROM generate_series(1, {LANES}) AS n;
    INSERT INTO open_call (conversation, call_id, submission, tool_name, state)
    SELECT 'conv_' || n, 'c', 'sub_' || n, 't', 'started' FROM generate_series(1, {LANES}) AS n;
    INSERT INTO inbox (conversation, id, via, body, digest, put_at)
    SELECT 'conv_' || n, 'm', 'steer', '', '', 0 FROM generate_series(1, {LANES}) AS n
"""

BIG = {
    "lane",
    "submission",
    "attempt",
    "record",
    "conversation",
    "dispatch",
    "open_call",
    "inbox",
    "settlement",
    "instance",
}

READS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "lock_lanes": (locks.LOCK_LANES, (["conv_7", "conv_9"],)),
    "read_lanes": (locks.READ_LANES, (["conv_7", "conv_9"], ["sub_7"])),
    "lock_candidates": (locks.LOCK_CANDIDATES, ("shared", [1], 32, 1, 0)),
    "lock_expired": (locks.LOCK_EXPIRED, (100,)),
    "lock_delayed": (locks.LOCK_DELAYED, (100,)),
    "lock_held": (locks.LOCK_HELD_WAITING, (["att_7"],)),
    "lock_held_skipping": (locks.LOCK_HELD_SKIPPING, (["att_7"],)),
    "renew": (renewal.RENEW, ([f"att_{n}" for n in range(32)], 30_000)),
    "page": (reads.READ_PAGE, ("conv_7", 0, 100)),
    "moved": (reads.MOVED, (["conv_7"], [0])),
    "load": (reads.LOAD, ("conv_7",)),
    "find": (reads.FIND, ("sub_7",)),
    "find_unsettled": (reads.FIND_UNSETTLED, ("conv_7", 10)),
    "side": (
        sides.statement(tuple(PARTS)),
        (["conv_7"], ["sub_7"], ["sub_7"], ["conv_7"], [1], ["conv_7"], ["conv_7"], ["conv_7"], ["m"]),
    ),
}


def part(index: int, groups: tuple[int, ...] = (0, 1, 2), *, single: bool = False) -> Part:
    section = SECTIONS[index]
    return Part(index, columns_of(groups) if section.text is UPDATE_LANES else section.columns, single)


ALL_PARTS = tuple(part(index) for index in range(len(SECTIONS)))
WRITES: dict[str, Shape] = {
    f"{section.rows}{'_single' if single else ''}": Shape((part(index, single=single),))
    for index, section in enumerate(SECTIONS)
    for single in ((False, True) if section.table == "lane" else (False,))
}
WRITES |= {
    f"lanes_{groups}_{single}_{guarded}": Shape((part(0, groups, single=single),), guarded)
    for groups in ((0,), (0, 2), (0, 1), (1, 2))
    for single in (False, True)
    for guarded in (False, True)
}
WRITES["all"] = Shape(ALL_PARTS)
WRITES["all_guarded"] = Shape(ALL_PARTS, guarded=True)

# The reaper reads what runs, and nothing else: its index is the running lanes.
ALLOWED = {"lock_expired": {"lane_running"}}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.fixture
async def hot(postgres_url: str) -> AsyncIterator[Connection]:
    connection = await connect(postgres_url, name="plans")
    yield connection
    await connection.close()


async def fill(url: str, *, analysed: bool = False) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(FILL)
    if analysed:  # settlements are none yet, and now the planner knows
        await connection.execute("ANALYZE")
    await connection.close()


def scans(explained: str) -> list[str]:
    """Each scan of a table that grows, unless it goes by an index with a condition."""
    found = []
    for node in nodes(json.loads(explained)[0]["Plan"]):
        table = node.get("Relation Name")
        searched = "Index Cond" in node or "Recheck Cond" in node
        if table in BIG and node["Node Type"] != "ModifyTable" and not searched:
            found.append(f"{node['Node Type']} on {table} by {node.get('Index Name')}")
        if node["Node Type"] in ("Hash Join", "Merge Join"):
            found.append(node["Node Type"])
    return found


@pytest.mark.parametrize("analysed", [False, True], ids=["never_analysed", "analysed"])
async def test_no_hot_statement_scans_a_table_that_grows(analysed: bool, hot: Connection, postgres_url: str) -> None:
    texts = {name: text for name, (text, _) in READS.items()}
    texts |= {f"write {name}": statement(shape) for name, shape in WRITES.items()}
    for number, text in enumerate(texts.values()):
        await hot.execute(f"PREPARE plan_{number} AS {text}")
        await explain(hot, number, text)  # the generic plan is made now, of empty tables
    await fill(postgres_url, analysed=analysed)

    found: dict[str, list[str]] = {}
    for number, (name, text) in enumerate(texts.items()):
        unwanted = [scan for scan in scans(await explain(hot, number, text)) if not allowed(name, scan)]
        if unwanted:
            found[name] = unwanted

    assert found == {}


def allowed(name: str, scan: str) -> bool:
    return any(scan.endswith(f"by {index}") for index in ALLOWED.get(name, ()))


async def explain(connection: Connection, number: int, text: str) -> str:
    parameters = text.count("$") and max(int(digits) for digits in _numbers(text))
    nulls = ", ".join(["NULL"] * parameters)
    return str(await connection.fetchval(f"EXPLAIN (FORMAT JSON, COSTS OFF) EXECUTE plan_{number} ({nulls})"))


def _numbers(text: str) -> list[str]:
    return re.findall(r"\$(\d+)", text)


async def test_each_lock_and_read_touches_few_pages_beside_running_lanes(hot: Connection, postgres_url: str) -> None:
    for text, values in READS.values():
        await hot.fetch(text, *values)  # prepared while there was nothing
    await fill(postgres_url)

    touched: dict[str, int] = {}
    for name, (text, values) in READS.items():
        explained = await hot.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", *values)
        plan = json.loads(explained)[0]["Plan"]
        touched[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    reaped = touched.pop("lock_expired")  # reads what runs, all of it
    assert {name: pages for name, pages in touched.items() if pages > 1000} == {}
    assert reaped < 4 * LANES
