"""Rows go over as array literals that we write ourselves: whatever text they hold comes back as it was."""

from dataclasses import replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kubeharness.store.conformance.answers import good
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.unnest import pack_numbers, pack_texts

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
COLUMN = st.lists(st.none() | TEXT, min_size=1, max_size=6)


def unpacked(literal: str) -> list[str | None]:
    """What Postgres reads, by its rules: quotes, backslashes, and NULL without quotes."""
    cells: list[str | None] = []
    at = 1
    while at < len(literal) - 1:
        if literal[at] == '"':
            cell, at = "", at + 1
            while literal[at] != '"':
                at += literal[at] == "\\"
                cell, at = cell + literal[at], at + 1
            cells.append(cell)
            at += 2
        else:
            end = min(literal.find(",", at) % (len(literal) + 1), len(literal) - 1)
            cells.append(None if literal[at:end] == "NULL" else literal[at:end])
            at = end + 1
    return cells


@given(COLUMN)
@example(['a"b', "c\\", "", "NULL", None])
@example(['","'])
@example(["{}", "x"])
def test_texts_come_back(column: list[str | None]) -> None:
    assert unpacked(pack_texts(tuple(column))) == column


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_come_back(column: list[int | None]) -> None:
    assert unpacked(pack_numbers(tuple(column))) == [None if cell is None else str(cell) for cell in column]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT.filter(bool), min_size=2, max_size=4, unique=True))
async def test_postgres_gives_back_what_it_was_given(texts: list[str], world: World) -> None:
    items = [
        replace(
            world.admission(f"{text}-{n}", world.key(instance=f"{n}")),
            principal=text,
            labels={text: text},
            message=text.encode(),
        )
        for n, text in enumerate(texts)
    ]

    receipts = [good(answer) for answer in await world.store.admit(items)]

    for receipt, text in zip(receipts, texts, strict=True):
        view = await world.view(receipt.submission_id)
        assert view.labels == {text: text}
        assert view.message == text.encode()


async def test_a_single_row_and_several_are_written_alike(world: World) -> None:
    names = ['q"uote', "b\\s", "{c}", ","]
    items = [world.admission("a", world.key(instance=name)) for name in names]

    receipts = [good(answer) for answer in (*await world.store.admit(items[:1]), *await world.store.admit(items[1:]))]

    assert [(await world.view(receipt.submission_id)).key.instance for receipt in receipts] == names
