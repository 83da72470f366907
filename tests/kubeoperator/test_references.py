"""Who names whom: an index that is always the same as counting anew."""

from hypothesis import given
from hypothesis import strategies as st

from kubeharness_operator.references import References

NAMED = st.dictionaries(st.sampled_from("ABC"), st.frozensets(st.integers(0, 4)))


def test_a_change_of_a_thing_finds_all_who_name_it() -> None:
    index: References[str, str] = References()
    index.put("one", ["p", "t"])
    index.put("two", ["p"])

    assert index.naming("p") == {"one", "two"}
    assert index.naming("t") == {"one"}
    assert index.named_by("one") == {"p", "t"}
    assert "x" not in index


def test_the_last_who_named_a_thing_leaves_an_orphan() -> None:
    index: References[str, str] = References()
    index.put("one", ["p", "t"])
    index.put("two", ["p"])

    assert index.put("one", ["t"]) == frozenset()
    assert index.put("two", []) == {"p"}
    assert index.drop("one") == {"t"}
    assert index.things() == frozenset()


@given(st.lists(NAMED, max_size=6))
def test_the_index_equals_counting_anew(rounds: list[dict[str, frozenset[int]]]) -> None:
    index: References[str, int] = References()
    now: dict[str, frozenset[int]] = {}
    for changes in rounds:
        for by, named in changes.items():
            index.put(by, named)
            now[by] = named

        for thing in range(5):
            assert index.naming(thing) == {by for by, named in now.items() if thing in named}
        assert index.things() == frozenset().union(*now.values()) if now else True
