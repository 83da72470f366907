"""A Kubernetes-native durable harness for LLM agents.

The few names exported here are public; every other module is free to move.
"""

__all__: list[str] = []
