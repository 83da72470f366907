"""Records, messages and revisions to and from JSON (camelCase). Absent, never null; empty ids are left out.

The JSON of a record is what the store keeps and what SSE sends: it is made once, at record time.
"""

import dataclasses
import hashlib
import json
import re
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast

import orjson
from pydantic import ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from kubeharness.core import records
from kubeharness.core.dispatch import Dispatch, DispatchMessage
from kubeharness.core.ids import AttemptId, ConversationId, RevisionId, SubmissionId, TurnId, record_id
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.records import Draft, Payload, Record, StoredRecord, UnknownPayload
from kubeharness.core.revision import AgentRevision, StoredRevision
from kubeharness.core.text import clean_json

T = TypeVar("T")
_CLASSES = {cast("Any", payload).kind: payload for payload in records.Payload.__args__ if payload is not UnknownPayload}


def wire_name(name: str) -> str:
    """The JSON name of a Python field."""
    return to_camel(name.rstrip("_"))


@cache
def _fields(of: type) -> tuple[tuple[str, str], ...]:
    return tuple((f.name, wire_name(f.name)) for f in dataclasses.fields(of))


def to_json(value: object) -> Json:
    """A dataclass tree as JSON: None, empty tuples and empty ids are left out; plain JSON passes untouched."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: JsonObject = {}
        for name, wire in _fields(type(value)):
            item = getattr(value, name)
            if item is None or item == ():
                continue
            out[wire] = to_json(item) if dataclasses.is_dataclass(item) or isinstance(item, tuple) else item
        return out
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return cast("Json", value)


def dumps(value: Json) -> bytes:
    """JSON bytes; numbers beyond 64 bits, which orjson refuses, are kept as they are."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def canonical(value: Json) -> bytes:
    """JSON bytes that do not depend on key order."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


_LONG_NUMBER = re.compile(rb"[0-9]{19}")
"""Beyond 64 bits orjson makes a float of an integer and says nothing."""


def loads(raw: bytes | str) -> Json:
    """Parse JSON that we wrote; integers of any size come back as they are."""
    text = raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw
    if _LONG_NUMBER.search(text):
        return cast("Json", json.loads(raw))
    try:
        return cast("Json", orjson.loads(raw))
    except orjson.JSONDecodeError:
        return cast("Json", json.loads(raw))


@cache
def _adapter(of: Any) -> TypeAdapter[list[Any]]:
    config = ConfigDict(alias_generator=wire_name, extra="ignore", populate_by_name=False)
    return TypeAdapter(list[of], config=config)  # a list hands the config down to a dataclass


def decode(of: type[T], value: Json) -> T:
    """A dataclass tree from JSON. Raises ValueError where the shape is not the class's."""
    return cast("T", _adapter(of).validate_python([value])[0])  # type: ignore[arg-type]  # a class is hashable


def wire_time(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def draft(
    payload: Payload,
    *,
    conversation: ConversationId,
    session: str,
    submission: SubmissionId | None,
    turn: TurnId | None = None,
    attempt: AttemptId | None = None,
    time: datetime,
    bits: int,
) -> Draft:
    """Serialise a record once, all but the id that its append will give it."""
    body: JsonObject = {"kind": str(payload.kind), "conversationId": conversation, "session": session}
    if submission:
        body["submissionId"] = submission
    if turn:
        body["turnId"] = turn
    if attempt:
        body["attemptId"] = attempt
    body["time"] = wire_time(time)
    body["payload"] = payload.payload if isinstance(payload, UnknownPayload) else to_json(payload)
    return Draft(kind=str(payload.kind), body=dumps(body), bits=bits, submission_id=submission)


def frame(stored: StoredRecord) -> bytes:
    """The record on the wire: `{"id":"…",` and the stored bytes after their first brace."""
    return b'{"id":"' + record_id(stored.milliseconds, stored.seq, stored.bits).encode() + b'",' + stored.body[1:]


def decode_record(stored: StoredRecord) -> Record:
    """A stored record as a value; unknown kinds and fields are tolerated."""
    raw = cast("dict[str, Any]", loads(stored.body))
    return Record(
        id=record_id(stored.milliseconds, stored.seq, stored.bits),
        seq=stored.seq,
        conversation_id=ConversationId(raw["conversationId"]),
        session=raw["session"],
        submission_id=raw.get("submissionId"),
        turn_id=raw.get("turnId"),
        attempt_id=raw.get("attemptId"),
        time=datetime.fromisoformat(raw["time"]),
        payload=decode_payload(raw["kind"], raw.get("payload")),
    )


def decode_payload(kind: str, payload: Json) -> Payload:
    """A payload by its kind."""
    of = _CLASSES.get(kind)
    if of is None:
        return UnknownPayload(kind=kind, payload=payload)
    try:
        return cast("Payload", decode(of, payload))
    except ValueError:  # a later release's values: a reader carries what it cannot read
        return UnknownPayload(kind=kind, payload=payload)


def encode_message(message: DispatchMessage) -> bytes:
    """A dispatch's message as it lies on the submission."""
    return dumps(clean_json(to_json(message)))


def decode_message(raw: bytes) -> DispatchMessage:
    """The message of a submission."""
    return decode(DispatchMessage, loads(raw))


def canonical_dispatch(dispatch: Dispatch) -> bytes:
    """The canonical JSON of the caller's fields: what the digest of I2 is taken over."""
    return canonical(dispatch.caller_fields())


def digest_of(raw: bytes) -> str:
    """`sha256:` and the hex digest of bytes."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def store_revision(revision: AgentRevision) -> StoredRevision:
    """The canonical form of a revision: the body names prompt, provider and tool servers by digest."""
    parts: dict[str, bytes] = {}

    def part(value: Json) -> str:
        raw = canonical(value)
        digest = digest_of(raw)
        parts[digest] = raw
        return digest

    body = cast("JsonObject", to_json(revision))
    body["systemPrompt"] = part(revision.system_prompt)
    body["provider"] = part(to_json(revision.provider))
    body["tools"] = [
        {
            **cast("JsonObject", to_json(dataclasses.replace(grant, server=None))),
            "server": part(to_json(grant.server)),
        }
        if grant.server
        else to_json(grant)
        for grant in revision.tools
    ]
    raw = canonical(body)
    return StoredRevision(id=RevisionId(digest_of(raw)), format=revision.format, body=raw, parts=parts)


def load_revision(stored: StoredRevision) -> AgentRevision:
    """The revision with its parts back in place. Raises KeyError if a part is missing."""
    body = cast("JsonObject", loads(stored.body))

    def part(digest: Json) -> Json:
        return loads(stored.parts[cast("str", digest)])

    body["systemPrompt"] = part(body["systemPrompt"])
    body["provider"] = part(body["provider"])
    tools = cast("list[JsonObject]", body.get("tools", []))
    body["tools"] = [{**grant, "server": part(grant["server"])} if "server" in grant else grant for grant in tools]
    return decode(AgentRevision, body)


def part_digests(body: bytes) -> list[str]:
    """The digests that a stored revision's body names."""
    raw = cast("dict[str, Any]", loads(body))
    return [
        raw["systemPrompt"],
        raw["provider"],
        *(grant["server"] for grant in raw.get("tools", []) if "server" in grant),
    ]
