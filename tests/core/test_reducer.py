"""From a log to a tree: deterministic, prefix-consistent, re-rooted by compactions, nothing deleted."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core.making import ids, log
from kubeharness.core.ids import RecordId, record_id
from kubeharness.core.records import Compaction, Payload, Record, UserMessage
from kubeharness.core.reducer import reduce

KEPT = st.one_of(
    st.none(),
    st.just(RecordId("unknown")),
    st.integers(1, 12).map(lambda seq: record_id(1_700_000_000_000, seq, 0)),
)
PAYLOADS = st.lists(
    st.one_of(
        st.text(max_size=3).map(lambda text: UserMessage(body=text)),
        KEPT.map(lambda kept: Compaction(summary="so far", first_kept_entry_id=kept)),
    ),
    max_size=12,
)


@given(PAYLOADS, st.integers(0, 12))
def test_a_prefix_reduces_to_the_prefix_and_parents_change_only_by_a_later_compaction(
    payloads: list[Payload], cut: int
) -> None:
    records = log(*payloads)

    whole, prefix = reduce(records), reduce(records[:cut])

    assert reduce(records) == whole
    assert ids([entry.record for entry in whole.entries]) == ids(records)
    assert [entry.record for entry in prefix.entries] == records[:cut]
    later = {r.payload.first_kept_entry_id for r in records[cut:] if isinstance(r.payload, Compaction)}
    for before, after in zip(prefix.entries, whole.entries, strict=False):
        assert before.parent == after.parent or before.record.id in later


@given(PAYLOADS)
def test_the_active_path_ends_at_the_leaf_and_never_repeats(payloads: list[Payload]) -> None:
    tree = reduce(log(*payloads))

    path = ids(tree.active_path())

    assert len(path) == len(set(path))
    assert (path[-1] if path else None) == tree.leaf


@given(PAYLOADS)
def test_the_last_compaction_is_the_root_of_the_active_branch(payloads: list[Payload]) -> None:
    records = log(*payloads)

    path = reduce(records).active_path()

    compactions = [record.id for record in records if isinstance(record.payload, Compaction)]
    assert not compactions or path[0].id == compactions[-1]


def test_a_kept_entry_that_an_earlier_compaction_left_behind_counts_as_unknown() -> None:
    first, second, third = log(*[UserMessage(body="")] * 3)
    kept_third = Compaction(summary="s", first_kept_entry_id=third.id)
    kept_first = Compaction(summary="t", first_kept_entry_id=first.id)
    fourth, fifth = (
        replace(record, payload=payload)
        for record, payload in zip(log(*[UserMessage(body="")] * 5)[3:], (kept_third, kept_first), strict=True)
    )

    assert ids(reduce([first, second, third, fourth, fifth]).active_path()) == [fifth.id]


def test_a_compaction_becomes_the_root_with_the_kept_entry_under_it() -> None:
    records = log(UserMessage(body="old"), UserMessage(body="kept"), UserMessage(body="last"))
    summary = replace(
        log(*[UserMessage(body="")] * 4)[3], payload=Compaction(summary="s", first_kept_entry_id=records[1].id)
    )

    tree = reduce([*records, summary])

    assert ids(tree.active_path()) == [summary.id, records[1].id, records[2].id]
    assert len(tree.entries) == 4


def test_a_compaction_that_keeps_nothing_known_is_the_leaf() -> None:
    records: list[Record] = log(UserMessage(body="a"), Compaction(summary="s", first_kept_entry_id=RecordId("gone")))

    assert ids(reduce(records).active_path()) == [records[1].id]
