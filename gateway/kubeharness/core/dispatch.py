"""A dispatch: what a caller asks of a session, checked before it enters the store."""

import hashlib
from dataclasses import dataclass, field
from typing import Literal

from kubeharness.core.errors import InvalidRequest
from kubeharness.core.ids import (
    DEFAULT_SESSION,
    DISPATCH_ID,
    DNS_LABEL,
    SessionKey,
    legal_instance_or_session,
)
from kubeharness.core.json import JsonObject
from kubeharness.core.text import clean_text

OnBusy = Literal["enqueue", "steer", "followup", "reject"]
Priority = Literal["interactive", "batch"]

ALPHABET = "use 1 to 256 of letters, digits and . _ ~ : @ -, and not '.' or '..'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a caller says that a session lies; the incarnation is the gateway's to add."""

    namespace: str
    agent: str
    instance: str
    session: str = DEFAULT_SESSION

    def validate(self) -> None:
        """Raise InvalidRequest naming the part that is outside of its alphabet."""
        for name, value in (("namespace", self.namespace), ("agent", self.agent)):
            if not DNS_LABEL.match(value):
                raise InvalidRequest(name, "use 1 to 63 of lower-case letters, digits and -, as Kubernetes does")
        for name, value in (("id", self.instance), ("session", self.session)):
            if not legal_instance_or_session(value):
                raise InvalidRequest(name, ALPHABET)

    def of(self, incarnation: str) -> SessionKey:
        """The session of this incarnation of the agent."""
        return SessionKey(
            namespace=self.namespace,
            agent=self.agent,
            incarnation=incarnation,
            instance=self.instance,
            session=self.session,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalMeta:
    """Whose activity a signal is, and what kind."""

    type: str
    sender: dict[str, str] = field(default_factory=dict)
    tag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchMessage:
    """The inbound union: `signal` is set exactly for kind signal."""

    kind: Literal["user", "signal"]
    body: str
    signal: SignalMeta | None = None

    def validate(self) -> None:
        """Raise InvalidRequest naming the field that breaks the union's rules."""
        if self.kind == "signal" and self.signal is None:
            raise InvalidRequest("signal", "a message of kind signal needs it, with at least a type")
        if self.kind == "user" and self.signal is not None:
            raise InvalidRequest("signal", "only a message of kind signal may carry it")
        if self.signal is not None:
            if not 1 <= len(self.signal.type) <= 128:
                raise InvalidRequest("signal.type", "give 1 to 128 characters")
            if self.signal.type.startswith("kubeharness"):
                raise InvalidRequest("signal.type", "types that start with 'kubeharness' are reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """One request to run work in a session."""

    key: SessionKey
    dispatch_id: str
    message: DispatchMessage
    labels: dict[str, str] = field(default_factory=dict)
    principal: str | None = None
    traceparent: str | None = None

    def validate(self) -> None:
        """Raise InvalidRequest naming the first field that breaks a rule of the HTTP contract."""
        for name, value in (("id", self.key.instance), ("session", self.key.session)):
            if not legal_instance_or_session(value):
                raise InvalidRequest(name, "use 1 to 256 of letters, digits and . _ ~ : @ -, and not '.' or '..'")
        if not DISPATCH_ID.match(self.dispatch_id):
            raise InvalidRequest("dispatchId", "use 1 to 256 characters without control characters")
        if len(self.labels) > 32:
            raise InvalidRequest("labels", "give at most 32")
        for label, value in self.labels.items():
            if not 1 <= len(label) <= 128 or len(value) > 256:
                raise InvalidRequest(f"labels.{label[:32]}", "keys have 1 to 128 characters, values at most 256")
        self.message.validate()

    def digest(self, canonical: bytes) -> str:
        """The digest of the caller's fields (I2), over their canonical JSON (`codec.canonical_dispatch`)."""
        return hashlib.sha256(canonical).hexdigest()

    def caller_fields(self) -> JsonObject:
        """What the caller said, protocol defaults filled in, sanitised; key order does not matter."""
        fields: JsonObject = {
            "kind": self.message.kind,
            "body": clean_text(self.message.body),
            "session": self.key.session,
        }
        if self.message.signal is not None:
            signal = self.message.signal
            fields["signal"] = {
                "type": clean_text(signal.type),
                "sender": {clean_text(k): clean_text(v) for k, v in signal.sender.items()},
                **({"tag": clean_text(signal.tag)} if signal.tag is not None else {}),
            }
        if self.labels:
            fields["labels"] = {clean_text(k): clean_text(v) for k, v in self.labels.items()}
        return fields
