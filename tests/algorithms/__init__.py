"""One test file per method; what each is compared with lies in ``tests/oracles``."""
