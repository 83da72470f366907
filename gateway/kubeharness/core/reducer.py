"""From a log to a tree: pure, deterministic, prefix-consistent.

`reduce(records[:n])` has exactly n entries, in order. An entry's parent changes only through a later compaction,
which becomes the root of the active branch with the kept entry under it; nothing is deleted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubeharness.core.ids import RecordId
from kubeharness.core.records import Compaction, Record


@dataclass(frozen=True, slots=True)
class ReducedEntry:
    """A record and what it follows; None for a root."""

    record: Record
    parent: RecordId | None


@dataclass(frozen=True, slots=True)
class ConversationTree:
    """All entries in log order, and the leaf of the active branch."""

    entries: tuple[ReducedEntry, ...]
    leaf: RecordId | None

    def active_path(self) -> list[Record]:
        """The records from the active branch's root to its leaf."""
        by_id = {entry.record.id: entry for entry in self.entries}
        path: list[Record] = []
        at = self.leaf
        while at is not None:
            entry = by_id[at]
            path.append(entry.record)
            at = entry.parent
        return path[::-1]


def reduce(records: Sequence[Record]) -> ConversationTree:
    """Chain each record to the one before; a compaction takes the active branch's root.

    With no kept entry, or one that is not on the active branch, its summary is the leaf.
    """
    entries: list[ReducedEntry] = []
    index: dict[RecordId, int] = {}
    leaf: RecordId | None = None
    for record in records:
        payload = record.payload
        if isinstance(payload, Compaction):
            kept = _on_branch(entries, index, leaf, payload.first_kept_entry_id)
            entries.append(ReducedEntry(record, None))
            if kept is None:
                leaf = record.id
            else:
                entries[kept] = replace(entries[kept], parent=record.id)
        else:
            entries.append(ReducedEntry(record, leaf))
            leaf = record.id
        index[record.id] = len(entries) - 1
    return ConversationTree(tuple(entries), leaf)


def _on_branch(
    entries: Sequence[ReducedEntry], index: dict[RecordId, int], leaf: RecordId | None, wanted: RecordId | None
) -> int | None:
    """Where the wanted entry lies, if the way from the leaf to the root passes it."""
    at = leaf if wanted in index else None
    while at is not None and at != wanted:
        at = entries[index[at]].parent
    return None if at is None else index[at]
