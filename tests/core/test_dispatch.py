"""A dispatch: which are refused with which field, and which are the same message."""

import pytest

from kubeharness.core.codec import canonical_dispatch, decode_message, encode_message
from kubeharness.core.dispatch import Dispatch, DispatchMessage, SignalMeta
from kubeharness.core.errors import InvalidRequest
from kubeharness.core.ids import SessionKey


def dispatch(
    message: DispatchMessage | None = None,
    *,
    instance: str = "i",
    session: str = "default",
    dispatch_id: str = "d",
    labels: dict[str, str] | None = None,
) -> Dispatch:
    """One that is sound but for what is given."""
    key = SessionKey(namespace="default", agent="a", incarnation="u", instance=instance, session=session)
    return Dispatch(
        key=key,
        dispatch_id=dispatch_id,
        message=message or DispatchMessage(kind="user", body="b"),
        labels=labels or {},
    )


def digest(one: Dispatch) -> str:
    """Its digest."""
    return one.digest(canonical_dispatch(one))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\x00b", "x" * 257])
def test_an_instance_or_session_outside_the_alphabet_is_refused_c12(name: str) -> None:
    with pytest.raises(InvalidRequest, match="id"):
        dispatch(instance=name).validate()
    with pytest.raises(InvalidRequest, match="session"):
        dispatch(session=name).validate()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (DispatchMessage(kind="signal", body="b"), "signal"),
        (DispatchMessage(kind="user", body="b", signal=SignalMeta(type="t")), "signal"),
        (DispatchMessage(kind="signal", body="b", signal=SignalMeta(type="")), "signal.type"),
        (DispatchMessage(kind="signal", body="b", signal=SignalMeta(type="kubeharness.wake")), "signal.type"),
    ],
)
def test_the_union_names_the_field_that_breaks_it(message: DispatchMessage, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        dispatch(message).validate()

    assert refused.value.field == field


def test_a_dispatch_id_is_bounded_and_without_control_characters() -> None:
    for bad in ("", "a\nb", "\ud800", "x" * 257):
        with pytest.raises(InvalidRequest, match="dispatchId"):
            dispatch(dispatch_id=bad).validate()


def test_labels_order_does_not_matter_and_their_values_do() -> None:
    assert digest(dispatch(labels={"a": "1", "b": "2"})) == digest(dispatch(labels={"b": "2", "a": "1"}))
    assert digest(dispatch(labels={"a": "1"})) != digest(dispatch(labels={"a": "2"}))
    assert digest(dispatch()) != digest(dispatch(session="other"))


def test_another_body_is_another_message_down_to_a_space_c19() -> None:
    assert digest(dispatch(DispatchMessage(kind="user", body="pay"))) != digest(
        dispatch(DispatchMessage(kind="user", body="pay "))
    )


def test_a_message_survives_its_storage_and_is_clean_c12() -> None:
    message = DispatchMessage(
        kind="signal", body="a\x00b\ud83d", signal=SignalMeta(type="t", sender={"n": "v"}, tag="g")
    )

    stored = decode_message(encode_message(message))

    assert stored.body == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"
    assert stored.signal == message.signal
