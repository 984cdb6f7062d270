"""Scores of models, and the decomposition of the global loss."""
