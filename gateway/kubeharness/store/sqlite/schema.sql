-- Version 2. What stands here and has no code yet is meant (engine.md, "there from the first schema").
-- Times are milliseconds; ids compare as bytes (BINARY, SQLite's own order). The fields of `lane` are core/lane.py's.

CREATE TABLE schema_version (
    version   INTEGER PRIMARY KEY,
    min_build INTEGER NOT NULL          -- the oldest build that may open this file
) STRICT;
INSERT INTO schema_version (version, min_build) VALUES (2, 1);

CREATE TABLE instance (
    namespace   TEXT NOT NULL,
    agent       TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    instance    TEXT NOT NULL,
    PRIMARY KEY (namespace, agent, incarnation, instance)
) STRICT, WITHOUT ROWID;

CREATE TABLE conversation (
    id                TEXT PRIMARY KEY,
    namespace         TEXT NOT NULL,
    agent             TEXT NOT NULL,
    incarnation       TEXT NOT NULL,
    instance          TEXT NOT NULL,
    session           TEXT NOT NULL,
    owner             TEXT,             -- the principal that created it
    fork_conversation TEXT,             -- a fork shares its prefix by reference …
    fork_seq          INTEGER,          -- … and counts on from there
    created_at        INTEGER NOT NULL,
    UNIQUE (namespace, agent, incarnation, instance, session)
) STRICT, WITHOUT ROWID;

CREATE TABLE lane (
    id                  TEXT PRIMARY KEY,
    incarnation         TEXT NOT NULL,
    pool                TEXT NOT NULL,
    fair_key            TEXT NOT NULL,
    state               TEXT NOT NULL
                        CHECK (state IN ('idle', 'ready', 'delayed', 'running', 'waiting', 'held')),
    head                INTEGER NOT NULL,
    last_position       INTEGER NOT NULL,
    cancelled_positions TEXT NOT NULL,  -- a JSON array
    last_seq            INTEGER NOT NULL,
    last_ms             INTEGER NOT NULL,
    load_seq            INTEGER NOT NULL,
    pruned_to           INTEGER NOT NULL,
    attempt             TEXT,
    owner               TEXT,
    lease_until         INTEGER,
    claim               INTEGER NOT NULL,
    revision            TEXT,
    head_at             INTEGER NOT NULL,
    ready_at            INTEGER NOT NULL,
    not_before          INTEGER,
    deadline            INTEGER,
    open_calls          INTEGER NOT NULL CHECK (open_calls >= 0),
    open_turn           TEXT,
    unread              INTEGER NOT NULL CHECK (unread >= 0),
    cancel              TEXT,
    last_error          TEXT NOT NULL,
    write_attempt       TEXT,
    write_number        INTEGER,
    write_base          INTEGER,
    write_count         INTEGER,
    write_milliseconds  INTEGER,
    failures            INTEGER NOT NULL CHECK (failures >= 0),
    handovers           INTEGER NOT NULL,
    model_retries       INTEGER NOT NULL,
    tries               INTEGER NOT NULL,
    steps               INTEGER NOT NULL,
    corrective          INTEGER NOT NULL,
    compactions         INTEGER NOT NULL,
    children            INTEGER NOT NULL,
    usage_input         INTEGER,
    usage_output        INTEGER,
    usage_cache_read    INTEGER,
    usage_cache_write   INTEGER,
    usage_reasoning     INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX lane_ready ON lane (pool, ready_at, id) WHERE state = 'ready';
CREATE INDEX lane_attempt ON lane (attempt) WHERE state = 'running';
CREATE INDEX lane_delayed ON lane (not_before) WHERE state = 'delayed';
CREATE INDEX lane_waiting ON lane (deadline) WHERE state = 'waiting';

CREATE TABLE dispatch (                  -- the key of I2 is the submission's id, derived from it
    submission   TEXT PRIMARY KEY,
    conversation TEXT NOT NULL,
    dispatch_id  TEXT NOT NULL,
    digest       TEXT NOT NULL,
    admitted_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE submission (
    id                TEXT PRIMARY KEY,
    conversation      TEXT NOT NULL,
    position          INTEGER NOT NULL,
    message           BLOB NOT NULL,
    digest            TEXT NOT NULL,
    principal         TEXT,
    labels            TEXT NOT NULL,     -- a JSON object
    priority          TEXT NOT NULL,
    traceparent       TEXT,
    parent_submission TEXT,
    parent_call       TEXT,
    depth             INTEGER NOT NULL,
    revision          TEXT,              -- pinned by the first claim (I4)
    admitted_at       INTEGER NOT NULL,
    UNIQUE (conversation, position)
) STRICT;

CREATE TABLE attempt (
    id           TEXT PRIMARY KEY,
    conversation TEXT NOT NULL,
    position     INTEGER NOT NULL,
    submission   TEXT NOT NULL,
    claim        INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    revision     TEXT NOT NULL,
    initialised  BLOB,                   -- what the initialiser returned
    claimed_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE record (                    -- body: the wire JSON without its id, never serialised again
    conversation TEXT NOT NULL,
    seq          INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL,
    bits         INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    body         BLOB NOT NULL,
    PRIMARY KEY (conversation, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE open_call (                 -- the ledger (I8); in the order of opening
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    call_id      TEXT NOT NULL,
    submission   TEXT NOT NULL,
    tool_name    TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('recorded', 'asked', 'approved', 'started', 'child')),
    idempotent   INTEGER NOT NULL,
    UNIQUE (conversation, call_id)
) STRICT;

CREATE TABLE inbox (                     -- in the order of putting; consumed ones stay for repeats
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    id           TEXT NOT NULL,
    via          TEXT NOT NULL,
    body         TEXT NOT NULL,
    digest       TEXT NOT NULL,
    principal    TEXT,
    consumed     INTEGER NOT NULL,
    put_at       INTEGER NOT NULL,
    UNIQUE (conversation, id)
) STRICT;
CREATE INDEX inbox_unread ON inbox (conversation, number) WHERE consumed = 0;

CREATE TABLE settlement (                -- one row a submission: the primary key guards I7
    submission   TEXT PRIMARY KEY,
    conversation TEXT NOT NULL,
    position     INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    milliseconds INTEGER NOT NULL,
    bits         INTEGER NOT NULL,
    body         BLOB NOT NULL
) STRICT;

CREATE TABLE usage (                     -- a row a model call; each numbered write carries at most one
    attempt      TEXT NOT NULL,
    number       INTEGER NOT NULL,
    conversation TEXT NOT NULL,
    position     INTEGER NOT NULL,
    turn_id      TEXT NOT NULL,
    model        TEXT NOT NULL,
    provider     TEXT NOT NULL,
    input        INTEGER,
    output       INTEGER,
    cache_read   INTEGER,
    cache_write  INTEGER,
    reasoning    INTEGER,
    used_at      INTEGER NOT NULL,
    PRIMARY KEY (attempt, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    conversation TEXT NOT NULL,
    kind         TEXT NOT NULL,
    body         BLOB NOT NULL,
    put_at       INTEGER NOT NULL
) STRICT;

-- Configuration.

CREATE TABLE operator_epoch (            -- one row: who may publish, and the two clocks
    one          INTEGER PRIMARY KEY CHECK (one = 1),
    installation TEXT,
    epoch        INTEGER NOT NULL,
    head_clock   INTEGER NOT NULL,
    check_clock  INTEGER NOT NULL
) STRICT;
INSERT INTO operator_epoch (one, epoch, head_clock, check_clock) VALUES (1, 0, 0, 0);

CREATE TABLE agent_revision (
    id     TEXT PRIMARY KEY,
    format INTEGER NOT NULL,
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE revision_part (             -- prompt, provider, tool servers, each stored once
    digest TEXT PRIMARY KEY,
    body   BLOB NOT NULL
) STRICT;

CREATE TABLE agent_head (
    uid         TEXT PRIMARY KEY,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    desired     TEXT,
    active      TEXT,
    note        TEXT NOT NULL,
    version     INTEGER NOT NULL,
    retired     INTEGER NOT NULL,
    lifetime_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX agent_head_name ON agent_head (namespace, name) WHERE retired = 0;
CREATE INDEX agent_head_version ON agent_head (version);

CREATE TABLE component (
    id       TEXT PRIMARY KEY,
    role     TEXT NOT NULL,
    pool     TEXT NOT NULL,
    formats  TEXT NOT NULL,              -- a JSON array
    applied  INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    beat_at  INTEGER NOT NULL,
    release  TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TABLE component_refusal (
    component TEXT NOT NULL,
    revision  TEXT NOT NULL,
    message   TEXT NOT NULL,
    PRIMARY KEY (component, revision)
) STRICT, WITHOUT ROWID;

CREATE TABLE "check" (
    kind        TEXT NOT NULL,
    namespace   TEXT NOT NULL,
    name        TEXT NOT NULL,
    uid         TEXT NOT NULL,
    digest      TEXT NOT NULL,
    payload     TEXT NOT NULL,           -- JSON
    interval_ms INTEGER NOT NULL,
    due         INTEGER NOT NULL,
    owner       TEXT,
    lease_until INTEGER,
    failures    INTEGER NOT NULL,
    done        INTEGER NOT NULL,
    ok          INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    message     TEXT NOT NULL,
    result      TEXT,                    -- JSON: the last good one
    version     INTEGER NOT NULL,
    PRIMARY KEY (kind, namespace, name)
) STRICT, WITHOUT ROWID;
