"""Mode `token`: static keys from a file that holds their digests, never the keys."""

import hashlib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubeharness.api.auth import Grants, Principal, bearer
from kubeharness.api.problems import Unauthorized
from kubeharness.core.errors import Unavailable
from kubeharness.core.principal import RIGHTS

log = logging.getLogger(__name__)

EVERYTHING = "*"
LOOK_SECONDS = 1.0
"""How often the file is looked at for a change."""


class BadTokensFile(ValueError):
    """The tokens file is not what it should be; the text says where."""


class Tokens:
    """Keys from a file that is read again when it changes.

    Until there is one that can be read nobody is known: the process starts, is unready and says why. One that
    vanishes or becomes wrong later changes nothing: the last good keys stay in force, and it is logged.
    """

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._stamp: tuple[int, int, int] | None = None
        self._keys: list[tuple[str, Principal]] | None = None
        self._why = ""
        self._read()

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The principal of a bearer token. Each key is compared, in constant time."""
        token = bearer(headers)
        self._look()
        if self._keys is None:
            raise Unavailable("no tokens are known yet")
        digest = hashlib.sha256(token).hexdigest()
        found: Principal | None = None
        for known, principal in self._keys:
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthorized
        return found

    def unready(self) -> str | None:
        """Why there are no keys yet."""
        self._look()
        return self._why if self._keys is None else None

    def _look(self) -> None:
        now = self._monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._read()

    def _read(self) -> None:
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if stamp == self._stamp:
                return
            self._keys = parse_tokens(self._path.read_bytes())
            self._stamp, self._why = stamp, ""
            log.info("tokens: %d keys are in force", len(self._keys))
        except (OSError, BadTokensFile) as error:
            self._failed(error)

    def _failed(self, error: OSError | BadTokensFile) -> None:
        """Say it once, not at every look; the path is for the log alone."""
        what = f"it cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        said, self._why = self._why, f"no tokens yet, see KUBEHARNESS_TOKENS_FILE ({what})"
        if said != self._why:
            kept = "nobody is let in by token until it can be" if self._keys is None else "the keys from before stay"
            log.warning("tokens: %s cannot be used, %s: %s", self._path, kept, what)


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
    access = Grants(namespaces=_names(index, "namespaces", entry.get("namespaces")), rights=rights)
    return digest.lower(), Principal(name=name, access=access)


def _names(index: int, field: str, value: Any) -> frozenset[str] | None:
    """A set of names, None for `["*"]`. What is left out is nothing: a key grants only what it says."""
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadTokensFile(f"token {index}: {field} is a list of names, or ['*']")
    names: Sequence[str] = value
    return None if EVERYTHING in names else frozenset(names)
