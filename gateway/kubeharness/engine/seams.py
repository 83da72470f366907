"""Where others may watch or wrap a run: Observer and Interceptor, and nothing else (engine.md, section 13)."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from kubeharness.core.ids import AttemptId, CallId, ConversationId, SubmissionId, TurnId

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """The envelope's ids, so that an observer's output lines up with the log."""

    conversation: ConversationId
    submission: SubmissionId
    attempt: AttemptId | None = None
    turn: TurnId | None = None
    call: CallId | None = None


EventName = Literal[
    "submission_claimed",
    "turn_started",
    "delta",
    "turn_ended",
    "tool_call_started",
    "tool_call_ended",
    "recovery",
    "submission_settled",
    "submission_released",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something happened; ephemeral, a copy, never recorded."""

    name: EventName
    at: Correlation
    detail: str = ""


Observer = Callable[[EngineEvent], None]
"""Synchronous and read-only; must return at once. One that raises is logged and changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What an interceptor is wrapped around."""

    kind: Literal["attempt", "operation", "turn", "tool"]
    at: Correlation
    name: str = ""


Next = Callable[[], Awaitable[None]]
Interceptor = Callable[[Operation, Next], Awaitable[None]]
"""An onion around an operation; it may abort by raising, which counts like a failure of the attempt."""


class Seams:
    """The two seams, called by the engine at every boundary."""

    def __init__(self, observers: Sequence[Observer] = (), interceptors: Sequence[Interceptor] = ()) -> None:
        self._observers = tuple(observers)
        self._interceptors = tuple(interceptors)

    def tell(self, name: EventName, at: Correlation, detail: str = "") -> None:
        """Let every observer know."""
        for observer in self._observers:
            try:
                observer(EngineEvent(name=name, at=at, detail=detail))
            except Exception:  # an observer can neither slow nor fail a run
                log.exception("an observer raised on %s", name)

    async def around(self, operation: Operation, inner: Next) -> None:
        """Run `inner` inside the interceptors, the first registered outermost."""
        await self._layer(0, operation, inner)

    async def _layer(self, index: int, operation: Operation, inner: Next) -> None:
        if index == len(self._interceptors):
            await inner()
            return
        await self._interceptors[index](operation, lambda: self._layer(index + 1, operation, inner))
