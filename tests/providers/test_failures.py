"""What a wire does to us becomes one of four errors; Retry-After in every form."""

import pytest

from kubeharness.core.errors import ProviderAuth, ProviderError, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.redaction import Redactor
from kubeharness.providers.failures import MAX_QUOTED, broke_off, refused, retry_after

PLAIN = Redactor([])
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ProviderFatal),
        (404, ProviderFatal),
        (422, ProviderFatal),
        (307, ProviderFatal),
        (401, ProviderAuth),
        (403, ProviderAuth),
        (413, ProviderOverflow),
        (408, ProviderTransient),
        (409, ProviderTransient),
        (429, ProviderTransient),
        (500, ProviderTransient),
        (503, ProviderTransient),
        (529, ProviderTransient),
    ],
)
def test_a_status_has_its_kind_and_the_text_quotes_the_provider(status: int, error: type[ProviderError]) -> None:
    raised = refused(status, {}, '{"error": {"message": "no luck", "type": "x"}}', PLAIN)

    assert type(raised) is error
    assert str(raised) == f"HTTP {status}: no luck"


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}',
        '{"error": {"message": "This model\'s maximum context length is 32768 tokens."}}',
        '{"error": {"message": "x", "code": "context_length_exceeded"}}',
        '[{"error": {"code": 400, "message": "The input token count (1100000) exceeds the maximum"}}]',
        '{"error": {"message": "max_tokens (32000) + input exceeds limit"}}',
        '{"error": {"code": 400, "message": "too big", "type": "exceed_context_size_error"}}',
        '{"detail": "the request exceeds the available context size"}',
    ],
)
def test_every_wording_of_an_overflow_is_one_c33(body: str) -> None:
    assert type(refused(400, {}, body, PLAIN)) is ProviderOverflow


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "invalid tool schema: max_tokens must be an integer", ProviderFatal),
        (400, "'messages.1.content' is too long a name for a tool", ProviderFatal),
        (429, "Rate limit reached: 200000 tokens per minute, request too large", ProviderTransient),
        (500, "maximum context length unknown", ProviderTransient),
    ],
)
def test_what_is_no_overflow_is_none_c33(status: int, message: str, error: type[ProviderError]) -> None:
    assert type(refused(status, {}, f'{{"error": {{"message": "{message}"}}}}', PLAIN)) is error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Overloaded", "type": "overloaded_error"}, ProviderTransient),
        ({"message": "x", "code": "rate_limit_exceeded"}, ProviderTransient),
        ({"message": "maximum context length", "code": "rate_limit_exceeded"}, ProviderTransient),
        ({"message": "x", "code": "context_length_exceeded", "type": "invalid_request_error"}, ProviderOverflow),
        ({"message": "bad", "type": "invalid_request_error"}, ProviderFatal),
        ({"message": "bad", "code": "invalid_api_key"}, ProviderAuth),
        ({"message": "bad", "code": 503}, ProviderTransient),
        ({"message": "bad", "code": 401}, ProviderAuth),
        ({"message": "who knows"}, ProviderTransient),
        ("just text", ProviderTransient),
        (None, ProviderTransient),
    ],
)
def test_an_error_inside_a_stream_is_transient_unless_it_says_otherwise_c33_c35(
    error: object, kind: type[ProviderError]
) -> None:
    assert type(broke_off(error, PLAIN)) is kind  # type: ignore[arg-type]  # JSON, as it comes


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("86400", 3600.0),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("Wed, 21 Oct 2026 07:28:03 GMT", 3.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("Fri, 01 Jan 2027 00:00:00 GMT", 3600.0),
        ("Wed, 99 Oct 2026 07:28:03 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_relative_to_the_answers_c32(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value, "date": DATE}) == seconds


def test_retry_after_in_milliseconds_wins_c32() -> None:
    assert retry_after({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert retry_after({"retry-after-ms": "x", "retry-after": "2"}) == 2.0
    assert retry_after({}) is None


def test_a_long_text_is_bounded_and_clean() -> None:
    said = str(refused(400, {}, "x\x00" * 5_000, PLAIN))

    assert len(said) <= len("HTTP 400: ") + MAX_QUOTED
    assert "\x00" not in said


def test_the_key_never_comes_back_c53() -> None:
    redact = Redactor(["test-CANARY123"])
    said = str(
        refused(401, {}, '{"error": {"message": "Incorrect API key: test-CANARY123, Bearer test-CANARY123"}}', redact)
    )

    assert "CANARY" not in said
    assert said == "HTTP 401: Incorrect API key: [redacted], Bearer [redacted]"
