"""What is sent: legal for strict wires, whatever the log holds."""

import re
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from kubeharness.core.messages import ProviderMessage, ThinkingPart, ToolCall, ToolDefinition
from kubeharness.core.revision import ModelSettings
from kubeharness.providers.chat_request import chat_request, wire_parameters
from support.properties import patient

MODEL = ModelSettings(name="m", context_window=1000)


def sent(*messages: ProviderMessage) -> list[Any]:
    body: Any = chat_request(MODEL, messages, [])
    found: list[Any] = body["messages"]
    return found


def user(text: str, *images: str) -> ProviderMessage:
    return ProviderMessage(role="user", content=text, image_data_urls=images)


def test_only_settings_that_are_set_are_sent() -> None:
    assert chat_request(MODEL, [user("hi")], []) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    full = ModelSettings(name="m", context_window=1, max_tokens=5, temperature=0.0, top_p=0.5)
    assert chat_request(full, [], []).items() >= {"max_tokens": 5, "temperature": 0.0, "top_p": 0.5}.items()
    thinking = ModelSettings(name="m", context_window=1, max_tokens=5, reasoning_effort="low")
    assert chat_request(thinking, [], []).items() >= {"max_completion_tokens": 5, "reasoning_effort": "low"}.items()


def test_system_text_comes_first_in_one_message_c34() -> None:
    system = ProviderMessage(role="system", content="be kind")
    late = ProviderMessage(role="system", content="be brief")

    assert sent(user("a"), system, user("b"), late) == [
        {"role": "system", "content": "be kind\n\nbe brief"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_no_request_holds_an_empty_block_c28() -> None:
    thinking_only = ProviderMessage(role="assistant", parts=(ThinkingPart("hm"),))
    blank = ProviderMessage(role="assistant", content=" \n", tool_calls=(ToolCall("1.1.1.0", "t"),))
    result = ProviderMessage(role="tool", content="success: ", tool_call_id="1.1.1.0")
    messages = sent(user(" "), thinking_only, blank, result)

    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[0]["content"] == "(empty)"
    assert messages[1]["content"] is None
    assert messages[1]["tool_calls"]
    assert messages[2]["content"] == "success: (empty)"


def test_calls_that_share_an_id_are_sent_with_distinct_ones_c26() -> None:
    calls = tuple(
        ToolCall(f"1.1.1.{n}", "add", {"a": n}, provider_call_id=given) for n, given in enumerate(["x", "x", "", None])
    )
    results = [ProviderMessage(role="tool", content=f"success: {n}", tool_call_id=f"1.1.1.{n}") for n in range(4)]
    later = ProviderMessage(role="assistant", tool_calls=(ToolCall("1.1.2.0", "add", provider_call_id="x"),))
    messages = sent(user("a"), ProviderMessage(role="assistant", tool_calls=calls), *results, later)

    ids = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 5
    assert ids[0] == "x"
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids[:4]
    assert all(1 <= len(sent_id) <= 9 and sent_id.isalnum() for sent_id in ids)


def test_malformed_arguments_are_replayed_as_valid_json_c31() -> None:
    call = ToolCall("1.1.1.0", "write", raw_arguments='{"path":"b', provider_call_id="c")
    (message,) = sent(ProviderMessage(role="assistant", tool_calls=(call,)))

    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "write", "arguments": "{}"}}]


def test_a_name_that_the_model_made_up_does_not_brick_the_conversation_c38() -> None:
    calls = (ToolCall("a", "files/read v2"), ToolCall("b", ""), ToolCall("c", "x" * 90))
    (message,) = sent(ProviderMessage(role="assistant", tool_calls=calls))

    assert [call["function"]["name"] for call in message["tool_calls"]] == ["files_read_v2", "_", "x" * 64]


def test_images_of_outcomes_follow_the_batch() -> None:
    calls = (ToolCall("a", "shot"), ToolCall("b", "shot"))
    first = ProviderMessage(
        role="tool", content="success: ok", tool_call_id="a", image_data_urls=("data:image/png;base64,AA",)
    )
    second = ProviderMessage(role="tool", content="success: ok", tool_call_id="b")
    messages = sent(
        ProviderMessage(role="assistant", tool_calls=calls), first, second, user("now", "data:image/png;base64,BB")
    )

    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "user"]
    assert messages[3]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert messages[4]["content"][0] == {"type": "text", "text": "now"}


def test_a_thought_signature_goes_back_with_its_call() -> None:
    call = ToolCall("a", "t", provider_call_id="c", thought_signature="c2ln")
    (message,) = sent(ProviderMessage(role="assistant", tool_calls=(call,)))

    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}


def test_a_schema_is_sent_as_an_object_without_combinators_at_the_top_c42() -> None:
    original: Any = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "integer"}}}, True],
        "properties": {"a": {"enum": ["x"]}},
    }

    assert wire_parameters(original) == {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}, "b": {"type": "integer"}},
    }
    assert wire_parameters({}) == {"type": "object", "properties": {}}
    body: Any = chat_request(MODEL, [], [ToolDefinition("t", "says \ud83d", {})])
    assert body["tools"][0]["function"] == {
        "name": "t",
        "description": "says \N{REPLACEMENT CHARACTER}",
        "parameters": {"type": "object", "properties": {}},
    }


_texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=6)
_calls = st.builds(
    ToolCall,
    st.text("abc.", min_size=1, max_size=3),
    _texts,
    st.dictionaries(_texts, st.one_of(_texts, st.integers(-5, 5)), max_size=2),
    st.one_of(st.none(), st.text("xy ", max_size=2)),
    st.one_of(st.none(), _texts),
)


@given(
    st.lists(
        st.one_of(
            st.builds(ProviderMessage, role=st.sampled_from(["user", "system"]), content=_texts),
            st.builds(
                ProviderMessage,
                role=st.just("assistant"),
                content=_texts,
                tool_calls=st.lists(_calls, max_size=3, unique_by=lambda call: call.id).map(tuple),
            ),
        ),
        max_size=6,
    )
)
@patient
def test_every_request_can_be_sent_and_breaks_no_rule_of_a_strict_wire_c28(messages: list[ProviderMessage]) -> None:
    body = orjson.loads(orjson.dumps(chat_request(MODEL, messages, [])))

    ids = [call["id"] for message in body["messages"] for call in message.get("tool_calls", ())]
    assert len(ids) == len(set(ids))
    assert all(sent_id.strip() for sent_id in ids)
    names = [call["function"]["name"] for message in body["messages"] for call in message.get("tool_calls", ())]
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for message in body["messages"]:
        assert message.get("tool_calls") or message["content"].strip()
        assert message["content"] is None or message["content"].strip()
    assert [m["role"] for m in body["messages"]].count("system") <= 1
