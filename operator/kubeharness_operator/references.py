"""Which objects name which: a pure index, so that a change of one finds all that depend on it."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Hashable)


class References(Generic[K, T]):
    """From a thing that is named to those who name it, and back. What is named need not exist."""

    def __init__(self) -> None:
        self._named: dict[K, frozenset[T]] = {}
        self._naming: dict[T, set[K]] = {}

    def put(self, by: K, named: Iterable[T]) -> frozenset[T]:
        """Say all that `by` names now; returns what nobody names any more."""
        before, now = self._named.get(by, frozenset()), frozenset(named)
        orphans = set()
        for thing in before - now:
            naming = self._naming[thing]
            naming.discard(by)
            if not naming:
                del self._naming[thing]
                orphans.add(thing)
        for thing in now - before:
            self._naming.setdefault(thing, set()).add(by)
        if now:
            self._named[by] = now
        else:
            self._named.pop(by, None)
        return frozenset(orphans)

    def drop(self, by: K) -> frozenset[T]:
        """Forget `by`; returns what nobody names any more."""
        return self.put(by, ())

    def naming(self, thing: T) -> frozenset[K]:
        """All who name it."""
        return frozenset(self._naming.get(thing, ()))

    def named_by(self, by: K) -> frozenset[T]:
        """All that `by` names."""
        return self._named.get(by, frozenset())

    def __contains__(self, thing: T) -> bool:
        """Whether anybody names it."""
        return thing in self._naming

    def things(self) -> frozenset[T]:
        """All that is named by anybody."""
        return frozenset(self._naming)
