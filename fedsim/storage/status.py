"""A run directory at a glance: how far the run is and how good, without pandas or torch. Nothing
is written, and no run is held up."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.core import files
from fedsim.core.errors import ConfigError, DataError, FedsimError, StoreError, described, one_line
from fedsim.core.measures import Measures
from fedsim.core.reading import parse_json
from fedsim.storage import tables
from fedsim.storage.tables import number as number
from fedsim.storage.tables import rounds as rounds

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
    """What a run directory says of its run."""

    path: Path
    sweep: Path | None = None  # the directory of the sweep that the run is part of
    state: str  # ``fedsim resume`` continues what was interrupted (by a signal or a kill) or failed
    algorithm: str | None = None
    dataset: str | None = None
    seed: int | None = None
    rounds_done: int = 0
    rounds: int | None = None  # of the whole run; a finished run may have stopped earlier
    final_test_accuracy: float | None = None
    best_test_accuracy: float | None = None
    """Of the round with the best validation accuracy or, without that, the best test accuracy."""
    measure: str = "accuracy"  # the primary one of its task, whose values the next two are
    final: float | None = None
    best: float | None = None
    changed: float | None = None  # when its newest results were written, in seconds since 1970
    process: str | None = None
    problem: str | None = None  # why the run failed, or why a damaged directory cannot be read
    label: str | None = None


def is_run(names: Mapping[str, object] | set[str]) -> bool:
    """Whether a folder with entries of these names is a run directory."""
    return "rounds.csv" in names or ("config.yaml" in names and any(m in names for m in MARKS))


def read(path: Path) -> RunStatus:
    """The status of a run directory; one that cannot be read is damaged, and never an error."""
    process = _process(path)
    values: dict[str, Any] = {"path": path, "process": process, "changed": _changed(path)}
    try:
        values |= settings(path)
        values |= _results(path)
        if (path / "summary.csv").exists():
            return RunStatus(**values, state=FINISHED)
        if process:
            return RunStatus(**values, state=RUNNING)
        reason = failure(path)
        return RunStatus(**values, state=FAILED if reason else INTERRUPTED, problem=reason)
    except (ConfigError, OSError, ValueError, csv.Error, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = reason if str(path) in str(reason) else f"{path}: {reason}"
        return RunStatus(**values, state=DAMAGED, problem=problem)


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
    """
    with files.writing(path / FAILURE) as file:
        file.unlink(missing_ok=True)
    try:
        yield
    except (ConfigError, DataError):
        raise
    except Exception as error:
        expected = isinstance(error, FedsimError)
        reason = one_line(error) if expected else f"unexpected {described(error)}"
        with suppress(StoreError):  # the disk may be full: the error itself is what counts
            files.write(file, (json.dumps({"error": reason}) + "\n").encode())
        raise


KEYS = {
    "algorithm": "algorithm",
    "seed": "seed",
    "label": "label",
    "dataset": "data.name",
    "rounds": "train.rounds",
}
"""What a list of runs shows of config.yaml, and its keys there."""


def settings(path: Path) -> dict[str, Any]:
    """algorithm, seed, dataset, rounds and a label, if any, from a run's config.yaml; a ConfigError
    where it is not the configuration of a run."""
    import yaml

    file = path / "config.yaml"
    try:
        content = yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise ConfigError(f"{file}: cannot be read: {reason}") from error
    flat: dict[str, Any] = {}
    for name, value in content.items() if isinstance(content, dict) else ():
        flat |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
        flat[name] = value
    values = {name: flat[key] for name, key in KEYS.items() if flat.get(key) is not None}
    if not values:
        raise ConfigError(f"{file}: holds none of {', '.join(KEYS.values())}")
    return values | {key: _whole(values.get(key)) for key in ("seed", "rounds")}


def _results(path: Path) -> dict[str, Any]:
    """Rounds that are done, final and best value of the primary measure on the test part, from
    summary.csv or rounds.csv."""
    measures = Measures.of(environment(path))
    if (path / "summary.csv").exists():
        rows = tables.read(path / "summary.csv")
        if len(rows) != 1:
            raise ValueError(f"{path / 'summary.csv'}: {len(rows)} rows, a run has one")
        scores = {take: number(rows[0].get(measures.column("test", take))) for take in TAKES}
        return {"rounds_done": _whole(rows[0].get("rounds")) or 0, **_named(measures, scores)}
    rows, column = rounds(path), measures.column("test")
    best, tested = tables.best_row(rows, measures), tables.tested(rows, measures)
    scores = {
        "final": number(tested[-1].get(column)) if tested else None,
        "best": None if best is None else number(best.get(column)),
    }
    return {"rounds_done": len(rows), **_named(measures, scores)}


TAKES = ("final", "best")


def _named(measures: Measures, scores: Mapping[str, float | None]) -> dict[str, Any]:
    """The values by field; an accuracy has fields of its own, too."""
    values = {"measure": measures.primary, **scores}
    if measures.of_classes:
        values |= {measures.column("test", take): scores[take] for take in TAKES}
    return values


def environment(path: Path) -> Mapping[str, Any]:
    """What env.json says; nothing where it is not there or cannot be read."""
    try:
        content = parse_json((path / "env.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


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
