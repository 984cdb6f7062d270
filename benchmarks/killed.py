"""A run that is killed in the middle of a round, for a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import fedsim
from fedsim.config.run import RunConfig
from fedsim.storage import checkpoint
from fedsim.training import driver


class Killer(fedsim.Callback):
    """Ends its process as a kill would, in the middle of the round after a given one.

    Args:
        run: the run's directory, in which there is a checkpoint when it is killed.
        after: the round, from 1.
        part: of the time that this round took, until the kill, which may be before it is written.
    """

    reads_files = False

    def __init__(self, run: Path, after: int, part: float) -> None:
        self.run, self.after, self.part = run, after, part
        self.begun = time.monotonic()

    def on_round_end(self, round: int, rows: Any) -> Literal["stop"] | None:
        """Sets the alarm, whose default is the end of the process; or kills it where it is late."""
        if round > self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        if round == self.after:
            took = time.monotonic() - self.begun
            while not checkpoint.records(self.run):  # a thread is writing it
                time.sleep(0.01)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(1e-4, self.part * took))
        self.begun = time.monotonic()
        return None


def begin(settings: Mapping[str, Any], out: Path, after: int, part: float) -> None:
    """A run that is killed; in a process of its own."""
    driver.run(RunConfig(**settings), out, [Killer(out, after, part)])
