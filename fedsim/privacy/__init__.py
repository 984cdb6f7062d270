"""Differential privacy: accounting."""
