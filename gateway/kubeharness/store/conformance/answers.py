"""Short words for what a store answered, and how long things last in a case."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import (
    record_id,
)
from kubeharness.core.records import (
    StoredRecord,
)

T = TypeVar("T")
INSTALLATION = "conformance"
LEASE_MS = 30_000
LIFETIME_MS = 3_600_000
TOLERANCE_MS = 2_000
"""How far a real clock may have run between two statements of a case."""
TIME = datetime(2026, 11, 30, 21, 6, 33, 123456, tzinfo=UTC)


def near(milliseconds: int, expected: int) -> bool:
    """Equal, but for what a real clock ran meanwhile."""
    return abs(milliseconds - expected) <= TOLERANCE_MS


def good(result: T | KubeharnessError) -> T:
    """The answer of an item that must not be refused."""
    if isinstance(result, KubeharnessError):
        raise AssertionError(f"refused: {result!r}")
    return result


def refused(result: object, by: type[KubeharnessError]) -> None:
    """Assert that an item was refused, and by what."""
    assert isinstance(result, by), f"expected {by.__name__}, not {result!r}"


async def together(*actions: Coroutine[Any, Any, T]) -> list[T]:
    """Start them at once, and wait for all."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(action) for action in actions]
    return [task.result() for task in tasks]


def ids(records: Sequence[StoredRecord]) -> list[str]:
    """The ids of records, which are offsets."""
    return [record_id(record.milliseconds, record.seq, record.bits) for record in records]


def contiguous(records: Sequence[StoredRecord]) -> bool:
    """Whether seq counts from 1 without a gap and ids strictly increase (I6)."""
    names = ids(records)
    return [record.seq for record in records] == list(range(1, len(records) + 1)) and names == sorted(set(names))
