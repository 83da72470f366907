"""Who calls, and the words for what one may do with an agent. Who has which right is found out at the rim."""

from dataclasses import dataclass
from typing import Literal

Right = Literal["dispatch", "read", "steer", "cancel", "approve"]
RIGHTS: frozenset[str] = frozenset({"dispatch", "read", "steer", "cancel", "approve"})
"""The rights of a token; in Kubernetes the verbs on `agents.kubeharness.dev`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller as the Kubernetes API server knows it: everything that decides about its rights, and no credential."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
