"""The one error tree.

    KubeharnessError                 code, a sentence safe for the caller
    ├── InvalidRequest               invalid            names the field and the remedy
    │   ├── NotSupported             not_supported      a field that this release does not honour
    │   └── OffsetUnknown            offset_unknown     no such place in this log
    ├── NotFound                     not_found          missing and foreign look alike
    ├── Conflict
    │   ├── DispatchConflict         dispatch_conflict
    │   ├── NoRunInFlight            no_run_in_flight
    │   └── AlreadySettled           already_settled
    ├── AgentClosed                  agent_closed
    ├── QueueFull                    queue_full
    ├── AgentNotReady                agent_not_ready
    ├── Unavailable                  unavailable        no database, or closing
    ├── LaneLost                     lane_lost          control, never shown to a caller (I5)
    ├── SettlementRefused            settlement_refused control: what committed first wins (I7)
    ├── SecretMissing                secret_missing     the lane waits and says which
    ├── ToolServerUnreachable        tool_server_unreachable  a required one; names it
    ├── NotInThisRelease             not_in_this_release
    └── ProviderError                                   what a model wire can do to us
        ├── ProviderFatal            provider_fatal
        ├── ProviderAuth             provider_auth
        ├── ProviderOverflow         provider_overflow
        └── ProviderTransient        provider_transient

A class takes facts and builds its sentence. HTTP statuses and condition reasons are tables at the rim.
"""

from typing import ClassVar


class KubeharnessError(Exception):
    """Anything we raise on purpose. The text is safe for a caller and says what to do."""

    code: ClassVar[str] = "internal"


class InvalidRequest(KubeharnessError):
    """A caller's input breaks a documented rule; `field` is the JSON path that does."""

    code = "invalid"

    def __init__(self, field: str, remedy: str) -> None:
        super().__init__(f"{field}: {remedy}")
        self.field = field


class NotSupported(InvalidRequest):
    """A field with a value that this release does not honour."""

    code = "not_supported"

    def __init__(self, field: str) -> None:
        super().__init__(field, "this release does not honour the field; leave it out")


class OffsetUnknown(KubeharnessError):
    """An offset that is not in this log, or no longer the same record after a failover."""

    code = "offset_unknown"

    def __init__(self, offset: str, head: str | None) -> None:
        super().__init__(f"no record {offset!r} in this log; read from the start, or from the head {head or 'none'}")
        self.head = head


class NotFound(KubeharnessError):
    """No such thing, or none that this caller may know of."""

    code = "not_found"

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} not found")


class Conflict(KubeharnessError):
    """The request is well formed, and something stored stands against it."""

    code = "conflict"


class DispatchConflict(Conflict):
    """A dispatch id came back with a different message (I2)."""

    code = "dispatch_conflict"

    def __init__(self, dispatch_id: str) -> None:
        super().__init__(
            f"dispatch id {dispatch_id!r} was admitted with other content; send the same content, or another id"
        )


class NoRunInFlight(Conflict):
    """Steering and cancelling need a run of the session that is in flight."""

    code = "no_run_in_flight"

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} has no run in flight; dispatch a message instead")


class AlreadySettled(Conflict):
    """A settled submission cannot be cancelled."""

    code = "already_settled"

    def __init__(self, submission: str) -> None:
        super().__init__(f"submission {submission} is settled already")


class AgentClosed(KubeharnessError):
    """The agent takes no new work."""

    code = "agent_closed"

    def __init__(self, agent: str) -> None:
        super().__init__(f"agent {agent!r} is closed to new dispatches")


class QueueFull(KubeharnessError):
    """The session's queue is at its limit."""

    code = "queue_full"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the session already has {limit} queued submissions; try again later")


class AgentNotReady(KubeharnessError):
    """The agent is known and has no revision yet."""

    code = "agent_not_ready"

    def __init__(self, agent: str, why: str) -> None:
        super().__init__(f"agent {agent!r} has no revision to run yet: {why}")


class Unavailable(KubeharnessError):
    """The database does not answer, or this process is closing; the request is safe to repeat."""

    code = "unavailable"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; repeat the request with the same key")
        self.why = why


class LaneLost(KubeharnessError):
    """Another attempt owns the lane: the holder writes nothing more (I5)."""

    code = "lane_lost"

    def __init__(self, attempt: str) -> None:
        super().__init__(f"attempt {attempt} no longer holds its lane")


class SettlementRefused(KubeharnessError):
    """Something committed first: a cancel, a message or a call that the settlement does not name (I7)."""

    code = "settlement_refused"

    def __init__(self, why: str) -> None:
        super().__init__(f"settlement refused: {why}")


class SecretMissing(KubeharnessError):
    """A Secret or key that a revision names is not there, or may not be read."""

    code = "secret_missing"

    def __init__(self, namespace: str, name: str, key: str, why: str = "does not exist") -> None:
        super().__init__(f"Secret {namespace}/{name} key {key!r} {why}")
        self.namespace = namespace
        self.name = name
        self.key = key


class ToolServerUnreachable(KubeharnessError):
    """A tool server does not answer, or not as one; `why` holds no secret."""

    code = "tool_server_unreachable"

    def __init__(self, server: str, why: str) -> None:
        super().__init__(f"tool server {server!r} is not reachable: {why}")
        self.server = server
        self.why = why


class NotInThisRelease(KubeharnessError):
    """A verb of the contract whose code comes in a later release."""

    code = "not_in_this_release"

    def __init__(self, verb: str) -> None:
        super().__init__(f"{verb} is part of the contract and not in this release")


class ProviderError(KubeharnessError):
    """A model call failed. The text quotes the provider, without secrets."""

    code = "provider_error"


class ProviderFatal(ProviderError):
    """The same request can never succeed: settle with `run_failed`."""

    code = "provider_fatal"


class ProviderAuth(ProviderError):
    """The credential was refused: the Secret is read again once, then fatal."""

    code = "provider_auth"


class ProviderOverflow(ProviderError):
    """The request does not fit the model's context."""

    code = "provider_overflow"


class ProviderTransient(ProviderError):
    """Worth another try after `retry_after` seconds, or after a back-off if it says nothing."""

    code = "provider_transient"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
