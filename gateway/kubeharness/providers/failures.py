"""What a model wire does to us, as one of four errors: the table of statuses and wordings. Pure."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import orjson

from kubeharness.core.errors import ProviderAuth, ProviderError, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.json import Json
from kubeharness.core.redaction import Redactor
from kubeharness.core.text import as_object, clean_text

MAX_QUOTED = 2_000
MAX_RETRY_AFTER = 3_600.0

_TRANSIENT = frozenset({408, 409, 423, 425, 429})
_OVERFLOW = re.compile(  # C33; asked only of errors that are not about rates
    r"prompt is too long|context[ _](length|window|size)|maximum context|input token count|too many (input )?tokens"
    r"|input is too long|reduce the length|max(_completion|_output)?_tokens\b.*exceed|exceeds? the (maximum|limit)"
    r"[^.]*\btokens|request too large|token limit",
    re.IGNORECASE | re.DOTALL,
)
_BUSY = re.compile(r"rate.?limit|overloaded|too many requests|quota|unavailable|timeout|server.?error", re.IGNORECASE)
_AUTH = re.compile(r"invalid_api_key|authentication|permission|unauthorized", re.IGNORECASE)
_INVALID = re.compile(r"invalid_request|invalid_prompt|not_found|bad_request", re.IGNORECASE)


def refused(status: int, headers: Mapping[str, str], body: str, redact: Redactor) -> ProviderError:
    """The error of an answer that is not 200."""
    text = quoted(_message(body), redact)
    said = f"HTTP {status}: {text}" if text else f"HTTP {status}"
    if status == 413 or (status < 500 and status not in _TRANSIENT and _OVERFLOW.search(body)):
        return ProviderOverflow(said)
    if status in (401, 403):
        return ProviderAuth(said)
    if status in _TRANSIENT or status >= 500:
        return ProviderTransient(said, retry_after(headers))
    return ProviderFatal(said)


def broke_off(error: Json, redact: Redactor) -> ProviderError:
    """The error of an error object inside a stream that began well (C33, C35): transient unless it says otherwise."""
    fields = as_object(error) or {}
    for key in ("status", "status_code", "code"):
        status = fields.get(key)
        if isinstance(status, int) and 400 <= status <= 599:
            return refused(status, {}, orjson.dumps({"error": error}).decode(), redact)
    kind = " ".join(str(fields[key]) for key in ("code", "type") if fields.get(key) is not None)
    message = str(fields.get("message") or error)
    said = quoted(f"the stream broke off: {kind}: {message}" if kind else f"the stream broke off: {message}", redact)
    if _BUSY.search(kind):
        return ProviderTransient(said)
    if _OVERFLOW.search(f"{kind} {message}"):
        return ProviderOverflow(said)
    if _AUTH.search(kind):
        return ProviderAuth(said)
    return ProviderFatal(said) if _INVALID.search(kind) else ProviderTransient(said)


def quoted(text: str, redact: Redactor) -> str:
    """The provider's words: clean, without secrets, bounded."""
    text = redact(clean_text(text)).strip()
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 1]}…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: a number, or a date relative to the answer's own; capped, and None for garbage (C32)."""
    value = headers.get("retry-after", "").strip()
    seconds = _number(headers.get("retry-after-ms", ""), 1000)
    if seconds is None:
        seconds = _number(value, 1)
    if seconds is None:
        until = _date(value)
        if until is None:
            return None
        now = _date(headers.get("date", "")) or datetime.now(UTC)
        seconds = max(0.0, (until - now).total_seconds())
    return min(seconds, MAX_RETRY_AFTER)


def _number(value: str, divisor: int) -> float | None:
    try:
        seconds = float(value) / divisor
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _date(value: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _message(body: str) -> str:
    """The sentence inside of an error body, else the body."""
    try:
        value: Json = orjson.loads(body)
    except ValueError:
        return body
    if isinstance(value, list) and value:  # Gemini wraps it in a list
        value = value[0]
    fields = as_object(value) or {}
    error = fields.get("error", fields)
    if isinstance(error, str):
        return error
    message = (as_object(error) or {}).get("message") or fields.get("message") or fields.get("detail")
    return message if isinstance(message, str) else body
