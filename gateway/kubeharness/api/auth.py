"""Who calls: asked before any route, answered with a principal and what it may do.

`Auth` is fitted by shape: static tokens and `none` here, other modes elsewhere. A namespace that a principal may not
enter looks like one where nothing is.
"""

import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from kubeharness.api.problems import Forbidden, Unauthorized

log = logging.getLogger(__name__)

Right = Literal["dispatch", "read", "steer", "cancel", "approve"]
RIGHTS: frozenset[str] = frozenset({"dispatch", "read", "steer", "cancel", "approve"})
EVERYTHING = "*"
LOOK_SECONDS = 1.0
"""How often the tokens file is looked at for a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls, with which rights; None means all."""

    name: str
    namespaces: frozenset[str] | None
    rights: frozenset[str] | None
    by_token: bool = True
    """It showed a credential that no page of a browser has by itself."""

    def may_enter(self, namespace: str) -> bool:
        """Whether anything in this namespace exists for it."""
        return self.namespaces is None or namespace in self.namespaces

    def require(self, right: Right) -> None:
        """Raise Forbidden without the right."""
        if self.rights is not None and right not in self.rights:
            raise Forbidden(f"{self.name!r} lacks the right {right!r}; ask whoever gives out the tokens for it")


class Auth(Protocol):
    """Finds out who sent a request."""

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Raise Unauthorized if nobody that we know."""
        ...


class Open:
    """Mode `none`: everyone is the same principal. For loopback, or behind something that asks."""

    def __init__(self) -> None:
        self._everyone = Principal(name="anonymous", namespaces=None, rights=None, by_token=False)

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Everyone may do everything."""
        return self._everyone


class BadTokensFile(ValueError):
    """The tokens file is not what it should be; the text says where."""


class Tokens:
    """Mode `token`: static keys from a file that holds their digests, read again when it changes.

    A file that becomes unreadable or wrong changes nothing: the last good keys stay in force, and it is logged.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._stamp = self._stat()
        self._keys = parse_tokens(path.read_bytes())

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The principal of a bearer token. Each key is compared, in constant time."""
        self._look()
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        digest = hashlib.sha256(token.strip()).hexdigest()
        found: Principal | None = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None or scheme.lower() != b"bearer":
            raise Unauthorized
        return found

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            stamp = self._stat()
            if stamp == self._stamp:
                return
            self._keys = parse_tokens(self._path.read_bytes())
            self._stamp = stamp
        except (OSError, BadTokensFile) as error:
            log.warning("tokens: the file cannot be read, the keys from before stay in force: %s", error)

    def _stat(self) -> tuple[int, int, int]:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_ino, found.st_size


def parse_tokens(raw: bytes) -> list[tuple[str, Principal]]:
    """Digests and their principals. Raises BadTokensFile, which never quotes a digest."""
    try:
        entries = json.loads(raw)
    except ValueError as error:
        raise BadTokensFile(f"the tokens file is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise BadTokensFile("the tokens file holds a list of {name, sha256, namespaces, rights}")
    return [_key(index, entry) for index, entry in enumerate(entries)]


def _key(index: int, entry: Any) -> tuple[str, Principal]:
    if not isinstance(entry, dict):
        raise BadTokensFile(f"token {index}: it is not an object")
    unknown = set(entry) - {"name", "sha256", "namespaces", "rights"}
    if unknown:
        raise BadTokensFile(f"token {index}: {min(unknown)!r} is not a field of it")
    name, digest = entry.get("name"), entry.get("sha256")
    if not isinstance(name, str) or not name:
        raise BadTokensFile(f"token {index}: it needs a name")
    if not isinstance(digest, str) or len(digest) != 64 or not set(digest.lower()) <= set("0123456789abcdef"):
        raise BadTokensFile(f"token {index} ({name}): sha256 is not 64 hexadecimal digits")
    rights = _names(index, "rights", entry.get("rights"))
    if rights is not None and not rights <= RIGHTS:
        raise BadTokensFile(f"token {index} ({name}): rights are {', '.join(sorted(RIGHTS))}, or ['*']")
    return digest.lower(), Principal(
        name=name, namespaces=_names(index, "namespaces", entry.get("namespaces")), rights=rights
    )


def _names(index: int, field: str, value: Any) -> frozenset[str] | None:
    """A set of names, None for `["*"]`. What is left out is nothing: a key grants only what it says."""
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadTokensFile(f"token {index}: {field} is a list of names, or ['*']")
    names: Sequence[str] = value
    return None if EVERYTHING in names else frozenset(names)
