"""From the bytes of a path to what it means (C21, C51).

The framework decodes a path before it splits it, so an encoded slash would name another thing. Here each segment is
split first, decoded once and held against its alphabet; what is left is safe to be routed by anybody.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from kubeharness.core.dispatch import ALPHABET
from kubeharness.core.errors import InvalidRequest
from kubeharness.core.ids import DNS_LABEL, legal_instance_or_session

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_MAX_SEGMENTS = 12
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*\Z")
ROUTES = frozenset(
    {"agents", "attachments", "docs", "healthz", "inputs", "instances", "metrics", "namespaces", "openapi.json"}
    | {"readyz", "submissions", "ui", "usage"}
)
"""What the first segment of a path may be, in this release or a later one."""


@dataclass(frozen=True, slots=True)
class Path:
    """A path without prefix and trailing slash. `agent` and `instance` are set where the route has them."""

    segments: tuple[str, ...]
    namespace: str | None = None
    agent: str | None = None
    instance: str | None = None
    submission: str | None = None

    @property
    def is_session(self) -> bool:
        """`/agents/{agent}/{id}` and nothing behind it."""
        return self.instance is not None and len(self.segments) == 3

    @property
    def route(self) -> str:
        """The normalised path, as the router knows it, without the namespace."""
        return "/" + "/".join(self.segments)


def prefix_of(root: str) -> str:
    """The prefix of ROOT_PATH as paths begin with it. Raises ValueError for one that no path could begin with.

    A first segment that is a route's would say two things: whether the proxy took the prefix off could not be seen.
    """
    prefix = root.rstrip("/")
    if not _PREFIX.match(prefix) or {".", ".."} & set(prefix.split("/")):
        raise ValueError(
            f"KUBEHARNESS_ROOT_PATH={root}: write it as it stands in a URL, beginning with /, of letters, digits and "
            ". _ ~ -"
        )
    first = prefix[1:].partition("/")[0]
    if first in ROUTES:
        raise ValueError(f"KUBEHARNESS_ROOT_PATH={root}: /{first} is a route of the API itself; use another prefix")
    return prefix


def parse_path(raw: bytes, root: str) -> Path:
    """Split, decode and check. Raises InvalidRequest naming the part that is outside of its alphabet."""
    raw = raw.partition(b"?")[0]
    prefix = root.encode()
    if prefix and (raw == prefix or raw.startswith(prefix + b"/")):
        raw = raw[len(prefix) :]
    parts = raw.strip(b"/").split(b"/") if raw.strip(b"/") else []
    if raw[:2] == b"//" or raw[-2:] == b"//" or len(parts) > _MAX_SEGMENTS:
        raise InvalidRequest("path", "no route has empty or so many segments")
    decoded = [_decoded(part) for part in parts]
    namespace = None
    if len(decoded) > 1 and decoded[0] == "namespaces":
        namespace = _label("namespace", decoded[1])
        decoded = decoded[2:]
    match decoded:
        case ["agents", agent, instance, *_]:
            path = Path(tuple(decoded), namespace, agent=_label("agent", agent), instance=_name("id", instance))
        case ["agents", agent]:
            path = Path(tuple(decoded), namespace, agent=_label("agent", agent))
        case ["submissions", submission, *_]:
            path = Path(tuple(decoded), namespace, submission=_name("submissionId", submission))
        case _:
            path = Path(tuple(decoded), namespace)
    for segment in decoded:
        _name("path", segment)
    return path


def _decoded(part: bytes) -> str:
    if _BROKEN_ESCAPE.search(part):
        raise InvalidRequest("path", "a % stands for two hexadecimal digits")
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise InvalidRequest("path", "the path is not UTF-8") from None


def _label(field: str, value: str) -> str:
    if not DNS_LABEL.match(value):
        raise InvalidRequest(field, "use 1 to 63 of lower-case letters, digits and -, as Kubernetes does")
    return value


def _name(field: str, value: str) -> str:
    if not legal_instance_or_session(value):
        raise InvalidRequest(field, ALPHABET)
    return value
