"""Names of things: typed ids, ids derived from keys (I2), and record ids that are offsets (I6).

Everything here is pure; time and randomness are arguments.
"""

import hashlib
import re
import uuid
from base64 import b32encode
from dataclasses import dataclass, replace
from typing import NewType

from ulid import ULID

SubmissionId = NewType("SubmissionId", str)
ConversationId = NewType("ConversationId", str)
AttemptId = NewType("AttemptId", str)
TurnId = NewType("TurnId", str)
CallId = NewType("CallId", str)
RecordId = NewType("RecordId", str)
RevisionId = NewType("RevisionId", str)
InboxId = NewType("InboxId", str)

DEFAULT_SESSION = "default"
DEFAULT_NAMESPACE = "default"

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
"""An agent's or namespace's name: an RFC 1123 label, as Kubernetes has it."""

INSTANCE_OR_SESSION = re.compile(r"[A-Za-z0-9._~:@-]{1,256}\Z")
"""The documented alphabet of instance ids and session names; `.` and `..` are excluded beside it."""

DISPATCH_ID = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,256}\Z")
"""A caller's idempotency key: 1-256 characters, no control characters, no lone surrogates."""


def legal_instance_or_session(name: str) -> bool:
    """Say whether `name` may name an instance or a session."""
    return bool(INSTANCE_OR_SESSION.match(name)) and name not in (".", "..")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKey:
    """One durable environment of one incarnation of an agent; the scope of dispatch ids (I2)."""

    namespace: str
    agent: str
    incarnation: str
    instance: str

    def session(self, session: str = DEFAULT_SESSION) -> "SessionKey":
        """The key of a conversation in this instance."""
        return SessionKey(
            namespace=self.namespace,
            agent=self.agent,
            incarnation=self.incarnation,
            instance=self.instance,
            session=session,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """What a conversation is the conversation of."""

    namespace: str
    agent: str
    incarnation: str
    instance: str
    session: str = DEFAULT_SESSION

    @property
    def of_instance(self) -> InstanceKey:
        """The instance that this session belongs to."""
        return InstanceKey(
            namespace=self.namespace, agent=self.agent, incarnation=self.incarnation, instance=self.instance
        )

    def renamed(self, session: str) -> "SessionKey":
        """The same instance's other session."""
        return replace(self, session=session)


def _derived(prefix: str, *parts: str) -> str:
    """26 base32 characters of sha256 over the length-prefixed parts: no two keys collide by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "big"))
        digest.update(raw)
    return prefix + b32encode(digest.digest()).decode().lower()[:26]


def submission_id(key: InstanceKey, dispatch_id: str) -> SubmissionId:
    """The one submission that a dispatch id can ever name in this instance (I2)."""
    return SubmissionId(_derived("sub_", key.namespace, key.agent, key.incarnation, key.instance, dispatch_id))


def conversation_id(key: SessionKey) -> ConversationId:
    """The one conversation of a session; also the id of its lane."""
    return ConversationId(_derived("conv_", key.namespace, key.agent, key.incarnation, key.instance, key.session))


def attempt_id(milliseconds: int, randomness: bytes) -> AttemptId:
    """A claimer's name for the attempt it is about to make (I4); `randomness` is 10 bytes."""
    return AttemptId("att_" + str(ULID.from_bytes(milliseconds.to_bytes(6, "big") + randomness)))


def turn_id(position: int, claim: int, number: int) -> TurnId:
    """`{position}.{claim}.{n}`: unique in its conversation, so a dead try's deltas are told apart (I12)."""
    return TurnId(f"{position}.{claim}.{number}")


def call_id(turn: TurnId, index: int) -> CallId:
    """Our id of a turn's call; providers reuse theirs (C26)."""
    return CallId(f"{turn}.{index}")


def dev_incarnation(namespace: str, agent: str) -> str:
    """The incarnation of an agent that no API server gave a uid: the same on every start."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"kubeharness:{namespace}/{agent}"))


@dataclass(frozen=True, slots=True)
class Offset:
    """What a record id says: where in its log, when, and which of two logs after a failover."""

    milliseconds: int
    seq: int
    bits: int


def record_id(milliseconds: int, seq: int, bits: int) -> RecordId:
    """The ULID whose time is `milliseconds` and whose 80-bit tail is `seq` (64) and `bits` (16)."""
    raw = milliseconds.to_bytes(6, "big") + seq.to_bytes(8, "big") + bits.to_bytes(2, "big")
    return RecordId(str(ULID.from_bytes(raw)))


def parse_record_id(text: str) -> Offset:
    """Decode an offset that a reader sent. Raises ValueError if it is not one of our shape."""
    if len(text) != 26:
        raise ValueError("a record id has 26 characters")
    raw = bytes(ULID.from_str(text.upper()))
    return Offset(int.from_bytes(raw[:6], "big"), int.from_bytes(raw[6:14], "big"), int.from_bytes(raw[14:], "big"))
