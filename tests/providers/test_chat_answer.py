"""However a wire cuts its answer into chunks, the same message comes out."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core.events import CompletionDelta, ReasoningDelta, ReasoningEnd
from kubeharness.core.messages import ThinkingPart
from kubeharness.core.text import clean_text
from kubeharness.providers.chat_answer import ChatAnswer
from support.properties import patient
from support.rawwire import call, delta, text, usage

_texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)


def pieces(whole: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [whole[a:b] for a, b in pairwise(places)]


def read(chunks: list[dict[str, Any]]) -> tuple[ChatAnswer, list[Any]]:
    answer = ChatAnswer("m")
    events = [event for n, chunk in enumerate(chunks) for event in answer.take(chunk, n)]
    return answer, [*events, *answer.end(len(chunks))]


@given(_texts, _texts, st.lists(st.integers(0, 40), max_size=6))
@patient
def test_deltas_joined_are_the_text_and_hold_whole_characters_c30(said: str, thought: str, cuts: list[int]) -> None:
    # as a wire would: UTF-16 escapes, cut anywhere, half pairs included
    def escaped(value: str) -> list[str]:
        units = value.encode("utf-16-be", "surrogatepass")
        return pieces("".join(chr(int.from_bytes(units[n : n + 2], "big")) for n in range(0, len(units), 2)), cuts)

    chunks = [*(delta(reasoning=part) for part in escaped(thought)), *(text(part) for part in escaped(said))]
    answer, events = read([*chunks, delta("stop"), usage(1, 2)])
    message = answer.message()

    assert message.content == clean_text(said.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    assert message.content == "".join(event.text for event in events if isinstance(event, CompletionDelta))
    thoughts = "".join(part.text for part in message.parts if isinstance(part, ThinkingPart))
    assert thoughts == "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert thoughts == "".join(event.reasoning for event in events if isinstance(event, ReasoningEnd))
    assert answer.complete


_arguments = st.dictionaries(
    st.text("ab}", max_size=2), st.one_of(st.text('x"{}', max_size=4), st.integers(-(2**63), 2**63)), max_size=3
)


@given(
    st.lists(st.tuples(st.sampled_from(["read", "write"]), _arguments), min_size=1, max_size=4),
    st.lists(st.integers(0, 60), max_size=5),
    st.booleans(),
    st.booleans(),
)
@patient
def test_calls_come_out_whole_with_or_without_indexes_c27(
    calls: list[tuple[str, dict[str, Any]]], cuts: list[int], indexed: bool, repeated: bool
) -> None:
    chunks = []
    for n, (name, arguments) in enumerate(calls):
        index = n if indexed else None
        for m, part in enumerate(pieces(json.dumps(arguments), cuts)):
            first = m == 0 or repeated
            chunks.append(call(part, index=index, id=f"id{n}" if first else None, name=name if m == 0 else None))
    answer, _ = read([*chunks, delta("tool_calls")])
    found = answer.message().tool_calls

    assert [(call.name, call.arguments) for call in found] == calls
    assert len({call.id for call in found}) == len(calls)
    assert answer.message().stop_reason == "tool_calls"


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | _texts, lambda x: st.lists(x) | st.dictionaries(_texts, x))
)
@patient
def test_no_chunk_however_odd_breaks_the_reader(value: Any) -> None:
    keys = ("content", "reasoning", "refusal", "tool_calls")
    odd: list[Any] = [
        {"choices": value, "usage": value},
        {"choices": [value]},
        {"choices": [{"delta": value, "finish_reason": value}]},
        {"choices": [{"delta": dict.fromkeys(keys, value)}]},
        delta(
            tool_calls=[
                {"index": value, "id": value, "function": value},
                {"function": {"arguments": value, "name": value}},
            ]
        ),
        {"usage": {"prompt_tokens": value, "prompt_tokens_details": value}},
    ]
    answer, _ = read(odd)

    answer.message()
