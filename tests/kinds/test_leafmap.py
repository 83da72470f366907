"""A field without a test, and a test that is gone, fail the check by name."""

from pathlib import Path

import pytest

import leafmap
from leafmap import Leaf, complaints

LEAVES = {"Agent": [Leaf("spec.a", "string", "A."), Leaf("spec.b[]", "string", "B.")]}


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text("def test_a() -> None: ...\n\n\nasync def test_b(x: int) -> None: ...\n")
    return tmp_path


def test_a_whole_map_has_no_complaint(tests: Path) -> None:
    assert (
        complaints(LEAVES, {"Agent": {"spec.a": "test_it.py::test_a", "spec.b[]": "test_it.py::test_b"}}, tests) == []
    )


def test_what_is_missing_is_named(tests: Path) -> None:
    mapping = {
        "Agent": {"spec.a": "test_it.py::test_", "spec.c": "test_it.py::test_a"},
        "Robot": {"spec.a": "test_it.py::test_a"},
    }

    assert complaints(LEAVES, mapping, tests) == [
        "leaves.toml: [Robot] is no kind",
        "Agent spec.b[]: no test in leaves.toml",
        "Agent spec.c: no such leaf",
        "Agent spec.a: test_it.py has no 'test_'",
    ]
    assert complaints(LEAVES, {"Agent": {"spec.a": "a.py::b", "spec.b[]": "test_it.py::test_b"}}, tests) == [
        "Agent spec.a: a.py does not exist below tests/"
    ]


def test_every_leaf_is_mapped_and_the_page_is_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert leafmap.main(["--check"]) == 0, capsys.readouterr().err


def test_the_page_says_every_leaf() -> None:
    text = leafmap.PAGE.read_text()

    for found in leafmap.all_leaves().values():
        for leaf in found:
            assert f"| `{leaf.path}` |" in text
