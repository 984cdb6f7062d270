"""Figures: a file for each, on one grid of panels."""
