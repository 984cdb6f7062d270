"""The error that the analysis raises on purpose."""

from __future__ import annotations


class AnalysisError(Exception):
    """Files that cannot be read, or runs that cannot be compared; the message is one line."""
