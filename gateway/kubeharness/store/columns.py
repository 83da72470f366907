"""A lane as flat columns, the same names in every SQL schema, and back."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from kubeharness.core.lane import Counters, Lane, LaneState, LastWrite
from kubeharness.core.messages import Usage

_COUNTS = tuple(f.name for f in dataclasses.fields(Counters) if f.name != "usage")
_USAGE = tuple(f.name for f in dataclasses.fields(Usage))
_WRITE = tuple(f.name for f in dataclasses.fields(LastWrite))
_PLAIN = tuple(f.name for f in dataclasses.fields(Lane) if f.name not in ("write", "counters"))

LANE_COLUMNS: tuple[str, ...] = (
    *_PLAIN,
    *(f"write_{name}" for name in _WRITE),
    *_COUNTS,
    *(f"usage_{name}" for name in _USAGE),
)
"""id, incarnation, pool … last_error, write_attempt … write_milliseconds, failures … children, usage_input …"""


def lane_values(lane: Lane) -> list[Any]:
    """The values of LANE_COLUMNS. `cancelled_positions` is a tuple of int; a backend stores it its own way."""
    plain = [getattr(lane, name) for name in _PLAIN]
    write = [getattr(lane.write, name) if lane.write else None for name in _WRITE]
    counts = [getattr(lane.counters, name) for name in _COUNTS]
    return [*plain, *write, *counts, *(getattr(lane.counters.usage, name) for name in _USAGE)]


def lane_of(values: Sequence[Any]) -> Lane:
    """A lane from the values of LANE_COLUMNS (`cancelled_positions` already an iterable of int)."""
    at = len(_PLAIN)
    plain: dict[str, Any] = dict(zip(_PLAIN, values[:at], strict=True))  # Any: a row's cells
    plain["state"] = LaneState(plain["state"])
    plain["cancelled_positions"] = tuple(plain["cancelled_positions"])
    write = dict(zip(_WRITE, values[at : at + len(_WRITE)], strict=True))
    at += len(_WRITE)
    counts = dict(zip(_COUNTS, values[at : at + len(_COUNTS)], strict=True))
    at += len(_COUNTS)
    usage = Usage(**dict(zip(_USAGE, values[at : at + len(_USAGE)], strict=True)))
    return Lane(
        **plain,
        write=LastWrite(**write) if write["attempt"] is not None else None,
        counters=Counters(**counts, usage=usage),
    )
