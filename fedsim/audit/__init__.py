"""Rounds of a finished run done again: compared, changed, or without a client."""
