"""The documents that the tests apply: whole and new at each call."""

import base64
from typing import Any

Json = dict[str, Any]
API = "kubeharness.dev/v1alpha1"


def provider(name: str = "wire", *, base_url: str, secret: str | None = None) -> Json:
    """A model wire on this machine, with the key of a Secret or without one."""
    spec: Json = {"type": "OpenAICompatible", "baseURL": base_url, "insecure": "Allow"}
    if secret is not None:
        spec["apiKeySecretRef"] = {"name": secret, "key": "apiKey"}
    return {"apiVersion": API, "kind": "ModelProvider", "metadata": {"name": name}, "spec": spec}


def scripted(name: str = "script", **script: Any) -> Json:
    """A model that is played."""
    spec = {"type": "Scripted", "scripted": script}
    return {"apiVersion": API, "kind": "ModelProvider", "metadata": {"name": name}, "spec": spec}


def tool_server(name: str = "everything", *, url: str, **spec: Any) -> Json:
    """An MCP server on this machine."""
    return {
        "apiVersion": API,
        "kind": "ToolServer",
        "metadata": {"name": name},
        "spec": {"type": "MCP", "url": url, "insecure": "Allow", **spec},
    }


def agent(
    name: str = "demo",
    *,
    prompt: str | None = "Be brief.",
    provider: str = "wire",
    tools: str | None = None,
    **spec: Any,
) -> Json:
    """An Agent on a provider, with all tools of a ToolServer or without."""
    body: Json = {
        "model": {"providerRef": {"name": provider}, "name": "test-model", "contextWindow": 100_000},
        "systemPrompt": prompt,
        **spec,
    }
    if tools is not None:
        body["tools"] = [{"name": "tools", "toolServer": {"ref": {"name": tools}}}]
    metadata = {"name": name}
    body = {field: value for field, value in body.items() if value is not None}
    return {"apiVersion": API, "kind": "Agent", "metadata": metadata, "spec": body}


def secret(name: str = "key", value: str | bytes = "sk-test") -> Json:
    """A Secret with one key."""
    raw = value.encode() if isinstance(value, str) else value
    data = {"apiKey": base64.b64encode(raw).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


def config_map(name: str = "prompts", **data: str) -> Json:
    """A ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
