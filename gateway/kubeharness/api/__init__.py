"""The HTTP API: requests in, one call to the runtime each, answers and event streams out."""
