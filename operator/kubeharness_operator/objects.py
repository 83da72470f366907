"""What the watches saw last of each object, by uid. No judgement, no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from kubeharness.kinds.agent import Agent
from kubeharness.kinds.modelprovider import ModelProvider
from kubeharness.kinds.toolserver import ToolServer

AGENTS = Agent.names.plural
PROVIDERS = ModelProvider.names.plural
TOOL_SERVERS = ToolServer.names.plural
CONFIG_MAPS = "configmaps"
KINDS = {AGENTS: Agent.names.kind, PROVIDERS: ModelProvider.names.kind, TOOL_SERVERS: ToolServer.names.kind}
"""Our kinds, by the plural that URLs have."""

WATCH_LABEL = "kubeharness.dev/watch"
"""ConfigMaps with this label are watched; others are read again now and then."""

Document = dict[str, Any]
"""An object as the API server gave it."""


class Key(NamedTuple):
    """The place of an object; who stands there may change, see `Seen.uid`."""

    plural: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.plural} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One object as it was seen last."""

    key: Key
    uid: str
    version: str
    """Its resourceVersion: goes with every write, so that nothing newer is overwritten."""
    generation: int
    document: Document
    """Without managedFields, which nobody here reads."""

    @property
    def status(self) -> Document:
        """The status as it was seen, empty if there is none."""
        status = self.document.get("status")
        return status if isinstance(status, dict) else {}


def seen_of(plural: str, document: Document) -> Seen:
    """Read what identifies an object. Raises KeyError for a document without it, which no server gives."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return Seen(
        key=Key(plural, metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=int(metadata.get("generation", 0)),
        document={"kind": KINDS.get(plural, "ConfigMap"), **document, "metadata": metadata},
    )


class Objects:
    """The newest that was seen of every object.

    Events of one uid come in order; those of an object and of its successor under the same name may not. So a
    DELETED removes only the uid that it names, and an older state never replaces a newer one, except by a list:
    after a restore from backup the server's versions count from an earlier point again.
    """

    def __init__(self) -> None:
        self._seen: dict[Key, Seen] = {}

    def put(self, plural: str, document: Document, *, listed: bool = False) -> Key:
        """Take in an object from a list, an event or an answer to our own write; returns its key."""
        new = seen_of(plural, document)
        old = self._seen.get(new.key)
        if old is None or listed or not _older(new.version, old.version):
            self._seen[new.key] = new
        return new.key

    def refresh(self, plural: str, document: Document) -> None:
        """Take in the answer to our own write, unless the object was seen to be deleted meanwhile."""
        new = seen_of(plural, document)
        old = self._seen.get(new.key)
        if old is not None and old.uid == new.uid and not _older(new.version, old.version):
            self._seen[new.key] = new

    def remove(self, plural: str, document: Document) -> Key:
        """Take in a DELETED; another uid under the same name stays. Returns the key."""
        gone = seen_of(plural, document)
        self.forget(gone.key, gone.uid)
        return gone.key

    def forget(self, key: Key, uid: str) -> None:
        """Remove an object that is known to be gone, if it is still the one that stands there."""
        old = self._seen.get(key)
        if old is not None and old.uid == uid:
            del self._seen[key]

    def get(self, key: Key) -> Seen | None:
        """What was seen last under this key."""
        return self._seen.get(key)

    def of(self, plural: str) -> Iterator[Seen]:
        """All objects of a kind; safe while objects come and go."""
        return iter([seen for seen in self._seen.values() if seen.key.plural == plural])


def _older(new: str, old: str) -> bool:
    """Versions are integers on every server that we know; others are taken as they come."""
    return new.isdecimal() and old.isdecimal() and int(new) < int(old)
