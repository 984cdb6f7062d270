"""Simulated time and communication costs: how fast clients are and what they send."""
