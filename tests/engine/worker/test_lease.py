"""The heartbeat: on a thread of its own, hastened by hints, never given up, gone when told."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import AttemptId
from kubeharness.engine import lease as leases
from kubeharness.engine.lease import Lease, Renew
from kubeharness.engine.ports import Renewal
from kubeharness.tools.tasks import OwnedTasks
from support.house import until

ONE = AttemptId("att_1")


class Renewer:
    """Renews everything, or fails as told; notes when, and on which thread."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.threads: set[int] = set()
        self.fails: list[Exception] = []
        self.hangs = 0
        self.opened = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Renew]:
        self.opened += 1
        yield self._renew

    async def _renew(self, attempts: Sequence[AttemptId]) -> Sequence[Renewal]:
        self.at.append(time.monotonic())
        self.threads.add(threading.get_ident())
        if self.hangs:
            self.hangs -= 1
            await asyncio.sleep(60)
        if self.fails:
            raise self.fails.pop()
        return [Renewal(attempt=attempt, unread=len(self.at)) for attempt in attempts]


@asynccontextmanager
async def beating(renewer: Renewer, lease_ms: int = 90) -> AsyncIterator[Lease]:
    lease = Lease(renewer.open, lease_ms=lease_ms)
    async with OwnedTasks() as tasks:
        tasks.start(lease.run())
        yield lease


async def test_it_beats_while_the_loop_is_held_up_and_tells_on_the_loops_thread() -> None:
    renewer = Renewer()
    told: list[tuple[int, int]] = []
    async with beating(renewer) as lease:
        lease.hold(ONE, lambda renewal: told.append((renewal.unread, threading.get_ident())))
        await until(lambda: bool(told))
        before = len(renewer.at)
        time.sleep(0.3)  # what a tool that holds the loop does
        during = len(renewer.at) - before
        await until(lambda: len(told) > 2)

    assert during >= 5
    assert renewer.threads != {threading.get_ident()}
    assert {thread for _, thread in told} == {threading.get_ident()}


async def test_a_hint_brings_the_next_beat_forward() -> None:
    renewer = Renewer()
    told: list[Renewal] = []
    async with beating(renewer, lease_ms=60_000) as lease:
        lease.hold(ONE, told.append)
        began = time.monotonic()
        while not told:
            lease.hasten()
            await asyncio.sleep(0.01)
        took = time.monotonic() - began
        lease.drop(ONE)
        count = len(renewer.at)
        lease.hasten()
        await asyncio.sleep(0.3)

    assert took < 1
    assert len(renewer.at) == count


async def test_a_renewal_that_fails_is_asked_again_on_a_fresh_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(leases, "SHORTEST_WAIT_SECONDS", 0.05)
    renewer = Renewer()
    renewer.fails = [Unavailable("away"), ValueError("of its own kind")]
    renewer.hangs = 1
    told: list[Renewal] = []
    async with beating(renewer) as lease:
        lease.hold(ONE, told.append)
        await until(lambda: bool(told))

    assert renewer.opened == 4


async def test_its_thread_is_gone_with_it() -> None:
    renewer = Renewer()
    async with beating(renewer) as lease:
        lease.hold(ONE, lambda renewal: None)
        await until(lambda: bool(renewer.at))
        names = [thread.name for thread in threading.enumerate()]

    await until(lambda: "lease" not in [thread.name for thread in threading.enumerate()], seconds=1)
    assert "lease" in names
