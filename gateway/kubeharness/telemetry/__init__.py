"""Adapters on the engine's two seams, and logs."""
