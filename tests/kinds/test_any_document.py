"""Whatever JSON lies where a spec should be: compile answers, and never raises."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kinds import samples
from kubeharness.kinds.checks import checks_for
from kubeharness.kinds.compiler import Compiled, Problems, compile_agent, compile_provider, compile_tool_server
from kubeharness.kinds.references import references_of

WHOLE = [samples.full_agent(), samples.full_scripted(), samples.provider(), samples.full_tool_server()]


def keys_in(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(keys_in, value.values()))
    return set().union(*map(keys_in, value)) if isinstance(value, list) else set()


KEYS = sorted(keys_in(WHOLE))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(KEYS)
ANY = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(KEYS), below, max_size=4),
    max_leaves=12,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path in a document."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in below for place in places(item, (*at, key)))]


def spoiled(value: Any, place: tuple[Any, ...], by: Any) -> Any:
    """The document with something else at a path."""
    if not place:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = spoiled(value[place[0]], place[1:], by)
    return copy


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A sound object with something odd in one or two places of its spec or metadata."""
    document: dict[str, Any] = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 2))):
        below = [place for place in places(document) if place and place[0] in ("spec", "metadata")]
        document = spoiled(document, draw(st.sampled_from(below)), draw(ANY))
    return document


@settings(max_examples=300, deadline=None)
@given(documents())
def test_any_document_is_compiled_or_explained_c48(document: dict[str, Any]) -> None:
    there = {"demo": document}, {"everything": document}, {"prompts": document}
    results: list[object] = [
        compile_agent(document, providers=there[0], tool_servers=there[1], config_maps=there[2]),
        compile_agent(samples.full_agent(), providers=there[0], tool_servers=there[1], config_maps=there[2]),
        compile_provider(document),
        compile_tool_server(document),
    ]

    checks_for(document)
    references_of(document)
    for result in results:
        if isinstance(result, Problems):
            assert result.items
            assert all(item.field and item.message for item in result)
        elif isinstance(result, Compiled):
            assert result.stored.id.startswith("sha256:")
