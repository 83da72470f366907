"""Names that a model sees: legal, unique, stable."""

import random
import re
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from kubeharness.tools.names import RESERVED, Origin, aliases, legal_name, shown_names
from support.properties import patient

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONG = "x" * 80 + "0123456789"
TWIN = "x" * 80 + "9876543210"


def test_a_legal_name_of_its_own_is_kept() -> None:
    names, dropped = shown_names([("", "clock"), ("a", "search"), ("b", "find-it_2")])

    assert list(names.values()) == ["clock", "search", "find-it_2"]
    assert dropped == []


def test_every_tool_of_the_field_case_is_shown_c38() -> None:
    origins: list[Origin] = [
        *(("a", "search"), ("b", "search"), ("a", "files/read.v2"), ("a", "суд")),
        *(("a", LONG), ("a", TWIN), ("b", "task"), ("", "task")),
    ]
    names, dropped = shown_names(origins)

    assert dropped == []
    assert names["a", "search"] == "a_search"
    assert names["b", "search"] == "b_search"
    assert names["a", "files/read.v2"].startswith("files_read_v2_")
    assert names["", "task"] == "task"
    assert names["b", "task"] == "b_task"
    assert names["a", LONG] != names["a", TWIN]
    assert all(LEGAL.fullmatch(name) for name in names.values())


def test_a_reserved_name_is_nobody_elses_even_where_we_do_not_use_it_c38() -> None:
    names, _ = shown_names([("a", "task")])

    assert names == {("a", "task"): "a_task"}


def test_a_real_clash_drops_only_that_tool_c38() -> None:
    # a_b_c is both `b_c` of a and `c` of a_b, once each has to be told apart from a twin
    origins: list[Origin] = [("a", "b_c"), ("x", "b_c"), ("a_b", "c"), ("x", "c"), ("x", "other")]
    names, dropped = shown_names(origins)

    assert all(shown_names(order) == (names, dropped) for order in permutations(origins))
    assert dropped == [("a_b", "c")]
    assert names["a", "b_c"] == "a_b_c"
    assert names["x", "other"] == "other"


def test_the_qualified_name_always_works() -> None:
    names, _ = shown_names([("a", "search"), ("", "clock")])

    assert aliases(names) == {"search": ("a", "search"), "clock": ("", "clock"), "a_search": ("a", "search")}


_servers = st.sampled_from(["", "a", "b", "a-b", "a_b"])
_tools = st.one_of(st.sampled_from(["search", "task", "b_search", "a_search", LONG, TWIN]), st.text(max_size=70))


@given(st.lists(st.tuples(_servers, _tools), max_size=12), st.randoms(use_true_random=False))
@patient
def test_names_are_legal_unique_and_the_same_in_any_order_c38(origins: list[Origin], order: random.Random) -> None:
    origins = [(server, tool) for server, tool in origins if server or LEGAL.fullmatch(tool)]
    names, dropped = shown_names(origins)
    shuffled = list(origins)
    order.shuffle(shuffled)

    assert (names, dropped) == shown_names(shuffled)
    assert set(names) | set(dropped) == set(origins)
    assert len(set(names.values())) == len(names)
    for (server, tool), name in names.items():
        assert LEGAL.fullmatch(name)
        assert not server or name not in RESERVED
        assert server or name == tool


@given(st.text(st.characters(codec=None)))
@patient
def test_any_name_has_a_legal_form(name: str) -> None:
    assert LEGAL.fullmatch(legal_name(name))
    assert legal_name(legal_name(name)) == legal_name(name)
