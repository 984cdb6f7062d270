"""The files of a search: its settings, and its trials as they end.

``study.json`` holds what the search was begun with, ``trials.jsonl`` a line of JSON per trial that
has ended, which alone the search goes on from, and ``trials.csv`` the same trials as a table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsim.core import files
from fedsim.core.errors import DataError, one_line
from fedsim.core.reading import parse_json
from fedsim.core.rows import METRICS
from fedsim.storage.run_dir import cell

if TYPE_CHECKING:
    from fedsim.core.settings import Scalar

STUDY, TRIALS, TABLE = "study.json", "trials.jsonl", "trials.csv"
State = Literal["complete", "pruned", "failed"]
STATES: tuple[State, ...] = ("complete", "pruned", "failed")
DIGEST = "sha256"
"""Key of a line of trials.jsonl: the first 16 digits of that of the rest."""
MOST = 10_000
"""Of the trials of a search."""
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("by", "sampler", "pruner"), str),
    **dict.fromkeys(("search", "settings"), dict),
    "seeds": list,
    "ahead": int,
    "trials": int,
}
"""The values of study.json."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial that has ended.

    Args:
        number: from 0, in the order in which the trials were proposed.
        params: the values of the searched keys.
        state: ``pruned`` was stopped early, ``failed`` has no value.
        value: of a pruned trial that of the round after which it was stopped.
        reports: by round the mean over the training seeds, of the rounds that all seeds did.
        marks: what the pruner noted.
        error: why it failed.
    """

    number: int
    params: Mapping[str, Scalar]
    state: State
    value: float | None = None
    reports: Mapping[int, float] = field(default_factory=dict)
    marks: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def folder(self) -> str:
        """The name of the directory of its runs."""
        return folder_of(self.number)


def folder_of(number: int) -> str:
    """The name of the directory of a trial's runs."""
    return f"trial-{number:04d}"


def lowest(by: str) -> bool:
    """Whether the lowest value of a metric is the best."""
    return by in METRICS and METRICS[by].lowest


def best(trials: Sequence[Trial], by: str) -> list[Trial]:
    """The complete trials, the best first; of equal values the one proposed first."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.value is not None]
    sign = 1 if lowest(by) else -1
    return sorted(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def append(folder: Path, trial: Trial) -> None:
    """Adds a trial to trials.jsonl and flushes it to the disk.

    Raises:
        StoreError: the file cannot be written.
    """
    values = asdict(trial)
    line = json.dumps(values | {DIGEST: _digest(values)}) + "\n"
    with files.writing(folder / TRIALS) as path:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
        files.sync(path)


def read(folder: Path) -> list[Trial]:
    """The trials in trials.jsonl, by number; none where there is no such file.

    A last line that is being written, or was when the process was killed, is passed over.

    Raises:
        StoreError: the file cannot be read.
        DataError: a line is not what was written.
    """
    path = folder / TRIALS
    trials: dict[int, Trial] = {}
    for number, line in enumerate(_whole(_data(folder)).splitlines(), 1):
        try:
            trial = _trial(parse_json(line))
            if trial.number in trials:
                raise ValueError(f"trial {trial.number} is given twice")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path}, line {number}: is no trial ({one_line(error)}); put back what was "
                "written, or remove the line: its trial is then done again"
            ) from error
        trials[trial.number] = trial
    return [trials[number] for number in sorted(trials)]


def _trial(values: dict[str, Any]) -> Trial:
    """The trial of a line; any error where a part of it cannot be."""
    if values.pop(DIGEST) != _digest(values):
        raise ValueError("it was changed")
    values["reports"] = {int(k): float(v) for k, v in values["reports"].items()}
    return Trial(**values)


def _digest(values: Mapping[str, Any]) -> str:
    """Of a line without its digest."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def cut(folder: Path) -> None:
    """Cuts off what :func:`read` passes over; only for who holds the lock of the search.

    Raises:
        StoreError: the file cannot be read or written.
    """
    data = _data(folder)
    if _whole(data) != data:
        files.write(folder / TRIALS, _whole(data))


def _data(folder: Path) -> bytes:
    with files.reading(folder / TRIALS) as path:
        return path.read_bytes() if os.path.lexists(path) else b""


def _whole(data: bytes) -> bytes:
    """The lines that have an end."""
    return data[: data.rfind(b"\n") + 1]


def write_table(folder: Path, keys: Sequence[str], trials: Sequence[Trial]) -> None:
    """Writes trials.csv: trial, state, value, a column per searched key, and the runs' directory.

    Raises:
        StoreError: the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "state", "value", *keys, "run"])
    for trial in trials:
        values = [cell_of(trial.params[key]) for key in keys]
        head = [cell(value) for value in (trial.number, trial.state, trial.value)]
        writer.writerow([*head, *values, trial.folder])
    files.write(folder / TABLE, text.getvalue().encode())


def cell_of(value: Scalar) -> str:
    """A value in a table, as ``--set`` takes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return cell(value)


def read_study(folder: Path) -> dict[str, Any] | None:
    """What the search in a directory was begun with; None where there is none.

    Raises:
        StoreError: study.json cannot be read.
        DataError: it is not what was written.
    """
    with files.reading(folder / STUDY) as path:
        if not os.path.lexists(path):  # a link to nowhere is no new search
            return None
        try:
            study = parse_json(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path}: is not valid JSON ({one_line(error)})") from error
    if not isinstance(study, dict):
        raise DataError(f"{path}: is not the file of a search")
    for key, kind in _KINDS.items():
        value = study.get(key)
        whole = kind is not int or (type(value) is int and 1 <= value <= MOST)
        if not isinstance(value, kind) or not whole:
            raise DataError(
                f"{path}: is not the file of a search ({key} is {reprlib.repr(value)}); put back "
                "what was written, or give another --out"
            )
    return study


def write_study(folder: Path, study: Mapping[str, Any]) -> None:
    """Writes study.json.

    Raises:
        StoreError: the file cannot be written.
    """
    files.write(folder / STUDY, (json.dumps(study, indent=2) + "\n").encode())
