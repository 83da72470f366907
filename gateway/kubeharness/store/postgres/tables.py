"""The schema as SQLAlchemy tables: for listings, administration and whoever wants to read it in one place.

The migrations make the database; a test proves that they give exactly this. Hot statements do not come this way.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    false,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData()

_NOUGHT = text("0")
_EMPTY = text("''")


def _id(name: str, **more: Any) -> Column[str]:  # Any: what Column takes
    """A name that compares as bytes."""
    return Column(name, Text(collation="C"), **{"nullable": False, **more})


def _text(name: str, **more: Any) -> Column[str]:
    return Column(name, Text, **{"nullable": False, **more})


def _big(name: str, **more: Any) -> Column[int]:
    return Column(name, BigInteger, **{"nullable": False, **more})


def _int(name: str, **more: Any) -> Column[int]:
    return Column(name, Integer, **{"nullable": False, **more})


def _bytes(name: str, **more: Any) -> Column[bytes]:
    return Column(name, LargeBinary, **{"nullable": False, **more})


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean, nullable=False, server_default=false())


def _one(name: str) -> tuple[Column[bool], CheckConstraint]:
    """The key of a table that has one row."""
    return Column("one", Boolean, primary_key=True, server_default=true()), CheckConstraint("one", name=f"{name}_one")


schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    _int("min_build"),
    _big("applied_at"),
)

instance = Table(
    "instance",
    metadata,
    _id("namespace"),
    _id("agent"),
    _id("incarnation"),
    _id("instance"),
    _big("created_at"),
    _big("purged_at", nullable=True),
    PrimaryKeyConstraint("namespace", "agent", "incarnation", "instance"),
)

conversation = Table(
    "conversation",
    metadata,
    _id("id", primary_key=True),
    _id("namespace"),
    _id("agent"),
    _id("incarnation"),
    _id("instance"),
    _id("session"),
    _text("owner", nullable=True),
    _id("fork_conversation", nullable=True),
    _big("fork_seq", nullable=True),
    _big("created_at"),
    Index("conversation_session", "namespace", "agent", "incarnation", "instance", "session", unique=True),
)

lane = Table(
    "lane",
    metadata,
    _id("id", primary_key=True),
    _id("incarnation"),
    _id("pool"),
    _id("fair_key", server_default=_EMPTY),
    _id("state", server_default=text("'idle'")),
    _big("head", server_default=_NOUGHT),
    _big("last_position", server_default=_NOUGHT),
    Column("cancelled_positions", ARRAY(BigInteger), nullable=False, server_default=text("'{}'")),
    _big("last_seq", server_default=_NOUGHT),
    _big("last_ms", server_default=_NOUGHT),
    _big("load_seq", server_default=_NOUGHT),
    _big("pruned_to", server_default=_NOUGHT),
    _id("attempt", nullable=True),
    _id("owner", nullable=True),
    _big("lease_until", nullable=True),
    _int("claim", server_default=_NOUGHT),
    _id("write_attempt", nullable=True),
    _big("write_number", nullable=True),
    _big("write_base", nullable=True),
    _int("write_count", nullable=True),
    _big("write_milliseconds", nullable=True),
    _id("revision", nullable=True),
    _big("head_at", server_default=_NOUGHT),
    _big("ready_at", server_default=_NOUGHT),
    _big("not_before", nullable=True),
    _big("deadline", nullable=True),
    _int("failures", server_default=_NOUGHT),
    _int("handovers", server_default=_NOUGHT),
    _int("model_retries", server_default=_NOUGHT),
    _int("tries", server_default=_NOUGHT),
    _int("steps", server_default=_NOUGHT),
    _int("corrective", server_default=_NOUGHT),
    _int("compactions", server_default=_NOUGHT),
    _int("children", server_default=_NOUGHT),
    _big("usage_input", nullable=True),
    _big("usage_output", nullable=True),
    _big("usage_cache_read", nullable=True),
    _big("usage_cache_write", nullable=True),
    _big("usage_reasoning", nullable=True),
    _int("open_calls", server_default=_NOUGHT),
    _id("open_turn", nullable=True),
    _int("unread", server_default=_NOUGHT),
    _text("cancel", nullable=True),
    _text("last_error", server_default=_EMPTY),
    CheckConstraint("state IN ('idle', 'ready', 'delayed', 'running', 'waiting', 'held')", name="lane_state"),
    Index("lane_ready", "pool", "ready_at", postgresql_where=text("state = 'ready' AND failures = 0")),
    Index("lane_blamed", "pool", "ready_at", postgresql_where=text("state = 'ready' AND failures > 0")),
    Index("lane_running", "id", postgresql_where=text("state = 'running'")),
    Index("lane_delayed", "not_before", postgresql_where=text("state = 'delayed'")),
    Index("lane_waiting", "deadline", postgresql_where=text("state = 'waiting'")),
    postgresql_with={
        "fillfactor": 50,
        "autovacuum_vacuum_scale_factor": 0.01,
        "autovacuum_vacuum_threshold": 1000,
        "autovacuum_analyze_scale_factor": 0.05,
        "autovacuum_vacuum_cost_delay": 0,
    },
)

submission = Table(
    "submission",
    metadata,
    _id("id", primary_key=True),
    _id("conversation"),
    _big("position"),
    _bytes("message"),
    _id("digest"),
    _text("principal", nullable=True),
    Column("labels", JSONB, nullable=False, server_default=text("'{}'")),
    _id("priority", server_default=text("'interactive'")),
    _text("traceparent", nullable=True),
    _id("parent_submission", nullable=True),
    _id("parent_call", nullable=True),
    _int("depth", server_default=_NOUGHT),
    _id("revision", nullable=True),
    _big("admitted_at"),
    Index("submission_position", "conversation", "position", unique=True),
    postgresql_with={"fillfactor": 90},
)

dispatch = Table(
    "dispatch",
    metadata,
    _id("submission", primary_key=True),
    _id("conversation"),
    _text("dispatch_id"),
    _id("digest"),
    _big("admitted_at"),
)

attempt = Table(
    "attempt",
    metadata,
    _id("id", primary_key=True),
    _id("conversation"),
    _big("position"),
    _id("submission"),
    _int("claim"),
    _id("owner"),
    _id("revision"),
    _bytes("initialised", nullable=True),
    _big("claimed_at"),
    Index("attempt_claim", "conversation", "position", "claim", unique=True),
)

open_call = Table(
    "open_call",
    metadata,
    _id("conversation"),
    _id("call_id"),
    _id("submission"),
    _text("tool_name"),
    _id("state"),
    _flag("idempotent"),
    _id("child", nullable=True),
    Column("number", BigInteger, Identity(always=True), nullable=False),
    PrimaryKeyConstraint("conversation", "call_id"),
    CheckConstraint("state IN ('recorded', 'asked', 'approved', 'started', 'child')", name="open_call_state"),
    postgresql_with={
        "fillfactor": 70,
        "autovacuum_vacuum_scale_factor": 0.01,
        "autovacuum_vacuum_threshold": 1000,
    },
)

inbox = Table(
    "inbox",
    metadata,
    _id("conversation"),
    _id("id"),
    Column("number", BigInteger, Identity(always=True), nullable=False),
    _id("via"),
    _text("body"),
    _id("digest"),
    _text("principal", nullable=True),
    _big("put_at"),
    _flag("consumed"),
    PrimaryKeyConstraint("conversation", "id"),
    Index("inbox_unread", "conversation", "number", postgresql_where=text("NOT consumed")),
)

settlement = Table(
    "settlement",
    metadata,
    _id("submission", primary_key=True),
    _id("conversation"),
    _big("position"),
    _int("attempts"),
    _big("seq"),
    Index("settlement_conversation", "conversation", "position"),
)

usage = Table(
    "usage",
    metadata,
    _id("attempt"),
    _big("number"),
    _id("conversation"),
    _big("position"),
    _id("turn_id"),
    _text("provider"),
    _text("model"),
    _big("input", nullable=True),
    _big("output", nullable=True),
    _big("cache_read", nullable=True),
    _big("cache_write", nullable=True),
    _big("reasoning", nullable=True),
    _big("used_at"),
    PrimaryKeyConstraint("attempt", "number"),
    Index("usage_conversation", "conversation", "position"),
)

outbox = Table(
    "outbox",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    _id("kind"),
    _id("conversation"),
    _id("submission", nullable=True),
    _bytes("body"),
    _big("put_at"),
    _big("not_before", server_default=_NOUGHT),
)

record = Table(
    "record",
    metadata,
    _id("conversation"),
    _big("seq"),
    _big("ms"),
    _int("bits"),
    _id("kind"),
    _bytes("body"),
    PrimaryKeyConstraint("conversation", "seq"),
)

agent_revision = Table(
    "agent_revision",
    metadata,
    _id("id", primary_key=True),
    _int("format"),
    _bytes("body"),
    Column("parts", ARRAY(Text(collation="C")), nullable=False),
    _big("created_at"),
)

revision_part = Table("revision_part", metadata, _id("digest", primary_key=True), _bytes("body"))

agent_head = Table(
    "agent_head",
    metadata,
    _id("uid", primary_key=True),
    _id("namespace"),
    _id("name"),
    _big("generation"),
    _id("desired", nullable=True),
    _id("active", nullable=True),
    _big("lifetime_ms"),
    _text("note", server_default=_EMPTY),
    _big("version"),
    _big("retired_at", nullable=True),
    Index("agent_head_name", "namespace", "name", unique=True, postgresql_where=text("retired_at IS NULL")),
    Index("agent_head_version", "version"),
)

head_clock = Table("head_clock", metadata, *_one("head_clock"), _big("version", server_default=_NOUGHT))

check_clock = Table("check_clock", metadata, *_one("check_clock"), _big("version", server_default=_NOUGHT))

operator_epoch = Table(
    "operator_epoch",
    metadata,
    *_one("operator_epoch"),
    _id("installation", nullable=True),
    _big("epoch", server_default=_NOUGHT),
    _big("taken_at", nullable=True),
)

component = Table(
    "component",
    metadata,
    _id("id", primary_key=True),
    _id("role"),
    _id("pool"),
    Column("formats", ARRAY(Integer), nullable=False),
    _big("applied"),
    _flag("draining"),
    _big("beat_at"),
    _text("release", server_default=_EMPTY),
    prefixes=["UNLOGGED"],
)

component_refusal = Table(
    "component_refusal",
    metadata,
    _id("component"),
    _id("revision"),
    _text("message"),
    _big("refused_at"),
    PrimaryKeyConstraint("component", "revision"),
)

probe_check = Table(
    "probe_check",
    metadata,
    _id("kind"),
    _id("namespace"),
    _id("name"),
    _id("uid"),
    _id("digest"),
    _bytes("payload"),
    _big("interval_ms"),
    _big("due_at"),
    _id("owner", nullable=True),
    _big("lease_until", nullable=True),
    _int("failures", server_default=_NOUGHT),
    _flag("done"),
    _flag("ok"),
    _id("reason", server_default=_EMPTY),
    _text("message", server_default=_EMPTY),
    _bytes("result", nullable=True),
    _big("version", server_default=_NOUGHT),
    PrimaryKeyConstraint("kind", "namespace", "name"),
    Index("probe_check_due", "due_at"),
    Index("probe_check_version", "version"),
)
