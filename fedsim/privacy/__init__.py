"""Differential privacy: accounting, banded matrix factorisation."""
