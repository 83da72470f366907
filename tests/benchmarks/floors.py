"""The floors: the same lifecycle in raw SQL, on tables of its own, with nothing of ours in between.

F1 is fused: one statement and one commit each for admit, claim and marker, append of 5 records, settle; 16
connections. F2 is batched: the same four statements for 32 lanes at once, with the rows of dispatch key and attempt;
4 connections. Both keep a fence, a head and a counter of records, since no queue of ours could do without.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine

import asyncpg

from benchmarks.windows import Pace, Tally, Window, run_window

F1_CONNECTIONS = 16
F2_CONNECTIONS = 4
BATCH = 32
RECORDS = 5
PER_SESSION = 8
BODY = b"x" * 260
"""About the size of a record of ours."""

TABLES = """
    CREATE TABLE raw_lane (
        id TEXT COLLATE "C" PRIMARY KEY, pool TEXT COLLATE "C" NOT NULL, state TEXT COLLATE "C" NOT NULL,
        head BIGINT NOT NULL, last_position BIGINT NOT NULL, last_seq BIGINT NOT NULL,
        attempt TEXT COLLATE "C", ready_at BIGINT NOT NULL
    ) WITH (fillfactor = 50);
    CREATE INDEX raw_ready ON raw_lane (pool, ready_at) WHERE state = 'ready';
    CREATE TABLE raw_submission (
        id TEXT COLLATE "C" PRIMARY KEY, lane TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL,
        message BYTEA NOT NULL, UNIQUE (lane, position)
    );
    CREATE TABLE raw_dispatch (id TEXT COLLATE "C" PRIMARY KEY, lane TEXT COLLATE "C" NOT NULL, digest TEXT NOT NULL);
    CREATE TABLE raw_attempt (
        id TEXT COLLATE "C" PRIMARY KEY, lane TEXT COLLATE "C" NOT NULL, position BIGINT NOT NULL
    );
    CREATE TABLE raw_record (
        lane TEXT COLLATE "C" NOT NULL, seq BIGINT NOT NULL, body BYTEA NOT NULL, PRIMARY KEY (lane, seq)
    );
    CREATE SEQUENCE raw_clock;
"""

ADMIT = """
    WITH taken AS (
        INSERT INTO raw_lane AS lane (id, pool, state, head, last_position, last_seq, ready_at)
        VALUES ($1, '', 'ready', 1, 1, 0, nextval('raw_clock'))
            ON CONFLICT (id) DO UPDATE
           SET last_position = lane.last_position + 1,
               head = CASE lane.state WHEN 'idle' THEN lane.last_position + 1 ELSE lane.head END,
               ready_at = CASE lane.state WHEN 'idle' THEN excluded.ready_at ELSE lane.ready_at END,
               state = CASE lane.state WHEN 'idle' THEN 'ready' ELSE lane.state END
        RETURNING lane.id, lane.last_position
    )
    INSERT INTO raw_submission (id, lane, position, message) SELECT $2, id, last_position, $3 FROM taken
"""
CLAIM = """
    WITH ready AS MATERIALIZED (
        SELECT id FROM raw_lane WHERE state = 'ready' AND pool = '' ORDER BY ready_at LIMIT 1
           FOR NO KEY UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE raw_lane SET state = 'running', attempt = $1 FROM ready WHERE raw_lane.id = ready.id
        RETURNING raw_lane.id, raw_lane.head
    ), marked AS (
        INSERT INTO raw_attempt (id, lane, position) SELECT $1, id, head FROM taken
    )
    SELECT taken.id, raw_submission.message FROM taken
      JOIN raw_submission ON raw_submission.lane = taken.id AND raw_submission.position = taken.head
"""
APPEND = """
    WITH taken AS (
        UPDATE raw_lane SET last_seq = last_seq + cardinality($3::bytea[]) WHERE id = $1 AND attempt = $2
        RETURNING id, last_seq - cardinality($3::bytea[]) AS base
    )
    INSERT INTO raw_record (lane, seq, body)
    SELECT taken.id, base + given.n, given.body FROM taken, unnest($3::bytea[]) WITH ORDINALITY AS given (body, n)
"""
SETTLE = """
    WITH taken AS (
        UPDATE raw_lane
           SET last_seq = last_seq + 1, attempt = NULL,
               state = CASE WHEN head < last_position THEN 'ready' ELSE 'idle' END,
               head = CASE WHEN head < last_position THEN head + 1 ELSE 0 END
         WHERE id = $1 AND attempt = $2
        RETURNING id, last_seq
    )
    INSERT INTO raw_record (lane, seq, body) SELECT id, last_seq, $3 FROM taken
"""

ADMIT_MANY = """
    WITH given AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::text[]) AS given (lane, submission)),
    keyed AS (
        INSERT INTO raw_dispatch (id, lane, digest) SELECT submission, lane, submission FROM given
            ON CONFLICT DO NOTHING RETURNING id, lane
    ), taken AS (
        INSERT INTO raw_lane AS lane (id, pool, state, head, last_position, last_seq, ready_at)
        SELECT keyed.lane, $4, 'ready', 1, 1, 0, nextval('raw_clock') FROM keyed ORDER BY keyed.lane
            ON CONFLICT (id) DO UPDATE
           SET last_position = lane.last_position + 1,
               head = CASE lane.state WHEN 'idle' THEN lane.last_position + 1 ELSE lane.head END,
               ready_at = CASE lane.state WHEN 'idle' THEN excluded.ready_at ELSE lane.ready_at END,
               state = CASE lane.state WHEN 'idle' THEN 'ready' ELSE lane.state END
        RETURNING lane.id, lane.last_position
    )
    INSERT INTO raw_submission (id, lane, position, message)
    SELECT keyed.id, taken.id, taken.last_position, $3 FROM taken JOIN keyed ON keyed.lane = taken.id
"""
CLAIM_MANY = """
    WITH ready AS MATERIALIZED (
        SELECT id, row_number() OVER () AS n FROM (
            SELECT id FROM raw_lane WHERE state = 'ready' AND pool = $2 ORDER BY ready_at LIMIT cardinality($1::text[])
               FOR NO KEY UPDATE SKIP LOCKED
        ) AS locked
    ), taken AS (
        UPDATE raw_lane SET state = 'running', attempt = ($1::text[])[ready.n] FROM ready WHERE raw_lane.id = ready.id
        RETURNING raw_lane.id, raw_lane.attempt, raw_lane.head
    ), marked AS (
        INSERT INTO raw_attempt (id, lane, position) SELECT attempt, id, head FROM taken
    )
    SELECT taken.id, taken.attempt, raw_submission.message FROM taken
      JOIN raw_submission ON raw_submission.lane = taken.id AND raw_submission.position = taken.head
"""
APPEND_MANY = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::text[]) AS given (lane, attempt)
    ), locked AS MATERIALIZED (
        SELECT raw_lane.id, given.attempt FROM given JOIN raw_lane ON raw_lane.id = given.lane
         ORDER BY raw_lane.id FOR NO KEY UPDATE OF raw_lane
    ), taken AS (
        UPDATE raw_lane SET last_seq = last_seq + cardinality($3::bytea[]) FROM locked
         WHERE raw_lane.id = locked.id AND raw_lane.attempt = locked.attempt
        RETURNING raw_lane.id, last_seq - cardinality($3::bytea[]) AS base
    )
    INSERT INTO raw_record (lane, seq, body)
    SELECT taken.id, base + body.n, body.body FROM taken, unnest($3::bytea[]) WITH ORDINALITY AS body (body, n)
"""
SETTLE_MANY = """
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest($1::text[], $2::text[]) AS given (lane, attempt)
    ), locked AS MATERIALIZED (
        SELECT raw_lane.id, given.attempt FROM given JOIN raw_lane ON raw_lane.id = given.lane
         ORDER BY raw_lane.id FOR NO KEY UPDATE OF raw_lane
    ), taken AS (
        UPDATE raw_lane
           SET last_seq = last_seq + 1, attempt = NULL,
               state = CASE WHEN head < last_position THEN 'ready' ELSE 'idle' END,
               head = CASE WHEN head < last_position THEN head + 1 ELSE 0 END
          FROM locked WHERE raw_lane.id = locked.id AND raw_lane.attempt = locked.attempt
        RETURNING raw_lane.id, last_seq
    )
    INSERT INTO raw_record (lane, seq, body) SELECT id, last_seq, $3 FROM taken
"""
COUNTS = """
    SELECT (SELECT count(*) FROM raw_record), (SELECT count(*) FROM raw_submission), (SELECT count(*) FROM raw_attempt),
           (SELECT sum(last_seq) FROM raw_lane), (SELECT count(*) FROM raw_lane WHERE state <> 'idle')
"""
PLANS = {"plan_cache_mode": "force_generic_plan", "jit": "off"}


async def fused(url: str, pace: Pace) -> Window:
    """F1, with a new session for each submission, as T1 has it."""
    await _prepare(url)
    connections = [await asyncpg.connect(url, server_settings=PLANS) for _ in range(F1_CONNECTIONS)]

    def life(
        connection: "asyncpg.Connection[asyncpg.Record]", number: int
    ) -> Callable[[Tally], Coroutine[None, None, None]]:
        async def loop(tally: Tally) -> None:
            bodies = [BODY] * RECORDS
            for n in itertools.count():
                if tally.over:
                    return
                await connection.execute(ADMIT, f"lane-{number}-{n}", f"sub-{number}-{n}", BODY)
                attempt = f"att-{number}-{n}"
                while (claimed := await connection.fetchrow(CLAIM, attempt)) is None:
                    await asyncio.sleep(0)  # all that was ready was locked by others just now
                await connection.execute(APPEND, claimed[0], attempt, bodies)
                await connection.execute(SETTLE, claimed[0], attempt, BODY)
                tally.done += 1

        return loop

    tally, found = await run_window(pace, [life(c, n) for n, c in enumerate(connections)])
    for connection in connections:
        await connection.close()
    return found.window(await _void(url, tally.done))


async def batched(url: str, pace: Pace) -> Window:
    """F2, with some submissions a session, as T3 has it."""
    await _prepare(url)
    connections = [await asyncpg.connect(url, server_settings=PLANS) for _ in range(F2_CONNECTIONS)]

    def life(
        connection: "asyncpg.Connection[asyncpg.Record]", number: int
    ) -> Callable[[Tally], Coroutine[None, None, None]]:
        async def loop(tally: Tally) -> None:
            bodies = [BODY] * RECORDS
            pool = f"pool-{number}"
            for n in itertools.count():
                if tally.over:
                    return
                lanes = [f"lane-{number}-{n // PER_SESSION}-{i}" for i in range(BATCH)]
                await connection.execute(ADMIT_MANY, lanes, [f"sub-{number}-{n}-{i}" for i in range(BATCH)], BODY, pool)
                attempts = [f"att-{number}-{n}-{i}" for i in range(BATCH)]
                claimed = await connection.fetch(CLAIM_MANY, attempts, pool)
                held = [row[0] for row in claimed], [row[1] for row in claimed]
                await connection.execute(APPEND_MANY, *held, bodies)
                await connection.execute(SETTLE_MANY, *held, BODY)
                tally.done += len(claimed)

        return loop

    tally, found = await run_window(pace, [life(c, n) for n, c in enumerate(connections)])
    for connection in connections:
        await connection.close()
    return found.window(await _void(url, tally.done))


async def _prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    await connection.close()


async def _void(url: str, done: int) -> tuple[str, ...]:
    connection = await asyncpg.connect(url)
    records, submissions, attempts, last, working = await connection.fetchrow(COUNTS) or (0, 0, 0, 0, 0)
    await connection.close()
    expected = (done * (RECORDS + 1), done, done, done * (RECORDS + 1), 0)
    found = (records, submissions, attempts, int(last), working)
    return () if found == expected else (f"the floor has {found}, expected {expected}",)
