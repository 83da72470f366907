"""How an attempt can end, as values; and the one exception that carries an ending out of a running task group."""

from dataclasses import dataclass

from kubeharness.core.records import AbortReason, OutcomeCause, SettledCode
from kubeharness.core.transitions import ReleaseCause


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Settle with a code."""

    code: SettledCode
    error: str
    cause: OutcomeCause = OutcomeCause.CANCELLED
    aborted: AbortReason = AbortReason.CANCELLED
    ran: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Release the lane."""

    cause: ReleaseCause
    delay_ms: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """Settled already, or not ours any more."""


Ending = Fail | GiveBack | Done


def cancelled(reason: str) -> Fail:
    """The end of a run that somebody cancelled, in the words of a cancel that found nothing running."""
    return Fail(code=SettledCode.CANCELLED, error=f"cancelled: {reason}")


class Stopped(Exception):
    """Control: what must end the run from outside of it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(type(ending).__name__)
        self.ending = ending
