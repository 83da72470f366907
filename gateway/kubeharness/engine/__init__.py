"""The engine: admission, claims, attempts, records, settlement. It meets the outside only by its ports."""
