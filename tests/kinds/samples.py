"""Sound objects of each kind, whole and new at each call, for tests to break one field at a time."""

from typing import Any

API = "kubeharness.dev/v1alpha1"


def agent(name: str = "assistant", **spec: Any) -> dict[str, Any]:
    """The smallest Agent, with these fields of its spec set; None takes one out."""
    return _object(
        "Agent",
        name,
        {
            "model": {"providerRef": {"name": "demo"}, "name": "small", "contextWindow": 8_000},
            "systemPrompt": "Be brief.",
        },
        spec,
    )


def full_agent() -> dict[str, Any]:
    """An Agent with every field set but the other half of each union."""
    return agent(
        description="Does everything.",
        model={
            "providerRef": {"name": "demo"},
            "name": "large",
            "contextWindow": 200_000,
            "maxTokens": 4_096,
            "temperature": "0.7",
            "topP": "0.95",
            "reasoningEffort": "High",
        },
        systemPrompt=None,
        systemPromptFrom={"configMapKeyRef": {"name": "prompts", "key": "assistant.md"}},
        tools=[
            {"name": "clock", "builtin": {"name": "clock"}},
            {"name": "everything", "toolServer": {"ref": {"name": "everything"}, "include": ["echo", "add"]}},
        ],
        durability={"maxAttempts": 3, "submissionTimeoutSeconds": 600, "maxTurns": 8},
    )


def scripted(name: str = "demo", **script: Any) -> dict[str, Any]:
    """A Scripted provider."""
    return _object("ModelProvider", name, {"type": "Scripted", "scripted": script}, {})


def full_scripted() -> dict[str, Any]:
    """A script with every step and every condition."""
    return scripted(
        chunkCharacters=4,
        chunkDelayMilliseconds=10,
        rules=[
            {
                "when": {
                    "contains": "time",
                    "turn": 1,
                    "afterTool": "clock",
                    "try": 2,
                    "model": "small",
                    "systemContains": "brief",
                },
                "steps": [
                    {"reasoning": "Hm."},
                    {
                        "toolCall": {
                            "name": "clock",
                            "arguments": {"n": 1.5, "deep": {"a": ["{{input}}"]}},
                        }
                    },
                    {"delayMilliseconds": 5},
                    {"usage": {"input": 20, "output": 8}},
                ],
            },
            {"steps": [{"error": {"kind": "Transient", "message": "busy", "retryAfterSeconds": 1}}]},
            {"steps": [{"text": "It is {{tool}}."}, {"end": "Length"}]},
        ],
    )


def provider(name: str = "demo", **spec: Any) -> dict[str, Any]:
    """An OpenAICompatible provider with its key in a Secret."""
    return _object(
        "ModelProvider",
        name,
        {
            "type": "OpenAICompatible",
            "baseURL": "https://models.example/v1",
            "apiKeySecretRef": {"name": "model-key", "key": "token"},
        },
        spec,
    )


def tool_server(name: str = "everything", **spec: Any) -> dict[str, Any]:
    """A ToolServer reached by URL."""
    return _object("ToolServer", name, {"type": "MCP", "url": "https://tools.example/mcp"}, spec)


def full_tool_server() -> dict[str, Any]:
    """A ToolServer with every field set but url."""
    return tool_server(
        url=None,
        serviceRef={"name": "everything", "port": 3001, "path": "/mcp"},
        insecure="Allow",
        transport="StreamableHTTP",
        headers=[
            {"name": "X-Team", "value": "a"},
            {"name": "Authorization", "secretKeyRef": {"name": "tool-key", "key": "header"}},
        ],
        discovery={"intervalSeconds": 60, "mode": "Optional"},
        tools=[{"name": "echo", "idempotent": True, "timeoutSeconds": 5}],
    )


def config_map(name: str = "prompts", **data: str) -> dict[str, Any]:
    """A ConfigMap with a prompt in it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": data or {"assistant.md": "You are an assistant."},
    }


def _object(kind: str, name: str, spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    whole = {**spec, **changes}
    return {
        "apiVersion": API,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {field: value for field, value in whole.items() if value is not None},
    }
