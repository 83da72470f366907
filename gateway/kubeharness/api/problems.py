"""Error class to status and body, in one table. `error` says what to do, `code` is stable; nothing internal leaks."""

import logging
import secrets
from dataclasses import dataclass, field
from typing import ClassVar

from kubeharness.core import errors
from kubeharness.core.codec import dumps
from kubeharness.core.errors import KubeharnessError
from kubeharness.core.json import JsonObject
from kubeharness.core.text import clean_text

log = logging.getLogger(__name__)


class Unauthorized(KubeharnessError):
    """Nobody that we know."""

    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__("send a valid token: Authorization: Bearer …")


class Forbidden(KubeharnessError):
    """Known, and not allowed to do this."""

    code = "forbidden"


class MethodNotAllowed(KubeharnessError):
    """The route exists, the method on it does not."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not served here; use {allowed}")
        self.allowed = allowed


class BodyTooLarge(KubeharnessError):
    """More than the limit of this gateway."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than the {limit} bytes that are read; send less")


class BodyTooSlow(KubeharnessError):
    """The body did not arrive in time."""

    code = "body_too_slow"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the body did not arrive within {seconds:g} s; repeat the request")


class UnsupportedBody(KubeharnessError):
    """A content type or encoding that is not read as JSON."""

    code = "unsupported_media_type"

    def __init__(self, found: str) -> None:
        super().__init__(f"{found!r} is not read here; send application/json")


class TooManyStreams(KubeharnessError):
    """The caller holds as many streams as one may."""

    code = "too_many_streams"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} streams are open already; close one, or come back later")


STATUS: dict[type[KubeharnessError], int] = {
    errors.InvalidRequest: 400,
    errors.OffsetUnknown: 416,
    Unauthorized: 401,
    Forbidden: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    BodyTooSlow: 408,
    errors.Conflict: 409,
    errors.AgentClosed: 409,
    BodyTooLarge: 413,
    UnsupportedBody: 415,
    errors.QueueFull: 429,
    TooManyStreams: 429,
    errors.NotInThisRelease: 501,
    errors.Unavailable: 503,
    errors.AgentNotReady: 503,
}
"""By class; a subclass without an entry has its parent's. Everything else is our bug."""

RETRY_AFTER_SECONDS: dict[type[KubeharnessError], int] = {
    errors.QueueFull: 2,
    TooManyStreams: 5,
    errors.Unavailable: 1,
    errors.AgentNotReady: 2,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that says what went wrong."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    media_type: ClassVar[bytes] = b"application/json"


def problem(error: Exception) -> Problem:
    """The answer to an error; one that we did not raise on purpose is logged and answered with its reference."""
    status = next((STATUS[of] for of in type(error).__mro__ if of in STATUS), 500)
    if status == 500 or not isinstance(error, KubeharnessError):
        return _bug(error)
    body: JsonObject = {"error": clean_text(str(error)), "code": error.code}
    headers: list[tuple[bytes, bytes]] = []
    match error:
        case errors.OffsetUnknown(head=head):
            body["field"] = "after"
            if head is not None:
                body["head"] = head
        case errors.InvalidRequest(field=name):
            body["field"] = name
        case Unauthorized():
            headers.append((b"www-authenticate", b"Bearer"))
        case MethodNotAllowed(allowed=allowed):
            headers.append((b"allow", allowed.encode()))
        case _:
            pass
    if type(error) in RETRY_AFTER_SECONDS:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS[type(error)]).encode()))
    return Problem(status, dumps(body), headers)


def _bug(error: Exception) -> Problem:
    reference = secrets.token_hex(8)
    log.error("an unexpected error, reference %s", reference, exc_info=error)
    body: JsonObject = {
        "error": f"something went wrong on our side; report it with the reference {reference}",
        "code": "internal",
        "ref": reference,
    }
    return Problem(500, dumps(body))
