"""The work queue: nothing is missed, nothing is done twice at once, nothing that fails stops the rest."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from kubeharness_operator.queue import WorkQueue


class Refused(Exception):
    pass


@asynccontextmanager
async def working(
    queue: WorkQueue[str], work: Callable[[str], Awaitable[None]], workers: int = 4
) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(queue.run(work, workers=workers))
        yield
        running.cancel()


async def settled(queue: WorkQueue[str]) -> None:
    async with asyncio.timeout(5):
        while not queue.settled:
            await asyncio.sleep(0.005)


async def test_a_key_that_is_added_many_times_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    for key in ("a", "b", "a", "a", "b"):
        queue.add(key)
    async with working(queue, work):
        await settled(queue)

    assert seen == ["a", "b"]


async def test_a_key_added_while_it_is_worked_on_is_worked_on_once_more_and_never_twice_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    at_once = most = count = 0

    async def work(_: str) -> None:
        nonlocal at_once, most, count
        at_once += 1
        most = max(most, at_once)
        count += 1
        await asyncio.sleep(0.02)
        at_once -= 1

    queue.add("a")
    async with working(queue, work):
        await asyncio.sleep(0.005)
        for _ in range(5):
            queue.add("a")
        await settled(queue)

    assert (count, most) == (2, 1)


async def test_a_key_that_fails_comes_back_later_each_time_and_the_others_go_on() -> None:
    queue: WorkQueue[str] = WorkQueue(first_delay=0.02, longest_delay=0.05, expected=(Refused,))
    times: list[float] = []
    others: list[str] = []
    loop = asyncio.get_running_loop()

    async def work(key: str) -> None:
        if key != "bad":
            others.append(key)
            return
        times.append(loop.time())
        if len(times) < 5:
            raise Refused("not yet")

    queue.add("bad")
    queue.add("good")
    async with working(queue, work, workers=1):
        await settled(queue)

    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert others == ["good"]
    assert [gap >= delay * 0.9 for gap, delay in zip(gaps, (0.02, 0.04, 0.05, 0.05), strict=True)] == [True] * 4
    assert queue.failed == 4


async def test_an_unexpected_error_is_logged_with_its_trace_and_ends_no_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue: WorkQueue[str] = WorkQueue(first_delay=0.01)
    failed = asyncio.Event()

    async def work(_: str) -> None:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError

    queue.add("a")
    with caplog.at_level(logging.INFO):
        async with working(queue, work, workers=1):
            await settled(queue)

    assert queue.worked == 2
    assert "ZeroDivisionError" in caplog.text


async def test_an_event_brings_a_failed_key_back_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue(first_delay=60, expected=(Refused,))
    count = 0

    async def work(_: str) -> None:
        nonlocal count
        count += 1
        if count == 1:
            raise Refused("no")

    queue.add("a")
    async with working(queue, work):
        while count == 0:
            await asyncio.sleep(0.005)
        queue.add("a")
        await settled(queue)

    assert count == 2


async def test_of_two_times_to_come_back_the_earlier_one_holds() -> None:
    queue: WorkQueue[str] = WorkQueue()
    seen: list[float] = []
    loop = asyncio.get_running_loop()

    async def work(_: str) -> None:
        seen.append(loop.time())

    began = loop.time()
    queue.add_after("a", 0.05)
    queue.add_after("a", 30)
    queue.add_after("b", 30)
    queue.add_after("b", 0.05)
    async with working(queue, work):
        await asyncio.sleep(0.2)

    assert len(seen) == 2
    assert all(0.04 < at - began < 0.15 for at in seen)


async def test_a_task_that_somebody_else_cancels_is_a_failure_and_not_the_end_of_the_worker() -> None:
    """kopf ends every task born while it ran; one of ours may have been waiting for such a task."""
    queue: WorkQueue[str] = WorkQueue(first_delay=0.01)
    count = 0

    async def work(_: str) -> None:
        nonlocal count
        count += 1
        if count == 1:
            child = asyncio.ensure_future(asyncio.sleep(10))  # noqa: TID251  a library's task, which kopf cancels
            asyncio.get_running_loop().call_soon(child.cancel)
            await child

    queue.add("a")
    async with working(queue, work, workers=1):
        await settled(queue)

    assert count == 2
