"""Records to JSON and back: nothing is lost, nothing that cannot be sent is kept, and ids are in the log's order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kubeharness.core import codec
from kubeharness.core.dispatch import Dispatch, DispatchMessage, SignalMeta
from kubeharness.core.ids import (
    AttemptId,
    ConversationId,
    InstanceKey,
    SubmissionId,
    TurnId,
    parse_record_id,
    record_id,
    submission_id,
)
from kubeharness.core.json import Json
from kubeharness.core.messages import Usage
from kubeharness.core.records import (
    AssistantBody,
    AssistantMessageAborted,
    AssistantMessageCompleted,
    AssistantMessageStarted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    AssistantToolCall,
    AttachmentRef,
    Compaction,
    ConversationCreated,
    ForkRef,
    Kind,
    MessagePayload,
    ParentRef,
    Payload,
    RunWarning,
    Signal,
    StoredRecord,
    SubmissionSettled,
    ToolOutcome,
    UnknownPayload,
    UserMessage,
)
from kubeharness.core.revision import (
    AgentRevision,
    Durability,
    HeaderSpec,
    ModelSettings,
    ProviderSpec,
    SecretKeyRef,
    ToolGrant,
    ToolPolicy,
    ToolServerSpec,
)
from kubeharness.core.text import clean_json, clean_text, cut_text
from support.properties import patient

ANY_TEXT = st.text(st.characters(), max_size=20)
"""With NUL and lone surrogates, as bad input has them."""
TEXT = ANY_TEXT.map(clean_text)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
COUNTS = st.none() | st.integers(0, 2**53)
for _class, _strategy in (
    (str, TEXT),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (Usage, st.builds(Usage, input=COUNTS, output=COUNTS, cache_read=COUNTS, cache_write=COUNTS, reasoning=COUNTS)),
    (AttachmentRef, st.builds(AttachmentRef, digest=TEXT, media_type=TEXT, size=st.integers(0, 2**40))),
):
    st.register_type_strategy(cast("type[Any]", _class), _strategy)

PAYLOADS: st.SearchStrategy[Payload] = st.one_of(
    st.builds(
        ConversationCreated,
        parent_ref=st.none() | st.builds(ParentRef),
        fork_of=st.none() | st.builds(ForkRef),
    ),
    st.builds(UserMessage),
    st.builds(Signal),
    st.builds(AssistantMessageStarted),
    st.builds(AssistantTextDelta),
    st.builds(AssistantThinkingDelta),
    st.builds(AssistantMessageCompleted, message=st.builds(MessagePayload, body=st.builds(AssistantBody))),
    st.builds(AssistantMessageAborted),
    st.builds(AssistantToolCall, args=OBJECTS),
    st.builds(ToolOutcome, data=JSON),
    st.builds(Compaction),
    st.builds(RunWarning),
    st.builds(SubmissionSettled, result=JSON),
    st.builds(UnknownPayload, kind=st.just("later_kind"), payload=JSON),
)
TIME = datetime(2026, 11, 30, 21, 6, 33, 123456, tzinfo=UTC)
BITS = st.integers(0, 0xFFFF)


def stored(payload: Payload, *, seq: int = 7, bits: int = 3) -> StoredRecord:
    draft = codec.draft(
        payload,
        conversation=ConversationId("conv_1"),
        session="default",
        submission=SubmissionId("sub_1"),
        turn=TurnId("1.1.1"),
        attempt=AttemptId("att_1"),
        time=TIME,
        bits=bits,
    )
    return StoredRecord(seq=seq, milliseconds=1_700_000_000_000, bits=draft.bits, kind=draft.kind, body=draft.body)


@patient
@given(PAYLOADS)
def test_a_record_is_read_as_it_was_written(payload: Payload) -> None:
    record = codec.decode_record(stored(payload))

    assert record.payload == payload
    assert record.kind == payload.kind
    assert (record.conversation_id, record.submission_id, record.turn_id, record.attempt_id, record.time) == (
        "conv_1",
        "sub_1",
        "1.1.1",
        "att_1",
        TIME,
    )


@patient
@given(PAYLOADS)
def test_reading_and_writing_again_gives_the_same_bytes(payload: Payload) -> None:
    first = stored(payload)

    assert stored(codec.decode_record(first).payload).body == first.body


@patient
@given(PAYLOADS, BITS)
def test_the_frame_is_the_body_with_its_id_in_front(payload: Payload, bits: int) -> None:
    record = stored(payload, bits=bits)
    framed = codec.frame(record)

    assert framed.endswith(record.body[1:])
    parsed = json.loads(framed)
    assert next(iter(parsed)) == "id"
    assert parsed.pop("id") == record_id(record.milliseconds, record.seq, record.bits)
    assert parsed == json.loads(record.body)


@patient
@given(PAYLOADS)
def test_nothing_of_ours_is_null(payload: Payload) -> None:
    """Absent, never null; only a caller's own JSON may hold one."""
    assume(not isinstance(payload, UnknownPayload))
    body = json.loads(stored(payload).body)

    assert None not in body.values()
    assert None not in body["payload"].values()


@patient
@given(PAYLOADS, st.dictionaries(st.sampled_from(("later", "newField")), JSON))
def test_unknown_fields_are_tolerated(payload: Payload, later: dict[str, Json]) -> None:
    record = stored(payload)
    body = json.loads(record.body)
    known = codec.decode_record(record)
    if isinstance(body["payload"], dict) and not isinstance(payload, UnknownPayload):
        body["payload"].update(later)
    body.update(later)

    assert codec.decode_record(replace(record, body=codec.dumps(body))) == known


def test_values_of_a_later_release_are_carried() -> None:
    body = stored(SubmissionSettled(status=cast("Any", "succeeded"))).body.replace(b'"succeeded"', b'"paused"')

    payload = codec.decode_record(replace(stored(RunWarning(code="a", message="b")), body=body)).payload
    assert payload == UnknownPayload(kind=Kind.SUBMISSION_SETTLED, payload={"status": "paused"})


# --- ids ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**63 - 1), BITS)
def test_an_offset_says_what_it_was_made_of(milliseconds: int, seq: int, bits: int) -> None:
    offset = parse_record_id(record_id(milliseconds, seq, bits))

    assert (offset.milliseconds, offset.seq, offset.bits) == (milliseconds, seq, bits)


@given(
    st.integers(0, 2**47),
    st.lists(st.tuples(st.sampled_from((0, 0, 1, 1_000)), st.integers(1, 2**32), BITS), min_size=2, max_size=20),
)
def test_the_order_of_ids_is_the_order_of_seqs(start: int, steps: Sequence[tuple[int, int, int]]) -> None:
    """Milliseconds never go back in a log, seq counts on, and the random bits decide nothing."""
    milliseconds, seq, ids = start, 0, []
    for later, on, bits in steps:
        milliseconds, seq = milliseconds + later, seq + on
        ids.append(record_id(milliseconds, seq, bits))

    assert ids == sorted(set(ids))


@given(st.text(max_size=30))
def test_what_is_no_offset_is_refused(text: str) -> None:
    try:
        offset = parse_record_id(text)
    except ValueError:
        return
    assert record_id(offset.milliseconds, offset.seq, offset.bits) == text.upper()


@given(st.tuples(*[TEXT] * 5), st.tuples(*[TEXT] * 5))
def test_no_two_keys_share_an_id(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def derived(parts: tuple[str, ...]) -> str:
        namespace, agent, incarnation, instance, dispatch = parts
        key = InstanceKey(namespace=namespace, agent=agent, incarnation=incarnation, instance=instance)
        return submission_id(key, dispatch)

    assert (derived(one) == derived(other)) == (one == other)


# --- text and JSON ------------------------------------------------------------------------------------------


@given(ANY_TEXT)
def test_clean_text_can_always_be_sent(text: str) -> None:
    clean = clean_text(text)

    assert clean.encode().decode() == clean
    assert "\0" not in clean
    assert len(clean) == len(text)
    assert clean_text(clean) == clean


@given(
    st.recursive(ANY_TEXT | st.integers(), lambda i: st.lists(i, max_size=3) | st.dictionaries(ANY_TEXT, i, max_size=3))
)
def test_clean_json_can_always_be_sent(value: Any) -> None:
    clean = clean_json(value)

    assert codec.loads(codec.dumps(clean)) == clean
    assert b"\\u0000" not in codec.dumps(clean)


@given(TEXT, st.integers(0, 40))
def test_a_cut_never_splits_a_character(text: str, limit: int) -> None:
    cut, size = cut_text(text, limit)

    assert cut.encode().decode() == cut
    if size is None:
        assert cut == text
    else:
        assert size == len(text.encode()) > limit
        assert text.startswith(cut.partition("\n[cut:")[0])


@given(OBJECTS)
def test_canonical_json_does_not_depend_on_key_order(value: dict[str, Json]) -> None:
    turned = dict(reversed(value.items()))

    assert codec.canonical(turned) == codec.canonical(value)
    assert codec.loads(codec.canonical(value)) == value


@given(JSON)
def test_json_comes_back_as_it_was(value: Json) -> None:
    assert codec.loads(codec.dumps(value)) == value


def test_integers_beyond_64_bits_are_kept_as_given() -> None:
    value: Json = {"id": 123456789012345678901234567890}

    assert codec.loads(codec.dumps(value)) == value


# --- dispatches and revisions -------------------------------------------------------------------------------

MESSAGES = st.one_of(
    st.builds(DispatchMessage, kind=st.just("user"), body=ANY_TEXT, signal=st.none()),
    st.builds(
        DispatchMessage,
        kind=st.just("signal"),
        body=ANY_TEXT,
        signal=st.builds(SignalMeta, type=TEXT, sender=st.dictionaries(TEXT, TEXT, max_size=2), tag=st.none() | TEXT),
    ),
)


@given(MESSAGES)
def test_a_message_is_stored_clean(message: DispatchMessage) -> None:
    read = codec.decode_message(codec.encode_message(message))

    assert read == replace(message, body=clean_text(message.body))


@given(MESSAGES, st.dictionaries(TEXT, TEXT, max_size=3))
def test_the_digest_of_a_dispatch_is_its_callers_fields(message: DispatchMessage, labels: dict[str, str]) -> None:
    key = InstanceKey(namespace="n", agent="a", incarnation="u", instance="i").session()
    dispatch = Dispatch(key=key, dispatch_id="d", message=message, labels=labels)
    again = replace(dispatch, dispatch_id="e", labels=dict(reversed(labels.items())), principal="ann", traceparent="t")
    other = replace(dispatch, key=key.renamed("other"))

    assert codec.canonical_dispatch(again) == codec.canonical_dispatch(dispatch)
    assert codec.canonical_dispatch(other) != codec.canonical_dispatch(dispatch)


SERVERS = st.builds(ToolServerSpec, headers=st.tuples(st.builds(HeaderSpec)), policies=st.tuples(st.builds(ToolPolicy)))
REVISIONS = st.builds(
    AgentRevision,
    provider=st.builds(ProviderSpec, api_key=st.none() | st.builds(SecretKeyRef), scripted=st.none() | OBJECTS),
    model=st.builds(ModelSettings, temperature=st.none() | st.floats(0, 2), top_p=st.none() | st.floats(0, 1)),
    tools=st.lists(st.builds(ToolGrant, server=st.none() | SERVERS), max_size=3).map(tuple),
    durability=st.builds(Durability),
)


@patient
@given(REVISIONS)
def test_a_revision_is_addressed_by_its_content(revision: AgentRevision) -> None:
    kept = codec.store_revision(revision)

    assert codec.load_revision(kept) == revision
    assert codec.store_revision(codec.load_revision(kept)) == kept
    assert kept.id == codec.digest_of(kept.body)
    assert set(codec.part_digests(kept.body)) == set(kept.parts)
    assert all(codec.digest_of(part) == digest for digest, part in kept.parts.items())


def test_a_revision_without_one_of_its_parts_is_not_loaded() -> None:
    revision = AgentRevision(
        agent="a",
        provider=ProviderSpec(name="p", type="Scripted"),
        model=ModelSettings(name="m", context_window=1_000),
        system_prompt="be kind",
    )
    kept = codec.store_revision(revision)

    with pytest.raises(KeyError):
        codec.load_revision(replace(kept, parts={}))
