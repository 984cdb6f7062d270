"""The files of a search: its settings, and its trials as they end.

``study.json`` holds what the search was begun with, ``trials.jsonl`` a line of JSON per trial that
has ended, which alone the search goes on from, and ``trials.csv`` the same trials as a table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsim.core import files
from fedsim.core.errors import DataError, one_line
from fedsim.core.measures import Measures
from fedsim.core.reading import parse_json
from fedsim.storage.tables import cell, rows_text

if TYPE_CHECKING:
    from fedsim.core.settings import Scalar

STUDY, TRIALS, TABLE = "study.json", "trials.jsonl", "trials.csv"
State = Literal["complete", "pruned", "failed"]
STATES: tuple[State, ...] = ("complete", "pruned", "failed")
KEYS = {"by", "seeds", "trials"}
"""Of study.json, without which it is not that of a search."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that has ended."""

    number: int  # from 0, in the order in which the trials were proposed
    params: Mapping[str, Scalar]  # the values of the searched keys
    state: State  # pruned: stopped early; failed: has no value
    value: float | None = None  # of a pruned trial that of the round after which it was stopped
    reports: Mapping[int, float] = field(default_factory=dict)  # by round, means over the seeds
    marks: Mapping[str, Any] = field(default_factory=dict)  # what the pruner noted
    error: str | None = None

    @property
    def folder(self) -> str:
        """The name of the directory of its runs."""
        return folder_of(self.number)


def folder_of(number: int) -> str:
    """The name of the directory of a trial's runs."""
    return f"trial-{number:04d}"


def lowest(by: str, measures: Measures) -> bool:
    """Whether the lowest value of a metric, a column of rounds.csv, is the best."""
    score = measures.scores.get(by.removeprefix("val_"))
    return score is not None and score.lowest


def best(
    trials: Sequence[Trial],
    by: str,
    measures: Measures = Measures(),  # noqa: B008
) -> list[Trial]:
    """The complete trials, the best first; of equal values the one proposed first."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    sign = 1 if lowest(by, measures) else -1
    return sorted(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def write(folder: Path, keys: Sequence[str], trials: Sequence[Trial]) -> None:
    """Writes trials.jsonl, then trials.csv with a column per searched key."""
    lines = "".join(json.dumps(asdict(trial)) + "\n" for trial in trials)
    files.write(folder / TRIALS, lines.encode())
    rows = [
        {"trial": trial.number, "state": trial.state, "value": trial.value, "run": trial.folder}
        | {key: cell_of(trial.params[key]) for key in keys}
        for trial in trials
    ]
    text = rows_text(["trial", "state", "value", *keys, "run"], rows, header=True)
    files.write(folder / TABLE, text.encode())


def read(folder: Path) -> list[Trial]:
    """The trials in trials.jsonl, by number; none where there is no such file."""
    with files.reading(folder / TRIALS) as path:
        lines = path.read_bytes().splitlines() if path.exists() else []
    trials = []
    for number, line in enumerate(lines, 1):
        try:
            values = parse_json(line)
            values["reports"] = {int(k): float(v) for k, v in values["reports"].items()}
            trials.append(Trial(**values))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path}, line {number}: is no trial ({one_line(error)}); put back what "
                "was written, or remove the line: its trial is then done again"
            ) from error
    return sorted(trials, key=lambda trial: trial.number)


def cell_of(value: Scalar) -> str:
    """A value in a table, as ``--set`` takes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return cell(value)


def read_study(folder: Path) -> dict[str, Any] | None:
    """What the search in a directory was begun with; None where there is none."""
    with files.reading(folder / STUDY) as path:
        if not os.path.lexists(path):  # a link to nowhere is no new search
            return None
        try:
            study = parse_json(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path}: is not valid JSON ({one_line(error)})") from error
    if not isinstance(study, dict) or KEYS - study.keys():
        raise DataError(f"{path}: is not the file of a search; give another --out")
    return study


def write_study(folder: Path, study: Mapping[str, Any]) -> None:
    """Writes study.json."""
    files.write(folder / STUDY, (json.dumps(study, indent=2) + "\n").encode())
