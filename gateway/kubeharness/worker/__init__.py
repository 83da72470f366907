"""A worker process: coordinator, checks and heads side by side, and health for a pod without HTTP traffic."""
