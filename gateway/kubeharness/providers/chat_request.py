"""Our messages as the body of an OpenAI-compatible chat completion. Pure, and the same bytes for the same request.

Nothing empty is ever sent: wires refuse blank text blocks and assistant messages without content (C28).
"""

import hashlib
import re
from collections.abc import Sequence

import orjson

from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition
from kubeharness.core.revision import ModelSettings
from kubeharness.core.text import as_object, clean_json, clean_text

NOTHING = "(empty)"
"""What stands for a text that would be blank."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
_COMBINATORS = ("anyOf", "oneOf", "allOf", "not", "enum")


def chat_request(
    model: ModelSettings, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
) -> JsonObject:
    """The body: streamed, with usage, and only those settings that are set."""
    body: JsonObject = {
        "model": model.name,
        "messages": list(_messages(messages)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    if model.max_tokens is not None:
        # the newer name is known exactly where reasoning effort is, and there the older one is refused
        body["max_completion_tokens" if model.reasoning_effort else "max_tokens"] = model.max_tokens
    if model.temperature is not None:
        body["temperature"] = model.temperature
    if model.top_p is not None:
        body["top_p"] = model.top_p
    if model.reasoning_effort is not None:
        body["reasoning_effort"] = model.reasoning_effort
    return body


def _messages(messages: Sequence[ProviderMessage]) -> list[JsonObject]:
    ids = _CallIds()
    system = "\n\n".join(m.content for m in messages if m.role == "system" and m.content.strip())
    sent: list[JsonObject] = [{"role": "system", "content": clean_text(system)}] if system else []
    shown: list[str] = []  # images of the outcomes just sent: a tool message holds text only
    for message in messages:
        if shown and message.role != "tool":
            sent.append(_with_images("Images that the tools returned:", shown))
            shown = []
        match message.role:
            case "system":
                pass
            case "user" if message.image_data_urls:
                sent.append(_with_images(message.content, message.image_data_urls))
            case "user":
                sent.append({"role": "user", "content": _said(message.content)})
            case "assistant":
                sent += _assistant(message, ids)
            case "tool":
                sent.append(
                    {
                        "role": "tool",
                        "tool_call_id": ids.wire(message.tool_call_id or ""),
                        "content": _said(message.content),
                    }
                )
                shown += message.image_data_urls
    if shown:
        sent.append(_with_images("Images that the tools returned:", shown))
    return sent


def _assistant(message: ProviderMessage, ids: "_CallIds") -> list[JsonObject]:
    text = clean_text(message.content)
    sent: JsonObject = {"role": "assistant", "content": text if text.strip() else None}
    if message.tool_calls:
        sent["tool_calls"] = [_call(call, ids.open(call)) for call in message.tool_calls]
    elif not text.strip():
        return []
    return [sent]


def _call(call: ToolCall, wire_id: str) -> JsonObject:
    # what came malformed is kept in the record and replayed as valid JSON (C31)
    arguments = "{}" if call.raw_arguments is not None else orjson.dumps(clean_json(call.arguments)).decode()
    sent: JsonObject = {
        "id": wire_id,
        "type": "function",
        "function": {"name": _legal_name(call.name), "arguments": arguments},
    }
    if call.thought_signature is not None:
        sent["extra_content"] = {"google": {"thought_signature": call.thought_signature}}
    return sent


def _legal_name(name: str) -> str:
    """A model may have made one up that no wire takes back; its outcome already says that there is none."""
    return _ILLEGAL.sub("_", name)[:64] or "_"


class _CallIds:
    """Ours → the wire's: the provider's own where it is unique in the request, else one that is (C26)."""

    def __init__(self) -> None:
        self._wire: dict[str, str] = {}
        self._used: set[str] = set()

    def open(self, call: ToolCall) -> str:
        wire = clean_text(call.provider_call_id or "")
        n = 0
        while not wire.strip() or wire in self._used:
            # nine characters of hex are legal for every wire that is strict about it
            wire = hashlib.sha256(f"{call.id}/{n}".encode(errors="replace")).hexdigest()[:9]
            n += 1
        self._used.add(wire)
        self._wire[call.id] = wire
        return wire

    def wire(self, call_id: str) -> str:
        return self._wire.get(call_id, call_id)


def _with_images(text: str, urls: Sequence[str]) -> JsonObject:
    parts: list[Json] = [{"type": "text", "text": _said(text)}] if text.strip() else []
    parts += [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": parts}


def _said(text: str) -> str:
    text = clean_text(text)
    bare = text.strip()
    return f"{bare} {NOTHING}" if bare in ("success:", "error:") else text if bare else NOTHING


def _tool(tool: ToolDefinition) -> JsonObject:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": clean_text(tool.description),
            "parameters": wire_parameters(tool.parameters),
        },
    }


def wire_parameters(schema: JsonObject) -> JsonObject:
    """The schema in a form that wires accept: an object without combinators at the top.

    Only what the model is told is adapted; arguments are checked against the original (C42).
    """
    properties: JsonObject = {}
    for keyword in ("anyOf", "oneOf", "allOf"):
        options = schema.get(keyword)
        for option in options if isinstance(options, list) else []:
            properties |= as_object((as_object(option) or {}).get("properties")) or {}
    properties |= as_object(schema.get("properties")) or {}
    kept = {key: value for key, value in schema.items() if key not in (*_COMBINATORS, "$schema", "$id")}
    return {**kept, "type": "object", "properties": properties}
