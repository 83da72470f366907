"""Model wires behind `core.ports.Provider`. Imports core, the model SDK (lazily) and its HTTP client only."""
