"""Callbacks: code of the user's that follows a run and may end it, but never change its results."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from fedsim.config.run import RunConfig
from fedsim.core.measures import Measures
from fedsim.core.rows import Row

logger = logging.getLogger("fedsim")
Rows = Mapping[str, Sequence[Row]]
"""The rows that a round added, by table."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a run is, before its first round."""

    out: Path
    algorithm: str
    dataset: str
    model: str
    num_parameters: int  # P, those that are trained
    num_clients: int  # K, without clients that are held out from training
    cohort_size: int
    rounds: int  # of the whole run
    engine: str  # one line on where the work is done
    seed: int
    config: RunConfig
    notes: tuple[str, ...] = ()  # further lines on the data, for people
    done: int = 0  # rounds that were complete when the run was resumed
    measures: Measures = field(default_factory=Measures)  # the scores of its task, by name


class Callback:
    """Follows a run: override what is needed, and pass it to ``fedsim.run(callbacks=[...])``.

    An exception in a callback is logged as a warning and does not end the run.
    """

    reads_files: ClassVar[bool] = True
    """Whether :meth:`on_round_end` needs the round on disk. If no callback does, it is called at
    once, without the row of models.csv, while the round is written and the next one begins."""

    def on_run_start(self, info: RunInfo) -> None:
        """Before the first round, also of a run that is resumed."""

    def on_round_end(self, round: int, rows: Rows) -> Literal["stop"] | None:  # noqa: ARG002
        """After each round, see :attr:`reads_files`; ``"stop"`` ends the run in order.

        Args:
            round: from 1, as in the tables.
            rows: by table the rows that the round added; fields as attributes or by name.
        """
        return None

    def on_run_end(self, summary: Mapping[str, object]) -> None:
        """After the last round, with the row of summary.csv."""

    def close(self) -> None:
        """When the run is over in whatever way, also after an error: gives back what was opened."""


@dataclass(frozen=True)
class Callbacks:
    """All callbacks of a run, called in their order; the same failure is reported once."""

    callbacks: Sequence[Callback] = ()
    reported: set[str] = field(default_factory=set, init=False)

    @property
    def read_files(self) -> bool:
        """Whether one of them has :attr:`Callback.reads_files`."""
        return any(callback.reads_files for callback in self.callbacks)

    def close(self) -> None:
        """Whatever happened."""
        self.call("close")

    def call(self, hook: str, *arguments: object) -> list[object]:
        """What a hook of each answers, without those that failed; dictionaries are read-only."""
        frozen = [MappingProxyType(dict(a)) if isinstance(a, Mapping) else a for a in arguments]
        answers = []
        for callback in self.callbacks:
            try:
                answers.append(getattr(callback, hook)(*frozen))
            except (Exception, SystemExit) as error:
                message = f"{hook} of callback {type(callback).__name__} failed: {error!r}"
                if message not in self.reported:
                    self.reported.add(message)
                    logger.warning("%s", message)
                logger.debug("its traceback", exc_info=True)
        return answers
