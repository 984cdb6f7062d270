"""An observer that ends a run."""

from __future__ import annotations


class Stop(Exception):
    """An end that nobody expects."""


class Stopper:
    """Ends the run after some rounds; remembers what it was told."""

    def __init__(self, after: int, error: type[BaseException] = Stop) -> None:
        self.after, self.error = after, error
        self.infos, self.rows = [], []

    def started(self, info):
        self.infos.append(info)

    def round_done(self, row, seconds):
        self.rows.append(row["round"])
        if row["round"] == self.after:
            raise self.error

    def finished(self, store, summary):
        self.infos.append(summary)
