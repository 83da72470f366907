"""What the node tier promises, shown on a real node. Not among the tests of `make test`: `pytest tests/node`."""
