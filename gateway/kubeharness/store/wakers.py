"""Hints that something was committed (I1). Losing one costs one poll, never more."""

from collections.abc import Callable, Sequence

from kubeharness.core.ids import ConversationId


class LocalWaker:
    """A waker within one process: hints reach their listeners before `touched` returns.

    Listeners are called on the caller's thread and must return at once.
    """

    def __init__(self) -> None:
        self._work: dict[object, Callable[[], None]] = {}
        self._log: dict[object, Callable[[Sequence[ConversationId] | None], None]] = {}

    def touched(self, conversations: Sequence[ConversationId], *, work: bool) -> None:
        """Say that these logs grew and, if `work`, that a lane may be ready or a head was published."""
        if conversations:
            self._dirty(conversations)
        if work:
            self._rouse()

    def everything(self) -> None:
        """Say that anything may have changed."""
        self._dirty(None)
        self._rouse()

    def _dirty(self, conversations: Sequence[ConversationId] | None) -> None:
        for dirty in tuple(self._log.values()):
            dirty(conversations)

    def _rouse(self) -> None:
        for rouse in tuple(self._work.values()):
            rouse()

    def on_work(self, rouse: Callable[[], None]) -> Callable[[], None]:
        """Call `rouse` at each hint of work; returns what ends it."""
        key = object()
        self._work[key] = rouse
        return lambda: self._end(self._work, key)

    def on_log(self, dirty: Callable[[Sequence[ConversationId] | None], None]) -> Callable[[], None]:
        """Call `dirty` with the logs that grew; None means all. Returns what ends it."""
        key = object()
        self._log[key] = dirty
        return lambda: self._end(self._log, key)

    @staticmethod
    def _end(listeners: dict[object, Callable[..., None]], key: object) -> None:
        listeners.pop(key, None)
