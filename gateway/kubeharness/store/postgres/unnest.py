"""Rows on their way into `unnest`: of a lane only what has changed, and each array as a literal.

A lane has forty columns of which a verb changes some; a driver that gets a list looks at each of its elements.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

from kubeharness.core.ids import ConversationId
from kubeharness.core.lane import Lane
from kubeharness.store.columns import LANE_COLUMNS

Values = tuple[Any, ...]  # Any: what a driver takes


def _words(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def _getter(paths: Sequence[str]) -> Callable[[object], Values]:
    return cast("Callable[[object], Values]", attrgetter(*paths))


def _path(column: str) -> str:
    """Where a lane has what its column holds."""
    if column.startswith("usage_"):
        return f"counters.usage.{column.removeprefix('usage_')}"
    return column if column in Lane.__dataclass_fields__ else f"counters.{column}"


_LOG = _words("last_seq last_ms lease_until open_calls open_turn unread cancel")
_WRITE = _words("attempt number base count milliseconds")
_PLACE = _words(
    "state attempt owner claim revision not_before deadline failures pool head last_position cancelled_positions "
    "head_at ready_at"
)
_POSITIONS = _PLACE.index("cancelled_positions")
_REST = tuple(name for name in LANE_COLUMNS if name not in {"id", *_LOG, *_PLACE} and not name.startswith("write_"))
_log = _getter(_LOG)
_write = _getter(_WRITE)
_place = _getter([_path(name) for name in _PLACE])
_rest = _getter([_path(name) for name in _REST])
_NO_WRITE: Values = (None,) * len(_WRITE)


@dataclass(frozen=True, slots=True)
class Group:
    """Columns that change together. There are few, so that the texts of statements are few."""

    columns: tuple[str, ...]
    of: Callable[[Lane], Values]


def _of_log(lane: Lane) -> Values:
    return _log(lane) + (_write(lane.write) if lane.write is not None else _NO_WRITE)


def _of_place(lane: Lane) -> Values:
    """`unnest` would flatten an array of arrays, so cancelled positions go as text."""
    values = _place(lane)
    positions = "{" + ",".join(map(str, values[_POSITIONS])) + "}"
    return (*values[:_POSITIONS], positions, *values[_POSITIONS + 1 :])


GROUPS = (
    Group((*_LOG, *(f"write_{name}" for name in _WRITE)), _of_log),
    Group(_PLACE, _of_place),
    Group(_REST, _rest),
)
"""What an append changes; what else a claim, an admission or a settlement changes; counters and the rest."""


def changed(lanes: Sequence[Lane], before: Mapping[ConversationId, Lane]) -> tuple[int, ...]:
    """The groups in which one of these lanes is not as it was read; all of them for a lane that was not read."""
    pairs = [(lane, before.get(lane.id)) for lane in lanes]
    return tuple(
        index
        for index, group in enumerate(GROUPS)
        if any(known is None or group.of(lane) != group.of(known) for lane, known in pairs)
    )


def columns_of(groups: Sequence[int]) -> tuple[str, ...]:
    """The columns of these groups, after the id."""
    return ("id", *(name for index in groups for name in GROUPS[index].columns))


def cells_of(lane: Lane, groups: Sequence[int]) -> Values:
    """The cells of these columns."""
    return (lane.id, *(value for index in groups for value in GROUPS[index].of(lane)))


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
