"""A callback that ends a run by what no run expects."""

from __future__ import annotations

import fedsim


class Stop(BaseException):
    """An end that nobody expects; no callback's Exception would end a run."""


class Stopper(fedsim.Callback):
    """Ends the run after some rounds; remembers what it was told."""

    def __init__(self, after: int, error: type[BaseException] = Stop) -> None:
        self.after, self.error = after, error
        self.infos, self.rounds = [], []

    def on_run_start(self, info):
        self.infos.append(info)

    def on_round_end(self, round, rows):
        self.rounds.append(round)
        if round == self.after:
            raise self.error

    def on_run_end(self, summary):
        self.infos.append(summary)
