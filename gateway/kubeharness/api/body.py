"""Request bodies: bytes within limits, then JSON as strictly as RFC 8259 allows (no duplicate keys, finite numbers)."""

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from kubeharness.api.asgi import ClientGone, Receive
from kubeharness.api.problems import BodyTooLarge, BodyTooSlow, UnsupportedBody
from kubeharness.core.errors import InvalidRequest
from kubeharness.core.json import Json, JsonObject

MAX_DEPTH = 64
FORM = b"application/x-www-form-urlencoded"
"""What curl says by itself when it is given `-d`: the seed's lines send it."""


def check_type(headers: Mapping[bytes, bytes]) -> None:
    """Raise UnsupportedBody unless the headers allow to read JSON."""
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding not in (b"", b"identity"):
        raise UnsupportedBody(encoding.decode("latin-1"))
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media in (b"", b"application/json", FORM) or (media.startswith(b"application/") and media.endswith(b"+json")):
        return
    raise UnsupportedBody(media.decode("latin-1")[:100])


async def read_bytes(receive: Receive, headers: Mapping[bytes, bytes], *, limit: int, seconds: float) -> bytes:
    """The whole body. Raises BodyTooLarge, BodyTooSlow, and ClientGone if its sender went away: half is nothing."""
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length[:20]) > limit:
        raise BodyTooLarge(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise BodyTooLarge(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise BodyTooSlow(seconds) from None


def parse_object(raw: bytes) -> JsonObject:
    """A JSON object. Raises InvalidRequest that names the place or the key."""
    try:
        value: Json = json.loads(raw.decode(), object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise InvalidRequest("body", "it is not UTF-8") from None
    except json.JSONDecodeError as broken:
        raise InvalidRequest(
            "body", f"it is not JSON: {broken.msg} at line {broken.lineno}, column {broken.colno}"
        ) from None
    except RecursionError:
        raise InvalidRequest("body", f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidRequest("body", "a number in it is too long") from None
    if not isinstance(value, dict):
        raise InvalidRequest("body", "send a JSON object")
    _check_depth(value)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(_shown(key), "the key stands twice in one object")
            seen.add(key)
    return made


def _constant(name: str) -> NoReturn:
    raise InvalidRequest("body", f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidRequest("body", f"the number {text[:40]} is too large")
    return value


def _check_depth(value: Json) -> None:
    level: list[Json] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
        if not deeper:
            return
        level = deeper
    if any(isinstance(item, dict | list) for item in level):
        raise InvalidRequest("body", f"it is nested deeper than {MAX_DEPTH} levels")


def _shown(key: str) -> str:
    return key.encode(errors="replace").decode()[:100]
