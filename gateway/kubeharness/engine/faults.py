"""What a model's error means for the attempt. Pure: randomness is an argument."""

from kubeharness.core.errors import KubeharnessError, ProviderAuth, ProviderOverflow, ProviderTransient
from kubeharness.core.lane import Claimed
from kubeharness.core.records import AbortReason, SettledCode
from kubeharness.core.revision import AgentRevision
from kubeharness.engine.endings import Ending, Fail, GiveBack

BACKOFF_CAP_SECONDS = 60.0
RETRY_AFTER_CAP_SECONDS = 3600.0


def ending_after(
    error: Exception | None,
    message: str,
    *,
    claimed: Claimed,
    revision: AgentRevision,
    failed_tries: int,
    chance: float,
) -> Ending:
    """Settle, or give the lane back for as long as the provider or the back-off says (C32).

    `chance` is 0 to 1, for full jitter. What is no typed error of a provider is raised: the attempt fails by it.
    """
    match error:
        case None | ProviderTransient():
            if claimed.lane.counters.model_retries >= revision.durability.model_retries:
                return _failed(SettledCode.RUN_FAILED, message)
            after = error.retry_after if error is not None else None
            seconds = chance * backoff_seconds(failed_tries) if after is None else min(after, RETRY_AFTER_CAP_SECONDS)
            return GiveBack(cause="backoff", delay_ms=int(max(0.0, seconds) * 1000), last_error=message)
        case ProviderOverflow():
            return _failed(SettledCode.CONTEXT_TOO_LARGE, message)
        case ProviderAuth():
            ref = revision.provider.api_key
            named = f" (Secret {claimed.key.namespace}/{ref.name} key {ref.key!r})" if ref else ""
            return _failed(SettledCode.RUN_FAILED, message + named)
        case KubeharnessError():
            return _failed(SettledCode.RUN_FAILED, message)
        case _:
            raise error


def backoff_seconds(failed_tries: int) -> float:
    """The most that the next try of a turn waits: 1 s, 2 s, 4 s … 60 s."""
    return float(min(BACKOFF_CAP_SECONDS, 2.0 ** min(failed_tries, 16)))


def _failed(code: SettledCode, message: str) -> Fail:
    return Fail(code=code, error=message, aborted=AbortReason.STREAM_BROKEN)
