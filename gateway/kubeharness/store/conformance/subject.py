"""What a store under test must offer, and what a case is."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kubeharness.engine.ports import Store

if TYPE_CHECKING:
    from kubeharness.store.conformance.world import World


class Subject(Protocol):
    """A store over one database, and a hand on its clock. One database may serve many cases, one after another."""

    store: Store

    async def another(self) -> Store:
        """A second handle over the same data, as another process would have it; closed with the subject."""
        ...

    async def advance(self, milliseconds: int) -> None:
        """Let so much time pass by the store's clock. A SQL store may move its stored times into the past."""
        ...

    async def step_back(self, milliseconds: int) -> None:
        """Set the store's clock back: a stepped clock, a failover. A SQL store may move lanes' `last_ms` ahead."""
        ...


SubjectFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[Subject]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One promise of the contract. `run` raises if the store breaks it."""

    invariant: str
    """I1 … I15 of engine.md; S5 for its section 5 (steering), C for configuration."""
    name: str
    run: Callable[["World"], Awaitable[None]]

    def __str__(self) -> str:
        """As in a test's id."""
        return f"{self.invariant}-{self.name}"


def case(invariant: str) -> Callable[[Callable[["World"], Awaitable[None]]], Case]:
    """Make a case of a function; its name says what holds."""

    def made(run: Callable[["World"], Awaitable[None]]) -> Case:
        return Case(invariant=invariant, name=run.__name__, run=run)

    return made
