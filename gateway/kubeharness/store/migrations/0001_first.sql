-- min_build: 1
--
-- The first schema. What stands here and has no code yet is meant (engine.md, "there from the first schema").
--
-- * Times are BIGINT milliseconds of this database's clock; no pod's clock enters a comparison (I4).
-- * Ids are COLLATE "C": they compare as bytes, in the order in which locks are taken.
-- * Bodies are BYTEA: what was written is what is read, to the byte (I15); nothing is re-serialised.
-- * No foreign keys: each costs a row lock on a hot write. `kubeharness verify` looks after references.
-- * Ids of conversations, submissions and attempts are derived or minted by us, so they are TEXT.

CREATE TABLE instance (
    namespace   TEXT COLLATE "C" NOT NULL,
    agent       TEXT COLLATE "C" NOT NULL,
    incarnation TEXT COLLATE "C" NOT NULL,
    instance    TEXT COLLATE "C" NOT NULL,
    created_at  BIGINT NOT NULL,
    purged_at   BIGINT,
    PRIMARY KEY (namespace, agent, incarnation, instance)
);

-- Insert-only. A fork shares its prefix by reference: (fork_conversation, fork_seq) is where it goes on from.
CREATE TABLE conversation (
    id                TEXT COLLATE "C" PRIMARY KEY,
    namespace         TEXT COLLATE "C" NOT NULL,
    agent             TEXT COLLATE "C" NOT NULL,
    incarnation       TEXT COLLATE "C" NOT NULL,
    instance          TEXT COLLATE "C" NOT NULL,
    session           TEXT COLLATE "C" NOT NULL,
    owner             TEXT,
    fork_conversation TEXT COLLATE "C",
    fork_seq          BIGINT,
    created_at        BIGINT NOT NULL
);

CREATE UNIQUE INDEX conversation_session ON conversation (namespace, agent, incarnation, instance, session);

-- One row per session: its queue, lease, fence and offset counter at once (core/lane.py has each field's meaning).
CREATE TABLE lane (
    id                  TEXT COLLATE "C" PRIMARY KEY,
    incarnation         TEXT COLLATE "C" NOT NULL,
    pool                TEXT COLLATE "C" NOT NULL,
    fair_key            TEXT COLLATE "C" NOT NULL DEFAULT '',
    state               TEXT COLLATE "C" NOT NULL DEFAULT 'idle',
    head                BIGINT NOT NULL DEFAULT 0,
    last_position       BIGINT NOT NULL DEFAULT 0,
    cancelled_positions BIGINT[] NOT NULL DEFAULT '{}',
    last_seq            BIGINT NOT NULL DEFAULT 0,
    last_ms             BIGINT NOT NULL DEFAULT 0,
    load_seq            BIGINT NOT NULL DEFAULT 0,
    pruned_to           BIGINT NOT NULL DEFAULT 0,
    attempt             TEXT COLLATE "C",
    owner               TEXT COLLATE "C",
    lease_until         BIGINT,
    claim               INTEGER NOT NULL DEFAULT 0,
    write_attempt       TEXT COLLATE "C",
    write_number        BIGINT,
    write_base          BIGINT,
    write_count         INTEGER,
    write_milliseconds  BIGINT,
    revision            TEXT COLLATE "C",
    head_at             BIGINT NOT NULL DEFAULT 0,
    ready_at            BIGINT NOT NULL DEFAULT 0,
    not_before          BIGINT,
    deadline            BIGINT,
    failures            INTEGER NOT NULL DEFAULT 0,
    handovers           INTEGER NOT NULL DEFAULT 0,
    model_retries       INTEGER NOT NULL DEFAULT 0,
    tries               INTEGER NOT NULL DEFAULT 0,
    steps               INTEGER NOT NULL DEFAULT 0,
    corrective          INTEGER NOT NULL DEFAULT 0,
    compactions         INTEGER NOT NULL DEFAULT 0,
    children            INTEGER NOT NULL DEFAULT 0,
    usage_input         BIGINT,
    usage_output        BIGINT,
    usage_cache_read    BIGINT,
    usage_cache_write   BIGINT,
    usage_reasoning     BIGINT,
    open_calls          INTEGER NOT NULL DEFAULT 0,
    open_turn           TEXT COLLATE "C",
    unread              INTEGER NOT NULL DEFAULT 0,
    cancel              TEXT,
    last_error          TEXT NOT NULL DEFAULT '',
    CONSTRAINT lane_state CHECK (state IN ('idle', 'ready', 'delayed', 'running', 'waiting', 'held'))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- The scans of claim, reap and sweep. None on the lease: a renewal touches no index.
CREATE INDEX lane_ready   ON lane (pool, ready_at) WHERE state = 'ready' AND failures = 0;
CREATE INDEX lane_blamed  ON lane (pool, ready_at) WHERE state = 'ready' AND failures > 0;
CREATE INDEX lane_running ON lane (id) WHERE state = 'running';
CREATE INDEX lane_delayed ON lane (not_before) WHERE state = 'delayed';
CREATE INDEX lane_waiting ON lane (deadline) WHERE state = 'waiting';

CREATE TABLE submission (
    id                TEXT COLLATE "C" PRIMARY KEY,
    conversation      TEXT COLLATE "C" NOT NULL,
    position          BIGINT NOT NULL,
    message           BYTEA NOT NULL,
    digest            TEXT COLLATE "C" NOT NULL,
    principal         TEXT,
    labels            JSONB NOT NULL DEFAULT '{}',
    priority          TEXT COLLATE "C" NOT NULL DEFAULT 'interactive',
    traceparent       TEXT,
    parent_submission TEXT COLLATE "C",
    parent_call       TEXT COLLATE "C",
    depth             INTEGER NOT NULL DEFAULT 0,
    revision          TEXT COLLATE "C",
    admitted_at       BIGINT NOT NULL
) WITH (fillfactor = 90);  -- room for the revision that the first claim pins

CREATE UNIQUE INDEX submission_position ON submission (conversation, position);

-- The idempotency key of I2 is the submission's id, derived from it. It outlives the submission.
CREATE TABLE dispatch (
    submission   TEXT COLLATE "C" PRIMARY KEY,
    conversation TEXT COLLATE "C" NOT NULL,
    dispatch_id  TEXT NOT NULL,
    digest       TEXT COLLATE "C" NOT NULL,
    admitted_at  BIGINT NOT NULL
);

-- Insert-only: one row a claim.
CREATE TABLE attempt (
    id           TEXT COLLATE "C" PRIMARY KEY,
    conversation TEXT COLLATE "C" NOT NULL,
    position     BIGINT NOT NULL,
    submission   TEXT COLLATE "C" NOT NULL,
    claim        INTEGER NOT NULL,
    owner        TEXT COLLATE "C" NOT NULL,
    revision     TEXT COLLATE "C" NOT NULL,
    initialised  BYTEA,
    claimed_at   BIGINT NOT NULL
);

CREATE UNIQUE INDEX attempt_claim ON attempt (conversation, position, claim);

-- The ledger (I8): only the transaction that deletes a row writes the call's outcome.
CREATE TABLE open_call (
    conversation TEXT COLLATE "C" NOT NULL,
    call_id      TEXT COLLATE "C" NOT NULL,
    submission   TEXT COLLATE "C" NOT NULL,
    tool_name    TEXT NOT NULL,
    state        TEXT COLLATE "C" NOT NULL,
    idempotent   BOOLEAN NOT NULL DEFAULT FALSE,
    child        TEXT COLLATE "C",
    number       BIGINT GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (conversation, call_id),
    CONSTRAINT open_call_state CHECK (state IN ('recorded', 'asked', 'approved', 'started', 'child'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- A consumed message keeps its row, so that its key is answered alike for ever.
CREATE TABLE inbox (
    conversation TEXT COLLATE "C" NOT NULL,
    id           TEXT COLLATE "C" NOT NULL,
    number       BIGINT GENERATED ALWAYS AS IDENTITY,
    via          TEXT COLLATE "C" NOT NULL,
    body         TEXT NOT NULL,
    digest       TEXT COLLATE "C" NOT NULL,
    principal    TEXT,
    put_at       BIGINT NOT NULL,
    consumed     BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (conversation, id)
);

CREATE INDEX inbox_unread ON inbox (conversation, number) WHERE NOT consumed;

-- I7: its row and its record are one transaction; `seq` is the record's place.
CREATE TABLE settlement (
    submission   TEXT COLLATE "C" PRIMARY KEY,
    conversation TEXT COLLATE "C" NOT NULL,
    position     BIGINT NOT NULL,
    attempts     INTEGER NOT NULL,
    seq          BIGINT NOT NULL
);

CREATE INDEX settlement_conversation ON settlement (conversation, position);

-- A row a model call; `number` is that of the write that brought it, which carries at most one.
CREATE TABLE usage (
    attempt      TEXT COLLATE "C" NOT NULL,
    number       BIGINT NOT NULL,
    conversation TEXT COLLATE "C" NOT NULL,
    position     BIGINT NOT NULL,
    turn_id      TEXT COLLATE "C" NOT NULL,
    provider     TEXT NOT NULL,
    model        TEXT NOT NULL,
    input        BIGINT,
    output       BIGINT,
    cache_read   BIGINT,
    cache_write  BIGINT,
    reasoning    BIGINT,
    used_at      BIGINT NOT NULL,
    PRIMARY KEY (attempt, number)
);

CREATE INDEX usage_conversation ON usage (conversation, position);

CREATE TABLE outbox (
    number       BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind         TEXT COLLATE "C" NOT NULL,
    conversation TEXT COLLATE "C" NOT NULL,
    submission   TEXT COLLATE "C",
    body         BYTEA NOT NULL,
    put_at       BIGINT NOT NULL,
    not_before   BIGINT NOT NULL DEFAULT 0
);

-- The log. `body` is the wire JSON without its id; the id is (ms, seq, bits) (records.md).
CREATE TABLE record (
    conversation TEXT COLLATE "C" NOT NULL,
    seq          BIGINT NOT NULL,
    ms           BIGINT NOT NULL,
    bits         INTEGER NOT NULL,
    kind         TEXT COLLATE "C" NOT NULL,
    body         BYTEA NOT NULL,
    PRIMARY KEY (conversation, seq)
);

-- --- configuration ------------------------------------------------------------------------------------------

CREATE TABLE agent_revision (
    id         TEXT COLLATE "C" PRIMARY KEY,
    format     INTEGER NOT NULL,
    body       BYTEA NOT NULL,
    parts      TEXT[] COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE revision_part (
    digest TEXT COLLATE "C" PRIMARY KEY,
    body   BYTEA NOT NULL
);

CREATE TABLE agent_head (
    uid         TEXT COLLATE "C" PRIMARY KEY,
    namespace   TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    generation  BIGINT NOT NULL,
    desired     TEXT COLLATE "C",
    active      TEXT COLLATE "C",
    lifetime_ms BIGINT NOT NULL,
    note        TEXT NOT NULL DEFAULT '',
    version     BIGINT NOT NULL,
    retired_at  BIGINT
);

CREATE UNIQUE INDEX agent_head_name ON agent_head (namespace, name) WHERE retired_at IS NULL;
CREATE INDEX agent_head_version ON agent_head (version);

-- One row each, locked by whoever raises it: versions are in commit order, without gaps.
CREATE TABLE head_clock (
    one     BOOLEAN PRIMARY KEY DEFAULT TRUE,
    version BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT head_clock_one CHECK (one)
);

INSERT INTO head_clock DEFAULT VALUES;

CREATE TABLE check_clock (
    one     BOOLEAN PRIMARY KEY DEFAULT TRUE,
    version BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT check_clock_one CHECK (one)
);

INSERT INTO check_clock DEFAULT VALUES;

-- The database belongs to the first installation that takes an epoch; each epoch fences the ones before.
CREATE TABLE operator_epoch (
    one          BOOLEAN PRIMARY KEY DEFAULT TRUE,
    installation TEXT COLLATE "C",
    epoch        BIGINT NOT NULL DEFAULT 0,
    taken_at     BIGINT,
    CONSTRAINT operator_epoch_one CHECK (one)
);

INSERT INTO operator_epoch DEFAULT VALUES;

-- Who lives: worth nothing after a crash of the database, so it costs no log.
CREATE UNLOGGED TABLE component (
    id       TEXT COLLATE "C" PRIMARY KEY,
    role     TEXT COLLATE "C" NOT NULL,
    pool     TEXT COLLATE "C" NOT NULL,
    formats  INTEGER[] NOT NULL,
    applied  BIGINT NOT NULL,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    beat_at  BIGINT NOT NULL
);

CREATE TABLE component_refusal (
    component  TEXT COLLATE "C" NOT NULL,
    revision   TEXT COLLATE "C" NOT NULL,
    message    TEXT NOT NULL,
    refused_at BIGINT NOT NULL,
    PRIMARY KEY (component, revision)
);

-- What only a worker may ask: is a Secret's key there, which tools does a server offer.
CREATE TABLE probe_check (
    kind        TEXT COLLATE "C" NOT NULL,
    namespace   TEXT COLLATE "C" NOT NULL,
    name        TEXT COLLATE "C" NOT NULL,
    uid         TEXT COLLATE "C" NOT NULL,
    digest      TEXT COLLATE "C" NOT NULL,
    payload     BYTEA NOT NULL,
    interval_ms BIGINT NOT NULL,
    due_at      BIGINT NOT NULL,
    owner       TEXT COLLATE "C",
    lease_until BIGINT,
    failures    INTEGER NOT NULL DEFAULT 0,
    done        BOOLEAN NOT NULL DEFAULT FALSE,
    ok          BOOLEAN NOT NULL DEFAULT FALSE,
    reason      TEXT COLLATE "C" NOT NULL DEFAULT '',
    message     TEXT NOT NULL DEFAULT '',
    result      BYTEA,
    version     BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, namespace, name)
);

CREATE INDEX probe_check_due ON probe_check (due_at);
CREATE INDEX probe_check_version ON probe_check (version);
