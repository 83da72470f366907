"""Text that can always be stored and sent again (I15): sanitised once, at record time."""

import re

from kubeharness.core.json import Json

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def clean_text(text: str) -> str:
    """NUL and lone surrogates become U+FFFD; all else is kept. Postgres and UTF-8 refuse both (C12, C13)."""
    return _UNSENDABLE.sub(REPLACEMENT, text) if _UNSENDABLE.search(text) else text


def clean_json(value: Json) -> Json:
    """The same for every string and key of a JSON value."""
    match value:
        case str():
            return clean_text(value)
        case list():
            return [clean_json(item) for item in value]
        case dict():
            return {clean_text(key): clean_json(item) for key, item in value.items()}
        case _:
            return value


def cut_text(text: str, limit_bytes: int) -> tuple[str, int | None]:
    """Cut to `limit_bytes` of UTF-8 without splitting a character; say the original size if it was cut."""
    raw = text.encode()
    if len(raw) <= limit_bytes:
        return text, None
    kept = raw[:limit_bytes].decode(errors="ignore")
    return f"{kept}\n[cut: {len(raw)} bytes in all]", len(raw)


def as_object(value: Json) -> dict[str, Json] | None:
    """The value if it is a JSON object, else None."""
    return value if isinstance(value, dict) else None
