"""All that one transaction writes, as one statement: a data-modifying CTE for each kind of row that is there.

The text depends only on which kinds there are, and on whether it is one lane or several, so each shape is prepared
once a connection. Rows go over as arrays, a column each: as literals, which cost a quarter of the driver's arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy.dialects import postgresql

from kubeharness.store.backend import RaceLost, Writes
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.postgres import rows
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.rows import NOW_MS, Cells
from kubeharness.store.postgres.tables import metadata

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

Shape = tuple[tuple[int, bool], ...]
"""Which sections there are, and whether each is a single row given as scalars."""


async def write(connection: Connection, writes: Writes) -> None:
    """Store all of it in one round trip. Raises RaceLost where a row that was to be changed is not there."""
    shape: list[tuple[int, bool]] = []
    values: list[Any] = []
    expected: list[int] = []
    for index, section in enumerate(SECTIONS):
        given = getattr(writes, section.rows)
        if not given:
            continue
        if section.key is not None and len(given) > 1:
            given = sorted(given, key=section.key)
        single = len(given) == 1 and section.columns is LANE_COLUMNS
        shape.append((index, single))
        if single:
            values += section.cells(given[0])
        else:
            kinds = _kinds(section)
            columns = zip(*map(section.cells, given), strict=True)
            values += [pack(column) for pack, column in zip(kinds, columns, strict=True)]
        if section.counted:
            expected.append(len(given))
    found = await connection.fetchrow(statement(tuple(shape)), *values)
    if found is None or list(found)[1:] != expected:
        raise RaceLost(f"{expected} rows were to be changed, {found} were there")


@cache
def statement(shape: Shape) -> str:
    """The text of a shape: `WITH` its sections, then how many rows each counted one has found."""
    parts: list[str] = []
    counts: list[str] = []
    parameter = 1
    for index, single in shape:
        section = SECTIONS[index]
        given = _given(section, parameter, single=single)
        parameter += len(section.columns)
        body = section.text.format(
            table=section.table,
            columns=", ".join(section.columns),
            values=", ".join(_value(name) for name in section.columns),
            assigned=", ".join(f"{name} = {_value(name)}" for name in section.columns if name != "id"),
            given=given,
        )
        if section.counted:
            counts.append(f"(SELECT count(*) FROM {section.rows}_done)")
            body += " RETURNING 1"
        parts.append(f"{section.rows}_done AS ({body})")
    return f"WITH {', '.join(parts)} SELECT {', '.join(['1', *counts])}"


def _given(section: Section, parameter: int, *, single: bool) -> str:
    types = _types(section.table)
    names = ", ".join(section.columns)
    if single:
        cells = ", ".join(f"${parameter + n}::{types[name]}" for n, name in enumerate(section.columns))
        return f"(VALUES ({cells})) AS given ({names})"
    arrays = ", ".join(
        f"${parameter + n}::{'' if types[name] == 'bytea' else 'text::'}{types[name]}[]"
        for n, name in enumerate(section.columns)
    )
    return f"unnest({arrays}) AS given ({names})"


def _value(name: str) -> str:
    return f"given.{name}::bigint[]" if name == "cancelled_positions" else f"given.{name}"


@cache
def _types(table: str) -> dict[str, str]:
    """Column → the type that its cells go over as."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    types = {c.name: c.type.compile(dialect=dialect).split(" ")[0] for c in metadata.tables[table].columns}
    return {name: "text" if type_.endswith("[]") else type_.lower() for name, type_ in types.items()}


def pack_numbers(column: tuple[Any, ...]) -> str:
    """An array literal of numbers or flags."""
    if None in column:
        return "{" + ",".join(["NULL" if cell is None else str(cell) for cell in column]) + "}"
    return "{" + ",".join(map(str, column)) + "}"


def pack_texts(column: tuple[Any, ...]) -> str:
    """An array literal of texts, each in quotes."""
    if None in column:
        return "{" + ",".join(["NULL" if cell is None else _quoted(cell) for cell in column]) + "}"
    joined = '","'.join(column)
    if "\\" in joined or joined.count('"') != 2 * (len(column) - 1):
        return "{" + ",".join(map(_quoted, column)) + "}"
    return '{"' + joined + '"}'


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@cache
def _kinds(section: Section) -> tuple[Callable[[tuple[Any, ...]], Any], ...]:
    """How each column is packed."""
    packs: dict[str, Callable[[tuple[Any, ...]], Any]] = {"bytea": list, "text": pack_texts, "jsonb": pack_texts}
    types = _types(section.table)
    return tuple(packs.get(types[name], pack_numbers) for name in section.columns)
