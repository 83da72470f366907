"""Answers that are kept for a moment, so many at most; and one question, however many ask it at once."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Question(Generic[V]):
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answers: list[V] = field(default_factory=list)
    error: Exception | None = None


class Answers(Generic[K, V]):
    """What was answered, by key. `keep` says for how many seconds an answer may be given again.

    The least lately used goes when there are more than `most`. A failure is told to all who wait for that answer and
    is never kept.
    """

    def __init__(
        self, *, keep: Callable[[V], float], most: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep = keep
        self._most = most
        self._monotonic = monotonic
        self._kept: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._open: dict[K, _Question[V]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer that is kept, or the one that `ask` gives. Raises what `ask` raises."""
        while True:
            kept = self._kept.get(key)
            if kept is not None and self._monotonic() < kept[0]:
                self._kept.move_to_end(key)
                return kept[1]
            question = self._open.get(key)
            if question is None:
                return await self._asked(key, ask)
            await question.over.wait()
            if question.error is not None:
                raise question.error
            if question.answers:
                return question.answers[0]
            # Whoever asked has left before there was an answer: somebody else has to ask.

    async def _asked(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        question = self._open[key] = _Question[V]()
        try:
            answer = await ask()
            question.answers.append(answer)
            self._kept[key] = (self._monotonic() + self._keep(answer), answer)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return answer
        except Exception as error:
            question.error = error
            raise
        finally:
            del self._open[key]
            question.over.set()
