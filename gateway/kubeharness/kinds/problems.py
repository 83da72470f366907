"""What compile finds wrong: each problem with the condition it turns False, a reason, a field, a sentence."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kubeharness.kinds.conditions import MESSAGE_LIMIT, Reason


class ProblemKind(StrEnum):
    """Which condition a problem turns False."""

    NOT_COMPILING = "Accepted"
    """Only an edit of this object's spec helps."""
    UNRESOLVED = "ResolvedRefs"
    """Something that the spec refers to is missing or unusable; it may yet come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that keeps a generation out of force."""

    kind: ProblemKind
    reason: Reason
    field: str
    message: str
    """Names the object and the key; says what to do. Holds nothing of a Secret."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Problems:
    """Everything that is wrong with one object, at least one problem."""

    items: tuple[Problem, ...]

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.items)

    def of(self, kind: ProblemKind) -> tuple[Problem, ...]:
        """The problems that turn one condition False."""
        return tuple(item for item in self.items if item.kind is kind)

    @property
    def compiles(self) -> bool:
        """The spec itself is sound: Accepted."""
        return not self.of(ProblemKind.NOT_COMPILING)

    def message(self, kind: ProblemKind | None = None) -> str:
        """All of them, or those of one kind, as a condition's message."""
        chosen = self.items if kind is None else self.of(kind)
        text = "; ".join(str(item) for item in chosen)
        return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
