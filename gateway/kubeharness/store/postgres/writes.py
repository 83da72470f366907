"""All that one transaction writes, as one statement: a data-modifying CTE for each kind of row that is there.

The text depends only on which kinds there are, which columns of lanes, and whether it is one lane or several, so each
shape is prepared once a connection. Rows go over as arrays, a column each: as literals, which cost a quarter of the
driver's arrays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sqlalchemy.dialects import postgresql

from kubeharness.core.ids import ConversationId
from kubeharness.core.lane import Lane
from kubeharness.store.backend import RaceLost, Writes
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.rows import NOW_MS, Cells
from kubeharness.store.postgres.tables import metadata
from kubeharness.store.postgres.unnest import cells_of, changed, columns_of, pack_numbers, pack_texts

# {given} are the rows of a section. The lanes come first: an update of a lane that we hold waits for nobody.

UPDATE_LANES = """
    UPDATE lane SET {assigned} FROM {given} WHERE lane.id = given.id
"""
INSERT = """
    INSERT INTO {table} ({columns}) SELECT {values} FROM {given}
"""
INSERT_MISSING_INSTANCES = f"""
    INSERT INTO instance (namespace, agent, incarnation, instance, created_at)
    SELECT given.namespace, given.agent, given.incarnation, given.instance, {NOW_MS} FROM {{given}}
        ON CONFLICT DO NOTHING
"""
PIN_REVISIONS = """
    UPDATE submission SET revision = given.revision FROM {given} WHERE submission.id = given.id
"""
CHANGE_CALLS = """
    UPDATE open_call SET state = given.state FROM {given}
     WHERE open_call.conversation = given.conversation AND open_call.call_id = given.call_id
"""
CLOSE_CALLS = """
    DELETE FROM open_call USING {given}
     WHERE open_call.conversation = given.conversation AND open_call.call_id = given.call_id
"""
CONSUME_INBOX = """
    UPDATE inbox SET consumed = TRUE FROM {given}
     WHERE inbox.conversation = given.conversation AND inbox.id = given.id AND NOT inbox.consumed
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One kind of row: where it goes, and how a value of `Writes` becomes cells."""

    rows: str
    """The list in `Writes`."""
    table: str
    columns: tuple[str, ...]
    cells: Callable[[Any], Cells]  # Any: each section knows its own kind of row
    text: str = INSERT
    key: Callable[[Any], Any] | None = None
    """Keys that may meet another transaction's, with no lane's lock between: taken in this order by all."""

    @property
    def counted(self) -> bool:
        """Whether each row must be found: an insert that does not fail has inserted."""
        return self.text not in (INSERT, INSERT_MISSING_INSTANCES)


SECTIONS: tuple[Section, ...] = (
    Section(rows="lanes", table="lane", columns=LANE_COLUMNS, cells=rows.lane_cells, text=UPDATE_LANES),
    Section(
        rows="instances",
        table="instance",
        columns=("namespace", "agent", "incarnation", "instance"),
        cells=lambda key: (key.namespace, key.agent, key.incarnation, key.instance),
        text=INSERT_MISSING_INSTANCES,
        key=lambda key: (key.namespace, key.agent, key.incarnation, key.instance),
    ),
    Section(
        rows="conversations",
        table="conversation",
        columns=rows.CONVERSATION,
        cells=rows.conversation_cells,
        key=lambda row: row.id,
    ),
    Section(rows="lanes_new", table="lane", columns=LANE_COLUMNS, cells=rows.lane_cells, key=lambda lane: lane.id),
    Section(
        rows="dispatches",
        table="dispatch",
        columns=rows.DISPATCH,
        cells=rows.dispatch_cells,
        key=lambda row: row.submission_id,
    ),
    Section(rows="submissions", table="submission", columns=rows.SUBMISSION, cells=rows.submission_cells),
    Section(
        rows="pins",
        table="submission",
        columns=("id", "revision"),
        cells=lambda pin: (pin.submission_id, pin.revision),
        text=PIN_REVISIONS,
    ),
    Section(rows="attempts", table="attempt", columns=rows.ATTEMPT, cells=rows.attempt_cells),
    Section(rows="records", table="record", columns=rows.LOG_ROW, cells=rows.log_row_cells),
    Section(rows="calls_opened", table="open_call", columns=rows.OPEN_CALL, cells=rows.call_cells),
    Section(
        rows="calls_changed",
        table="open_call",
        columns=("conversation", "call_id", "state"),
        cells=tuple,
        text=CHANGE_CALLS,
    ),
    Section(
        rows="calls_closed",
        table="open_call",
        columns=("conversation", "call_id"),
        cells=tuple,
        text=CLOSE_CALLS,
    ),
    Section(rows="inbox_put", table="inbox", columns=rows.INBOX, cells=rows.inbox_cells),
    Section(
        rows="inbox_consumed",
        table="inbox",
        columns=("conversation", "id"),
        cells=tuple,
        text=CONSUME_INBOX,
    ),
    Section(rows="settlements", table="settlement", columns=rows.SETTLEMENT, cells=rows.settlement_cells),
    Section(rows="usage", table="usage", columns=rows.USAGE, cells=rows.usage_cells),
    Section(
        rows="outbox",
        table="outbox",
        columns=("kind", "conversation", "body", "put_at"),
        cells=lambda row: (row.kind, row.conversation, row.body, row.at),
    ),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A section as it stands in a statement."""

    section: int
    columns: tuple[str, ...]
    single: bool = False
    """One row, given as scalars."""


@dataclass(frozen=True, slots=True)
class Shape:
    """All that the text of a statement depends on."""

    parts: tuple[Part, ...]
    guarded: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """What was decided on: the version of each lane, and the clock."""

    versions: Mapping[ConversationId, int]
    now: int


@dataclass(frozen=True, slots=True)
class Written:
    """What holds once the write is committed."""

    version: int
    """The xmin of each lane that it changed."""
    now: int


STALE_MS = 1000
"""A decision on a clock that is so much behind is not stored: its process may have been frozen since."""

# The version of a row is its xmin, the transaction that wrote it. Where another's write was waited for, the row's
# latest version is compared, and a lane that has moved on is missing from the guard; then no section has any rows.
GUARD = f"""guard AS MATERIALIZED (
    SELECT lane.id FROM unnest($1::text::text[], $2::text::xid[]) AS seen (id, version)
      JOIN lane ON lane.id = seen.id AND lane.xmin = seen.version
     ORDER BY lane.id FOR NO KEY UPDATE OF lane
), whole AS MATERIALIZED (
    SELECT count(*) = $3::integer AND abs({NOW_MS} - $4::bigint) < {STALE_MS} AS yes FROM guard
)"""
_GUARD_PARAMETERS = 4
# A guarded statement is its own transaction: what does not add up must fail it, not be noticed after the commit.
FAIL_UNLESS = "1 / CASE WHEN NOT whole.yes OR ({counts}) THEN 1 ELSE 0 END"


async def write(
    connection: Connection, writes: Writes, before: Mapping[ConversationId, Lane], *, guard: Guard | None = None
) -> Written | None:
    """Store all of it in one round trip; `before` are the lanes as they were read.

    Raises RaceLost where a row that was to be changed is not there. With a `guard` the lanes are not locked yet: if
    one has another version by now, nothing is stored and None is returned.
    """
    parts: list[Part] = []
    values: list[Any] = []
    expected: list[int] = []
    guarded = guard is not None and bool(writes.lanes)
    if guard is not None and writes.lanes:
        ids = tuple(lane.id for lane in writes.lanes)
        values += [pack_texts(ids), pack_numbers(tuple(map(guard.versions.__getitem__, ids))), len(ids), guard.now]
    for index, section in enumerate(SECTIONS):
        given = getattr(writes, section.rows)
        if not given:
            continue
        if section.key is not None and len(given) > 1:
            given = sorted(given, key=section.key)
        columns, cells = section.columns, section.cells
        if section.text is UPDATE_LANES:
            groups = changed(given, before)
            columns, cells = columns_of(groups), partial(cells_of, groups=groups)
        single = len(given) == 1 and section.table == "lane"
        parts.append(Part(index, columns, single))
        if single:
            values += cells(given[0])
        else:
            lists = zip(*map(cells, given), strict=True)
            values += [pack(column) for pack, column in zip(_packers(section.table, columns), lists, strict=True)]
        if section.counted:
            expected.append(len(given))
    found = await connection.fetchrow(statement(Shape(tuple(parts), guarded)), *values)
    assert found is not None, "a write answers with one row"
    version, now, whole, _, *counts = found
    if not whole:
        return None
    if counts != expected:
        raise RaceLost(f"{expected} rows were to be changed, {counts} were there")
    return Written(version, now)


@cache
def statement(shape: Shape) -> str:
    """`WITH` its sections: what is known of the write, then how many rows each counted section has found."""
    texts: list[str] = [GUARD] if shape.guarded else []
    counts: list[str] = []
    agree: list[str] = []
    parameter = 1 + (_GUARD_PARAMETERS if shape.guarded else 0)
    for part in shape.parts:
        section = SECTIONS[part.section]
        body = section.text.format(
            table=section.table,
            columns=", ".join(part.columns),
            values=", ".join(_value(name) for name in part.columns),
            assigned=", ".join(f"{name} = {_value(name)}" for name in part.columns if name != "id"),
            given=_given(section, part, parameter, guarded=shape.guarded),
        )
        if section.counted:
            counts.append(f"(SELECT count(*) FROM {section.rows}_done)")
            agree.append(f"{counts[-1]} = " + ("1" if part.single else f"cardinality(${parameter}::text::text[])"))
            body += " RETURNING 1"
        parameter += len(part.columns)
        texts.append(f"{section.rows}_done AS ({body})")
    if shape.guarded:
        guard, source = ["whole.yes", FAIL_UNLESS.format(counts=" AND ".join(agree))], " FROM whole"
    else:
        guard, source = ["TRUE", "1"], ""
    known = ["pg_current_xact_id()::xid", NOW_MS, *guard]
    return f"WITH {', '.join(texts)} SELECT {', '.join([*known, *counts])}{source}"


def _given(section: Section, part: Part, parameter: int, *, guarded: bool) -> str:
    """The rows of a section, as columns of `given`; none of them if the guard does not hold."""
    types = _types(section.table)
    names = ", ".join(part.columns)
    if part.single:
        cells = ", ".join(f"${parameter + n}::{types[name]}" for n, name in enumerate(part.columns))
        source = f"(VALUES ({cells})) AS given ({names})"
    else:
        arrays = ", ".join(f"${parameter + n}::{_parameter(types[name])}" for n, name in enumerate(part.columns))
        source = f"unnest({arrays}) AS given ({names})"
    return f"(SELECT given.* FROM whole, {source} WHERE whole.yes) AS given" if guarded else source


def _parameter(type_: str) -> str:
    return "bytea[]" if type_ == "bytea" else f"text::{type_}[]"


def _value(name: str) -> str:
    return f"given.{name}::bigint[]" if name == "cancelled_positions" else f"given.{name}"


@cache
def _types(table: str) -> dict[str, str]:
    """Column → the type that its cells go over as."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    types = {c.name: c.type.compile(dialect=dialect).split(" ")[0] for c in metadata.tables[table].columns}
    return {name: "text" if type_.endswith("[]") else type_.lower() for name, type_ in types.items()}


@cache
def _packers(table: str, columns: tuple[str, ...]) -> tuple[Callable[[tuple[Any, ...]], Any], ...]:
    """How each column is packed."""
    packs: dict[str, Callable[[tuple[Any, ...]], Any]] = {"bytea": list, "text": pack_texts, "jsonb": pack_texts}
    types = _types(table)
    return tuple(packs.get(types[name], pack_numbers) for name in columns)
