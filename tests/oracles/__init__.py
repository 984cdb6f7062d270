"""Slow, plain float64 code written from the papers; imports nothing from fedsim."""
