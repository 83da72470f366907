"""T8: what a claim costs when a million submissions are queued and the heads of all lanes but one are busy."""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

import asyncpg

from benchmarks.lifecycle import AGENT, CLAIM_AT_ONCE, INCARNATION, LEASE_MS, admission, claim, settle_of
from kubeharness.engine.patience import only
from kubeharness.store.postgres.store import PostgresStore
from support.playing import publish

QUEUED_A_LANE = 10
ADMIT_AT_ONCE = 32
UNCOUNTED = 20

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
    claim_ms: list[float]

    @property
    def p50_ms(self) -> float:
        """The median."""
        return statistics.median(self.claim_ms)


async def claims_at(urls: dict[int, str], samples: int) -> list[Depth]:
    """Fill each database to its depth, then claim and settle the one free head of each in turn; time the claims.

    In turn, so that what the machine does meanwhile meets all depths alike.
    """
    async with AsyncExitStack() as stores:
        depths: list[tuple[PostgresStore, Depth]] = []
        for queued, url in urls.items():
            store = await stores.enter_async_context(PostgresStore.open(url))
            await publish(store, AGENT)
            began = time.monotonic()
            await _fill(url, queued)
            depths.append((store, Depth(queued=queued, load_seconds=time.monotonic() - began, claim_ms=[])))
            for first in range(0, samples + UNCOUNTED, ADMIT_AT_ONCE):
                for answer in await store.admit([admission("free", first + i) for i in range(ADMIT_AT_ONCE)]):
                    only([answer])
        for n in range(samples + UNCOUNTED):
            for store, depth in depths:
                took = await _one(store)
                if n >= UNCOUNTED:
                    depth.claim_ms.append(took)
    return [depth for _, depth in depths]


async def _one(store: PostgresStore) -> float:
    began = time.perf_counter()
    (claimed,) = await claim(store, CLAIM_AT_ONCE)
    took = (time.perf_counter() - began) * 1000
    only(await store.settle([settle_of(claimed, number=1)]))
    await asyncio.sleep(0.002)
    return took


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
