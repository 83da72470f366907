"""T8: what a claim costs when a million submissions are queued and the heads of all lanes but one are busy."""

import asyncio
import statistics
import time
from dataclasses import dataclass

import asyncpg

from benchmarks.lifecycle import AGENT, INCARNATION, LEASE_MS, admission, claim, settle_of
from kubeharness.engine.patience import only
from kubeharness.store.postgres.store import PostgresStore
from support.playing import publish

QUEUED_A_LANE = 10
ADMIT_AT_ONCE = 32

# A lane's id, conversation and submissions, as if they had been admitted and their heads claimed by others.
BULK = """
    INSERT INTO conversation (id, namespace, agent, incarnation, instance, session, created_at)
    SELECT 'conv_' || left(md5(n::text), 26), 'default', '{agent}', '{incarnation}', 'busy-' || n, 'default', {now}
      FROM generate_series(1, {lanes}) AS n;
    INSERT INTO lane (id, incarnation, pool, state, head, last_position, attempt, owner, lease_until, claim,
                      write_attempt, write_number, write_base, write_count, write_milliseconds, revision, head_at,
                      ready_at, deadline, failures)
    SELECT 'conv_' || left(md5(n::text), 26), '{incarnation}', 'shared', 'running', 1, {each}, 'att_' || n, 'others',
           {now} + 3600000, 1, 'att_' || n, 0, 0, 0, {now}, (SELECT active FROM agent_head), {now}, {now},
           {now} + 3600000, 1
      FROM generate_series(1, {lanes}) AS n;
    INSERT INTO attempt (id, conversation, position, submission, claim, owner, revision, claimed_at)
    SELECT 'att_' || n, 'conv_' || left(md5(n::text), 26), 1, 'sub_' || n || '_1', 1, 'others',
           (SELECT active FROM agent_head), {now}
      FROM generate_series(1, {lanes}) AS n;
    INSERT INTO submission (id, conversation, position, message, digest, admitted_at)
    SELECT 'sub_' || n || '_' || p, 'conv_' || left(md5(n::text), 26), p, '\\x7b7d', 'sha256:' || md5(n::text), {now}
      FROM generate_series(1, {lanes}) AS n, generate_series(1, {each}) AS p;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Claims at one depth."""

    queued: int
    load_seconds: float
    claim_p50_ms: float
    claim_p99_ms: float


async def claims_at(url: str, queued: int, samples: int) -> Depth:
    """Fill a database to this depth, then claim and settle the one free head, again and again; time the claims."""
    async with PostgresStore.open(url) as store:
        await publish(store, AGENT)
        started = time.monotonic()
        await _fill(url, queued)
        load_seconds = time.monotonic() - started
        for first in range(0, samples + 50, ADMIT_AT_ONCE):
            for answer in await store.admit([admission("free", first + i) for i in range(ADMIT_AT_ONCE)]):
                only([answer])
        times: list[float] = []
        for n in range(samples + 20):
            began = time.perf_counter()
            (claimed,) = await claim(store, 32)
            spent = time.perf_counter() - began
            if n >= 20:
                times.append(spent * 1000)
            only(await store.settle([settle_of(claimed, number=1)]))
            await asyncio.sleep(0.002)
    times.sort()
    return Depth(
        queued=queued,
        load_seconds=load_seconds,
        claim_p50_ms=statistics.median(times),
        claim_p99_ms=times[int(len(times) * 0.99)],
    )


async def _fill(url: str, queued: int) -> None:
    text = BULK.format(
        agent=AGENT,
        incarnation=INCARNATION,
        lanes=queued // QUEUED_A_LANE,
        each=QUEUED_A_LANE,
        now="(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    )
    assert LEASE_MS < 3_600_000
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(text, timeout=300)
        for table in ("conversation", "lane", "attempt", "submission"):
            await connection.execute(f"VACUUM (ANALYZE) {table}", timeout=120)
        await connection.execute("CHECKPOINT", timeout=120)
    finally:
        await connection.close()
