"""Kubeharness: a Kubernetes-native, durable harness for LLM agents.

The core is usable alone (`docs/tutorial/core-loop.md`); these are the few names that a program may rely on. The rest
of the public surface is the CRDs, the HTTP API, the record schema and the chart values.
"""

from kubeharness.core.loop import AgentLoop, AgentLoopContext
from kubeharness.core.messages import ProviderMessage, ToolCall, ToolDefinition, ToolResult
from kubeharness.core.ports import Provider, ToolRuntime

__all__ = [
    "AgentLoop",
    "AgentLoopContext",
    "Provider",
    "ProviderMessage",
    "ToolCall",
    "ToolDefinition",
    "ToolResult",
    "ToolRuntime",
]
