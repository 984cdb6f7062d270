"""A run directory at a glance: how far the run is and how good, without pandas or torch.

Only the few values that are needed are read; nothing is written, and no run is held up.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError, FedsimError, StoreError, described, one_line
from fedsim.core.reading import parse_json

FINISHED, RUNNING, INTERRUPTED, DAMAGED = "finished", "running", "interrupted", "damaged"
FAILED = "failed"
FAILURE = "failure.json"
"""The file in which a run that failed says why."""
MARKS = {"env.json", "checkpoints", "partition.csv", "summary.csv", files.LOCK_FILE}
"""One of these beside config.yaml makes a folder a run directory; rounds.csv alone does, too."""
FRESH = 600.0
"""Seconds. A process on another machine whose lock cannot be seen from here counts as alive while
it wrote a row within this time."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """What a run directory says of its run.

    Args:
        path: the directory.
        sweep: the directory of the sweep that the run is part of.
        state: finished, running, interrupted by a signal or a kill, failed with an error, or
            damaged. ``fedsim resume`` continues what was interrupted or failed.
        rounds_done: rows of rounds.csv.
        rounds: of the whole run; a finished run may have stopped earlier.
        final_test_accuracy: of the newest evaluated round, in 0..1.
        best_test_accuracy: of the round with the best validation accuracy, or without a validation
            part the best test accuracy.
        changed: when its newest results were written, in seconds since 1970.
        process: which process runs it.
        problem: why the run failed, or why a damaged directory cannot be read.
        label: the name that the user gave the run.
    """

    path: Path
    sweep: Path | None = None
    state: str
    algorithm: str | None = None
    dataset: str | None = None
    seed: int | None = None
    rounds_done: int = 0
    rounds: int | None = None
    final_test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    changed: float | None = None
    process: str | None = None
    problem: str | None = None
    label: str | None = None


def is_run(names: Mapping[str, object] | set[str]) -> bool:
    """Whether a folder with entries of these names is a run directory."""
    return "rounds.csv" in names or ("config.yaml" in names and any(m in names for m in MARKS))


def read(path: Path) -> RunStatus:
    """The status of a run directory; one that cannot be read is damaged, and never an error."""
    process = _process(path)
    known: dict[str, Any] = {"path": path, "process": process, "changed": _changed(path)}
    try:
        known |= settings(path)
        if (path / "summary.csv").exists():
            return RunStatus(**known | _of_summary(path), state=FINISHED)
        known |= _of_rounds(path)
        if process:
            return RunStatus(**known, state=RUNNING)
        reason = failure(path)
        return RunStatus(**known, state=FAILED if reason else INTERRUPTED, problem=reason)
    except (ConfigError, OSError, ValueError, csv.Error, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = reason if str(path) in str(reason) else f"{path}: {reason}"
        return RunStatus(**known, state=DAMAGED, problem=problem)


def failure(path: Path) -> str | None:
    """Why the run in a directory failed, in one line; None where it did not."""
    try:
        return str(parse_json((path / FAILURE).read_bytes())["error"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return f"{path / FAILURE}: cannot be read"


@contextmanager
def failure_written(path: Path) -> Iterator[None]:
    """Writes failure.json where the block fails; that of an earlier attempt is removed.

    An interruption is no failure, and neither is what is refused (another device, changed data).

    Raises:
        StoreError: the earlier file cannot be removed.
    """
    with files.writing(path / FAILURE) as file:
        file.unlink(missing_ok=True)
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:
        known = isinstance(error, FedsimError)
        reason = one_line(error) if known else f"unexpected {described(error)}"
        with suppress(StoreError):  # the disk may be full: the error itself is what counts
            files.write(file, (json.dumps({"error": reason}) + "\n").encode())
        raise


_WANTED = {
    "algorithm": re.compile(r"^algorithm: ([\w.:-]+)$", re.MULTILINE),
    "seed": re.compile(r"^seed: (\d+)$", re.MULTILINE),
    "dataset": re.compile(r"^data:\n(?:  .*\n)*?  name: ([\w.:-]+)$", re.MULTILINE),
    "rounds": re.compile(r"^train:\n(?:  .*\n)*?  rounds: (\d+)$", re.MULTILINE),
}
"""Where config.yaml, as a run writes it, has what a list of runs shows."""
_LABEL = re.compile(r"^label: (?!null$)(.+(?:\n .*)*)$", re.MULTILINE)
"""Where it has the label; a long one is folded."""


def settings(path: Path) -> dict[str, Any]:
    """algorithm, seed, dataset, rounds and a label, if any, from a run's config.yaml.

    To parse YAML takes milliseconds, too long for a list of 500 runs: the lines that a run writes
    are searched for; only a file that looks otherwise is parsed.

    Raises:
        ConfigError: the file is missing, or not the configuration of a run.
    """
    file = path / "config.yaml"
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{file}: cannot be read: {reason}") from error
    matches = {key: pattern.search(text) for key, pattern in _WANTED.items()}
    if all(matches.values()):
        values: dict[str, Any] = {key: match[1] for key, match in matches.items() if match}
        if label := _LABEL.search(text):
            import yaml

            with suppress(yaml.YAMLError):
                values["label"] = str(yaml.safe_load(label[1]))
    else:
        from fedsim.config import experiments

        given = experiments.parse(text, str(file)).settings
        keys = dict(zip(_WANTED, ("algorithm", "seed", "data.name", "train.rounds"), strict=True))
        named = keys | {"label": "label"}
        values = {name: given[key].value for name, key in named.items() if key in given}
        if not values:
            raise ConfigError(f"{file}: holds none of {', '.join(keys.values())}")
    for key in ("seed", "rounds"):
        values[key] = _whole(values.get(key))
    return values


def _of_summary(path: Path) -> dict[str, Any]:
    rows = table(path / "summary.csv")
    if len(rows) != 1:
        raise ValueError(f"{path / 'summary.csv'}: {len(rows)} rows, a run has one")
    (row,) = rows
    return {
        "rounds_done": _whole(row.get("rounds")) or 0,
        "final_test_accuracy": number(row.get("final_test_accuracy")),
        "best_test_accuracy": number(row.get("best_test_accuracy")),
    }


def _of_rounds(path: Path) -> dict[str, Any]:
    rows = rounds(path)
    best = best_row(rows)
    tested = [row for row in rows if row.get("test_accuracy")]
    return {
        "rounds_done": len(rows),
        "final_test_accuracy": number(tested[-1]["test_accuracy"]) if tested else None,
        "best_test_accuracy": None if best is None else number(best["test_accuracy"]),
    }


def rounds(path: Path) -> list[dict[str, str]]:
    """The complete rows of a run's rounds.csv, none where there is no such file yet.

    Raises:
        OSError, ValueError, csv.Error: the file cannot be read.
    """
    file = path / "rounds.csv"
    return table(file) if file.exists() else []


def best_row(rows: Sequence[Mapping[str, str]]) -> Mapping[str, str] | None:
    """The round by which a run is judged, as summary.csv has it: of the evaluated rounds the one
    with the best validation accuracy or, without a validation part, test accuracy."""
    tested = [row for row in rows if row.get("test_accuracy")]
    by = "val_accuracy" if any(row.get("val_accuracy") for row in tested) else "test_accuracy"
    known = [row for row in tested if number(row[by]) is not None]
    return max(known, key=lambda row: number(row[by]) or 0.0, default=None)


def number(text: str | None) -> float | None:
    """A CSV cell as a finite number, None where it is empty.

    Raises:
        ValueError: it is another text.
    """
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def table(path: Path) -> list[dict[str, str]]:
    """The complete rows of a CSV file; a line that is still being written does not count.

    Raises:
        OSError: the file cannot be read.
        ValueError, csv.Error: it is no table of UTF-8 text with a header and rows of its length.
    """
    text = path.read_text(encoding="utf-8")
    complete = io.StringIO(text[: text.rfind("\n") + 1], newline="")
    header, *rows = list(csv.reader(complete)) or [[]]
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {line}: {len(row)} fields, the header has {len(header)}"
            )
    return [dict(zip(header, row, strict=True)) for row in rows]


def _whole(value: object) -> int | None:
    """A whole number, None for anything else."""
    return int(str(value)) if str(value).isdigit() else None


def _changed(path: Path) -> float | None:
    for name in ("summary.csv", "rounds.csv", "config.yaml"):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return None


def _process(path: Path) -> str | None:
    """Which process runs the run in a directory, None where none does."""
    lock = files.lock_holder(path)
    if lock is None or lock.held:
        return lock and lock.process
    # killed, or on a machine whose locks are not seen here: then it goes on writing
    changed = _changed(path)
    fresh = changed is not None and time.time() - changed < FRESH
    return lock.process if lock.elsewhere and fresh else None
