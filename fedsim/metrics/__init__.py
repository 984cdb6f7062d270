"""Scores of models on data, and the decomposition of the global loss."""
