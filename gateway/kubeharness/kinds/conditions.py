"""The conditions of our kinds: every type and every reason is a documented constant. No prose about one object."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field

from kubeharness.kinds.common import Part

MESSAGE_LIMIT = 4096
"""What a condition's message may hold; a writer cuts at it."""


class _Documented(StrEnum):
    """A string constant that says what it means."""

    doc: str

    def __new__(cls, value: str, doc: str) -> Self:
        """The member is its value; the sentence rides along."""
        self = str.__new__(cls, value)
        self._value_ = value
        self.doc = doc
        return self


class ConditionType(_Documented):
    """What a condition speaks of."""

    ACCEPTED = "Accepted", "This generation compiles."
    RESOLVED_REFS = "ResolvedRefs", "Every reference and key exists and is usable."
    PROGRAMMED = (
        "Programmed",
        "The desired revision is committed and loaded by each live worker and a gateway; latches per revision.",
    )
    REACHABLE = "Reachable", "The tool server answered its last discovery."
    READY = "Ready", "This generation is in force."
    AVAILABLE = "Available", "A new dispatch would run now, maybe on an older revision."
    STALLED = "Stalled", "Present only if nothing but an edit of the spec helps."
    RECONCILING = "Reconciling", "Present only while Programmed is pending; never with Stalled."


class Reason(_Documented):
    """Why a condition has its status."""

    ACCEPTED = "Accepted", "The spec compiles."
    INVALID_SPEC = "InvalidSpec", "A field breaks a rule; the message names each field and its remedy."
    RESOLVED_REFS = "ResolvedRefs", "Everything that is referred to exists and is usable."
    PROVIDER_NOT_FOUND = "ProviderNotFound", "The ModelProvider does not exist in the namespace."
    PROVIDER_NOT_ACCEPTED = "ProviderNotAccepted", "The ModelProvider exists, and its own spec does not compile."
    TOOL_SERVER_NOT_FOUND = "ToolServerNotFound", "The ToolServer does not exist in the namespace."
    TOOL_SERVER_NOT_ACCEPTED = "ToolServerNotAccepted", "The ToolServer exists, and its own spec does not compile."
    TOOL_NOT_FOUND = "ToolNotFound", "The ToolServer offers no tool of that name."
    CONFIG_MAP_NOT_FOUND = "ConfigMapNotFound", "The ConfigMap does not exist in the namespace."
    CONFIG_MAP_KEY_NOT_FOUND = "ConfigMapKeyNotFound", "The ConfigMap has no such key."
    CONFIG_MAP_VALUE_INVALID = "ConfigMapValueInvalid", "The value is binary, too long, or not storable text."
    SECRET_NOT_FOUND = "SecretNotFound", "The Secret does not exist in the namespace."
    SECRET_KEY_NOT_FOUND = "SecretKeyNotFound", "The Secret has no such key."
    SECRET_VALUE_INVALID = "SecretValueInvalid", "The value is empty, binary, or cannot stand in a header."
    SECRET_FORBIDDEN = (
        "SecretForbidden",
        "The workers may not read Secrets in the namespace; the message prints the command that lets them.",
    )
    TOOL_SERVER_UNREACHABLE = (
        "ToolServerUnreachable",
        "The tool server did not answer in time, or refused the connection.",
    )
    TOOL_SERVER_UNAUTHORIZED = "ToolServerUnauthorized", "The tool server refused the credential."
    DISCOVERY_FAILED = "DiscoveryFailed", "The tool server answered, and not with a list of tools."
    REACHABLE = "Reachable", "The last discovery succeeded."
    CHECKS_PENDING = "ChecksPending", "No worker has answered the checks of this generation yet."
    DEADLINE_EXCEEDED = "DeadlineExceeded", "A worker asked, and had no answer within its deadline."
    CHECK_FAILED = "CheckFailed", "A worker could not ask; its log says why."
    PROGRAMMED = "Programmed", "The revision is loaded where it is needed."
    AWAITING_ACKNOWLEDGEMENT = "AwaitingAcknowledgement", "A live worker or every gateway has yet to load the revision."
    REVISION_REFUSED = "RevisionRefused", "A process could not load the revision; the message says why."
    NO_LIVE_WORKERS = (
        "NoLiveWorkers",
        "No worker is alive (scaled to zero): the next one loads the revision before it is ready.",
    )
    NO_LIVE_GATEWAYS = "NoLiveGateways", "No gateway is alive that could have loaded the revision."
    READY = "Ready", "This generation is in force."
    AVAILABLE = "Available", "A new dispatch runs on this generation."
    OLDER_REVISION = "OlderRevision", "A new dispatch runs on the last revision that compiled and resolved."
    NO_REVISION = "NoRevision", "No generation of this object has compiled and resolved yet."
    DATABASE_UNAVAILABLE = "DatabaseUnavailable", "The database does not answer, so the operator cannot tell."
    PENDING = "Pending", "The operator has not looked at the object yet."


class Condition(Part):
    """One fact about an object as the operator saw it."""

    type: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="What the condition speaks of: Accepted, ResolvedRefs, Programmed, Reachable, Ready, Available, "
        "Stalled or Reconciling."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        None, description="The generation of the spec that the condition speaks of."
    )
    last_transition_time: Annotated[str, Field(max_length=64)] = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Why, as one documented word.")
    message: Annotated[str, Field(max_length=MESSAGE_LIMIT)] = Field(
        description="Why, as a sentence that names the object and the key."
    )


PENDING = Condition(
    type=str(ConditionType.READY),
    status="Unknown",
    last_transition_time="1970-01-01T00:00:00Z",
    reason=str(Reason.PENDING),
    message="the operator has not looked at this object yet",
)
"""The status of an object that the operator has not seen, so that no wait passes before it looked."""
