"""The few names that a program may rely on do not change by accident."""

import kubeharness


def test_the_public_names_are_these() -> None:
    assert kubeharness.__all__ == [
        "AgentLoop",
        "AgentLoopContext",
        "Provider",
        "ProviderMessage",
        "ToolCall",
        "ToolDefinition",
        "ToolResult",
        "ToolRuntime",
    ]
    assert all(hasattr(kubeharness, name) for name in kubeharness.__all__)
