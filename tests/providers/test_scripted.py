"""The Scripted provider: every condition, every step, and that equal requests get equal answers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core.errors import ProviderAuth, ProviderError, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.events import CompletionDelta, CompletionEnd, CompletionStart, ReasoningEnd, ReasoningStart
from kubeharness.core.messages import ProviderMessage, ThinkingPart, ToolCall, Usage
from kubeharness.providers.scripted import ScriptedProvider
from support.properties import patient
from support.turns import turn_of

CLOCK_CALL = ToolCall("call_1", "clock", provider_call_id="call_1")


def user(text: str) -> ProviderMessage:
    return ProviderMessage(role="user", content=text)


def asked(*calls: ToolCall, text: str = "") -> ProviderMessage:
    return ProviderMessage(role="assistant", content=text, tool_calls=calls)


def outcome(call: str, content: str) -> ProviderMessage:
    return ProviderMessage(role="tool", content=content, tool_call_id=call)


def scripted(rules: Any, *, model: str = "m", failed_tries: int = 0, **spec: Any) -> ScriptedProvider:
    return ScriptedProvider({"rules": rules, **spec}, model, failed_tries)


async def says(
    rules: Any,
    messages: Sequence[ProviderMessage] | str,
    *,
    model: str = "m",
    failed_tries: int = 0,
) -> str:
    return (await turn_of(scripted(rules, model=model, failed_tries=failed_tries), messages)).message.content


def when(**conditions: Any) -> list[dict[str, Any]]:
    return [{"when": conditions, "steps": [{"text": "fits"}]}, {"steps": [{"text": "does not"}]}]


async def test_no_rule_fits_and_the_input_is_echoed() -> None:
    assert await says([], "hello") == "You said: hello"
    assert await says([{"when": {"contains": "bye"}, "steps": [{"text": "no"}]}], "hello") == "You said: hello"


async def test_the_first_rule_whose_conditions_all_hold_wins() -> None:
    rules = [
        {"when": {"contains": "time", "turn": 2}, "steps": [{"text": "one"}]},
        {"when": {"contains": "time"}, "steps": [{"text": "two"}]},
        {"steps": [{"text": "three"}]},
    ]

    assert await says(rules, "what time is it") == "two"


async def test_contains_looks_at_the_last_user_text_in_any_case() -> None:
    assert await says(when(contains="TIME"), "What time is it?") == "fits"
    assert await says(when(contains="time"), [user("what time"), asked(text="noon"), user("thanks")]) == "does not"


async def test_contains_looks_at_the_body_of_a_signal_too() -> None:
    assert await says(when(contains="invoice 7"), '<signal type="mail">\nInvoice 7 is due\n</signal>') == "fits"


async def test_turn_counts_the_model_turns_since_the_last_user_text() -> None:
    first = [user("a"), asked(text="b"), user("c")]
    second = [*first, asked(CLOCK_CALL), outcome("call_1", "success: noon")]

    assert await says(when(turn=1), first) == "fits"
    assert await says(when(turn=2), second) == "fits"
    assert await says(when(turn=1), [*second, user("steered")]) == "fits"


async def test_after_tool_names_the_tool_whose_outcome_came_last() -> None:
    batch = [user("a"), asked(CLOCK_CALL, ToolCall("call_2", "echo")), outcome("call_1", "success: noon")]
    both = [*batch, outcome("call_2", "success: hi")]

    assert await says(when(afterTool="clock"), batch) == "fits"
    assert await says(when(afterTool="echo"), both) == "fits"
    assert await says(when(afterTool="clock"), both) == "does not"
    assert await says(when(afterTool="echo"), [*both, user("steered")]) == "fits"
    assert await says(when(afterTool="echo"), [*both, asked(text="done"), user("next")]) == "does not"


async def test_try_is_one_plus_the_failed_tries_and_starts_anew_after_a_message() -> None:
    assert await says(when(**{"try": 1}), "a") == "fits"
    assert await says(when(**{"try": 3}), "a", failed_tries=2) == "fits"

    provider = scripted(when(**{"try": 2}), failed_tries=1)
    assert (await turn_of(provider, "a")).message.content == "fits"
    assert (await turn_of(provider, "a")).message.content == "does not"


async def test_model_and_system_contains() -> None:
    assert await says(when(model="small"), "a", model="small") == "fits"
    assert await says(when(model="small"), "a", model="large") == "does not"
    system = ProviderMessage(role="system", content="You are a Butler.")
    assert await says(when(systemContains="butler"), [system, user("a")]) == "fits"
    assert await says(when(systemContains="cook"), [system, user("a")]) == "does not"


async def test_steps_are_said_in_order_in_chunks() -> None:
    spec: Any = {
        "chunkCharacters": 4,
        "rules": [
            {"steps": [{"reasoning": "let me see"}, {"text": "It is noon."}, {"usage": {"input": 20, "output": 8}}]}
        ],
    }
    turn = await turn_of(ScriptedProvider(spec, "m"), "a")

    kinds = [type(event).__name__ for event in turn.events]
    assert kinds == [
        "CompletionStart",
        *("ReasoningStart", "ReasoningDelta", "ReasoningDelta", "ReasoningDelta", "ReasoningEnd"),
        *("CompletionDelta",) * 3,
        "CompletionEnd",
    ]
    assert turn.deltas == ["It i", "s no", "on."]
    assert turn.reasoning == "let me see"
    assert turn.message.parts[0] == ThinkingPart("let me see")
    assert turn.message.content == "It is noon."
    assert turn.message.usage == Usage(input=20, output=8)
    assert turn.message.stop_reason == "stop"
    assert turn.message.model == "m"


async def test_tool_calls_have_distinct_ids_and_filled_arguments() -> None:
    steps = [
        {"toolCall": {"name": "echo", "arguments": {"text": "{{input}}!", "list": ["{{turn}}"], "n": 1}}},
        {"toolCall": {"name": "echo", "arguments": {"text": "{{call}} by {{model}}"}}},
        {"toolCall": {"name": "clock"}},
    ]
    message = (await turn_of(scripted([{"steps": steps}]), "hi")).message

    assert [call.id for call in message.tool_calls] == ["call_1", "call_2", "call_3"]
    assert message.tool_calls[0].arguments == {"text": "hi!", "list": ["1"], "n": 1}
    assert message.tool_calls[1].arguments == {"text": "2 by m"}
    assert message.tool_calls[2].arguments == {}
    assert message.stop_reason == "tool_calls"


async def test_calls_go_on_counting_over_the_conversation() -> None:
    message = (
        await turn_of(
            scripted([{"steps": [{"toolCall": {"name": "clock"}}]}]),
            [user("a"), asked(CLOCK_CALL), outcome("call_1", "success: noon")],
        )
    ).message

    assert message.tool_calls[0].id == "call_2"


async def test_arguments_that_are_a_text_come_raw_c31() -> None:
    steps = [{"toolCall": {"name": "write", "arguments": '{"path":"b'}}]
    (call,) = (await turn_of(scripted([{"steps": steps}]), "hi")).message.tool_calls

    assert (call.arguments, call.raw_arguments) == ({}, '{"path":"b')


async def test_placeholders_are_filled_once_and_never_read_again_c55() -> None:
    rules = [{"steps": [{"text": "{{input}}|{{tool}}|{{turn}}|{{system}}|{{model}}|{{other}}"}]}]
    messages = [
        ProviderMessage(role="system", content="sys"),
        user("{{tool}} {{7*7}}"),
        asked(CLOCK_CALL),
        outcome("call_1", "error: {{input}}"),
    ]

    assert await says(rules, messages) == "{{tool}} {{7*7}}|{{input}}|2|sys|m|{{other}}"


async def test_what_cannot_be_stored_is_replaced_c12_c13() -> None:
    assert await says([], "a\x00b \ud83d c") == "You said: a\N{REPLACEMENT CHARACTER}b \N{REPLACEMENT CHARACTER} c"


async def test_delays_are_waited_and_counted() -> None:
    spec: Any = {
        "chunkCharacters": 2,
        "chunkDelayMilliseconds": 20,
        "rules": [{"steps": [{"delayMilliseconds": 30}, {"text": "abcd"}]}],
    }
    began = time.monotonic()
    turn = await turn_of(ScriptedProvider(spec, "m"), "a")

    assert time.monotonic() - began >= 0.07
    assert isinstance(turn.events[-1], CompletionEnd)
    assert turn.events[-1].duration_ms == 70


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("Transient", ProviderTransient),
        ("Overflow", ProviderOverflow),
        ("Fatal", ProviderFatal),
        ("Auth", ProviderAuth),
    ],
)
async def test_an_error_step_raises_its_kind(kind: str, error: type[ProviderError]) -> None:
    rules = [{"steps": [{"text": "so far"}, {"error": {"kind": kind, "message": "no more"}}]}]

    with pytest.raises(error, match=r"^no more$"):
        await says(rules, "a")


async def test_a_transient_error_says_when_to_come_back() -> None:
    rules = [{"steps": [{"error": {"kind": "Transient", "message": "busy", "retryAfterSeconds": 2.5}}]}]

    with pytest.raises(ProviderTransient) as raised:
        await says(rules, "a")
    assert raised.value.retry_after == 2.5


async def test_an_error_before_any_word_comes_without_a_start() -> None:
    provider = scripted([{"steps": [{"error": {"kind": "Fatal"}}]}])

    with pytest.raises(ProviderFatal):
        await anext(aiter(provider.stream([user("a")], [])))


@pytest.mark.parametrize(("end", "reason"), [("Length", "length"), ("Refusal", "refusal")])
async def test_an_end_has_its_stop_reason_and_nothing_follows(end: str, reason: str) -> None:
    rules = [{"steps": [{"text": "half"}, {"end": end}, {"text": "other half"}]}]
    message = (await turn_of(scripted(rules), "a")).message

    assert (message.content, message.stop_reason) == ("half", reason)


async def test_a_cut_stream_just_stops_c35() -> None:
    provider = scripted([{"steps": [{"text": "half"}, {"end": "Cut"}]}])
    events = [event async for event in provider.stream([user("a")], [])]

    assert events == [CompletionStart(), CompletionDelta("half")]


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"rules": 1}, "rules"),
        ({"rules": [1]}, r"rules\[0\]"),
        ({"chunkCharacters": "x"}, "chunkCharacters"),
        ({"rules": [{"when": {"contain": "x"}}]}, r"rules\[0\].when.contain"),
        ({"rules": [{"when": {"turn": "x"}}]}, r"rules\[0\].when.turn"),
        ({"rules": [{"steps": [{"text": "a", "end": "Cut"}]}]}, r"rules\[0\].steps\[0\]"),
        ({"rules": [{"steps": [{"say": "a"}]}]}, r"rules\[0\].steps\[0\].say"),
        ({"rules": [{"steps": [{"end": "Stop"}]}]}, r"rules\[0\].steps\[0\].end"),
        ({"rules": [{"steps": [{"error": {"kind": "Bad"}}]}]}, r"rules\[0\].steps\[0\].error.kind"),
        ({"rules": [{"steps": [{"toolCall": {}}]}]}, r"rules\[0\].steps\[0\].toolCall.name"),
    ],
)
async def test_a_script_that_cannot_be_read_is_fatal_and_names_the_place(spec: Any, place: str) -> None:
    with pytest.raises(ProviderFatal, match=f"^scripted.{place}: "):
        await turn_of(ScriptedProvider(spec, "m"), "a")


async def test_closing_the_stream_ends_a_delay() -> None:
    provider = scripted([{"steps": [{"text": "a"}, {"delayMilliseconds": 60_000}]}])

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            _ = [event async for event in provider.stream([user("a")], [])]


_texts = st.text(max_size=12)
_calls = st.builds(ToolCall, st.sampled_from(["c1", "c2"]), st.sampled_from(["clock", "echo"]))
_messages = st.lists(
    st.one_of(
        st.builds(ProviderMessage, role=st.sampled_from(["user", "system"]), content=_texts),
        st.builds(ProviderMessage, role=st.just("assistant"), content=_texts, tool_calls=st.tuples(_calls)),
        st.builds(ProviderMessage, role=st.just("tool"), content=_texts, tool_call_id=st.sampled_from(["c1", "c2"])),
    ),
    max_size=8,
)
_whens = st.fixed_dictionaries(
    {},
    optional={
        "contains": _texts,
        "turn": st.integers(1, 3),
        "afterTool": st.sampled_from(["clock", "echo"]),
        "try": st.integers(1, 3),
        "systemContains": _texts,
    },
)
_steps = st.one_of(
    st.builds(lambda text: {"text": text + "{{input}}{{tool}}"}, _texts),
    st.builds(lambda text: {"reasoning": text + "{{turn}}"}, _texts),
    st.just({"toolCall": {"name": "echo", "arguments": {"a": "{{call}}"}}}),
    st.just({"usage": {"input": 1}}),
)
_rules = st.lists(st.fixed_dictionaries({"when": _whens, "steps": st.lists(_steps, max_size=4)}), max_size=4)


@given(messages=_messages, rules=_rules, tries=st.integers(0, 2), size=st.integers(1, 5))
@patient
def test_the_same_request_gets_the_same_events(
    messages: list[ProviderMessage], rules: list[dict[str, Any]], tries: int, size: int
) -> None:
    spec: dict[str, Any] = {"rules": rules, "chunkCharacters": size}

    async def ask() -> Any:
        return await turn_of(ScriptedProvider(spec, "m", tries), [replace(message) for message in messages])

    first, again = asyncio.run(ask()), asyncio.run(ask())

    assert first == again
    assert "".join(first.deltas) == first.message.content
    ends = [event.reasoning for event in first.events if isinstance(event, ReasoningEnd)]
    assert "".join(ends) == first.reasoning
    assert sum(isinstance(event, ReasoningStart) for event in first.events) == len(ends)
