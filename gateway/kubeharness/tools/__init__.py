"""Tools behind `core.ports.ToolRuntime`. Imports core, engine.ports, engine.schemas, mcp and its HTTP client only."""
