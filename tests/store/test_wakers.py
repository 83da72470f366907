"""Hints within a process: told to whoever listens, and to nobody who has stopped."""

from collections.abc import Sequence

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import ConversationId
from kubeharness.store.wakers import LocalWaker, PollingWaker

ONE = ConversationId("conv_1")


def test_listeners_hear_what_they_asked_for_until_they_stop() -> None:
    waker = LocalWaker()
    work: list[str] = []
    logs: list[Sequence[ConversationId] | None] = []
    end_work = waker.on_work(lambda: work.append("work"))
    end_log = waker.on_log(logs.append)
    waker.touched([ONE], work=False)
    waker.touched([], work=True)
    waker.touched([ONE], work=True)
    end_work()
    end_log()
    end_log()
    waker.touched([ONE], work=True)

    assert work == ["work", "work"]
    assert logs == [[ONE], [ONE]]


def test_two_listeners_of_one_function_are_two() -> None:
    waker = LocalWaker()
    heard: list[str] = []

    def rouse() -> None:
        heard.append("work")

    end = waker.on_work(rouse)
    waker.on_work(rouse)
    end()
    waker.touched([], work=True)

    assert heard == ["work"]


async def test_a_poll_that_fails_is_made_up_for_by_the_next() -> None:
    answers: list[int | Unavailable] = [1, 1, Unavailable("gone"), 1, 2]

    async def version() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    waker = PollingWaker(version)
    heard: list[str] = []
    waker.on_work(lambda: heard.append("work"))
    seen: int | None = None
    told = []
    while answers:
        seen = await waker._poll(seen)
        told.append(len(heard))

    assert told == [1, 1, 1, 2, 3]
