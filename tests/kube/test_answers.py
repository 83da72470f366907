"""Answers that are kept for a moment: one question, however many ask; nothing kept too long, nor too much."""

import asyncio

import pytest

from kubeharness.kube.answers import Answers


class Oracle:
    """Counts what it is asked; answers when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.fails: Exception | None = None

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        return number


def keeping(now: list[float], *, seconds: float = 10.0, most: int = 100) -> Answers[str, int]:
    return Answers(keep=lambda _: seconds, most=most, monotonic=lambda: now[0])


async def test_who_asks_the_same_at_once_waits_for_one_answer() -> None:
    answers, oracle = keeping([0.0]), Oracle()
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(answers.get("a", oracle)) for _ in range(50)]
        other = tasks.create_task(answers.get("b", oracle))
        await asyncio.sleep(0)
        oracle.open.set()

    assert {task.result() for task in asking} == {1}
    assert other.result() == 2
    assert oracle.asked == 2


async def test_an_answer_is_kept_for_its_time_and_no_longer() -> None:
    now = [0.0]
    answers, oracle = keeping(now), Oracle()
    oracle.open.set()

    assert await answers.get("a", oracle) == 1
    now[0] = 9.9
    assert await answers.get("a", oracle) == 1
    now[0] = 10.0
    assert await answers.get("a", oracle) == 2


async def test_a_failure_is_told_to_all_who_wait_and_is_not_kept() -> None:
    answers, oracle = keeping([0.0]), Oracle()
    oracle.fails = OSError("down")

    async def refused() -> bool:
        try:
            await answers.get("a", oracle)
        except OSError:
            return True
        return False

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(refused()) for _ in range(10)]
        await asyncio.sleep(0)
        oracle.open.set()
    assert all(task.result() for task in asking)
    assert oracle.asked == 1

    oracle.fails = None
    assert await answers.get("a", oracle) == 2


async def test_when_the_one_who_asked_leaves_another_one_asks() -> None:
    answers, oracle = keeping([0.0]), Oracle()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(answers.get("a", oracle))
        await asyncio.sleep(0)
        second = tasks.create_task(answers.get("a", oracle))
        third = tasks.create_task(answers.get("a", oracle))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        oracle.open.set()

    assert (second.result(), third.result(), oracle.asked) == (2, 2, 2)


async def test_no_more_answers_are_kept_than_were_allowed_the_least_used_goes() -> None:
    answers, oracle = keeping([0.0], most=2), Oracle()
    oracle.open.set()
    for key in ("a", "b", "a", "c"):
        await answers.get(key, oracle)

    assert len(answers) == 2
    assert await answers.get("a", oracle) == 1
    assert await answers.get("b", oracle) == 4


@pytest.mark.parametrize("count", [1000])
async def test_many_keys_leave_nothing_behind_once_they_are_answered(count: int) -> None:
    answers, oracle = keeping([0.0], most=10), Oracle()
    oracle.open.set()
    for number in range(count):
        await answers.get(str(number), oracle)

    assert len(answers) == 10
    assert not answers._open
