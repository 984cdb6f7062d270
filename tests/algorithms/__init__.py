"""One test file per family of methods; ``tests/oracles`` has what they are compared with."""
