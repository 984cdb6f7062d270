"""Sweeps: a grid of settings, one run directory per combination, one table at the end.

A run that has a summary.csv is complete, and skipped if its configuration is the wanted one. An
incomplete run is resumed from its newest checkpoint; with another configuration, or without a
checkpoint, its directory is archived under another name and the run starts again.
"""

import csv
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedsim.config import experiments, presets
from fedsim.config.experiments import Axis, AxisValue, Experiment, Settings
from fedsim.config.resolve import resolve, warn_unused
from fedsim.config.run import RunConfig
from fedsim.config.sections import RENAMED
from fedsim.core import files
from fedsim.core.errors import ConfigError, EngineLostError, FedsimError
from fedsim.storage.run_dir import check_outside_runs
from fedsim.training.resume import archive, can_resume, is_complete
from fedsim.training.summary import CLIENT_COLUMNS, METRICS

logger = logging.getLogger("fedsim")
MOST_RUNS = 10_000
"""The most runs of one sweep."""
WHEN = ("final", "best", "last10")
AVERAGED = (*(f"{when}_test_{metric}" for metric in METRICS for when in WHEN), *CLIENT_COLUMNS)
"""Columns of summary.csv whose mean over the seeds is in aggregate.csv."""
SHARED = ("address", "working_dir")
"""Keys of section engine that belong to the one Ray of a sweep."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Args:
        name: of its directory, such as ``algorithm=fedavg,seed=1``.
        group: the name without the seed; runs of one group differ in the seed alone.
        config: what is run.
    """

    name: str
    group: str
    config: RunConfig


def load(name_or_file: str) -> tuple[str, Experiment]:
    """A preset or a file, with its short name; a file's own ``preset`` lies below its settings.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        return name_or_file, presets.load(name_or_file, "fedsim sweep")
    found = experiments.read(path)
    if found.preset is None:
        return path.stem, found
    return path.stem, found.over(presets.load(found.preset, f"{path} (preset)"))


def combinations(experiment: Experiment) -> list[tuple[AxisValue, ...]]:
    """Every choice of one value per axis, the last axis varying fastest."""
    return list(itertools.product(*(axis.values for axis in experiment.grid)))


def size(experiment: Experiment, overrides: Settings) -> int:
    """The number of runs of a sweep; a flag wins over the grid, as in :func:`expand`."""
    return math.prod(len(axis.values) for axis in _grid(experiment, overrides))


def expand(experiment: Experiment, overrides: Settings, first: int | None = None) -> list[SweepRun]:
    """All runs of a sweep, or the ``first`` ones, each configuration checked.

    A flag wins over the grid: an axis of the same key disappears. Warns of hyperparameters of
    methods that no run uses.

    Raises:
        ConfigError: a configuration that cannot be used, a flag that contradicts rows of the grid,
            two combinations that are the same run, runs that need different Rays, or more than
            :data:`MOST_RUNS`.
    """
    grid = _grid(experiment, overrides)
    count = size(experiment, overrides)
    if first is None and count > MOST_RUNS:
        raise ConfigError(f"grid: {count:,} runs; a sweep has at most {MOST_RUNS:,}")
    runs = []
    for values in itertools.islice(itertools.product(*(axis.values for axis in grid)), first):
        layers = [value.settings for value in values]
        config = resolve(experiment.settings, *layers, overrides)
        parts = [f"{axis.name}={_plain(v.label)}" for axis, v in zip(grid, values, strict=True)]
        name = ",".join(parts)
        runs.append(SweepRun(name or "run", group_of(name), config))
    for name, times in Counter(run.name for run in runs).items():
        if times > 1:
            raise ConfigError(f"grid: two combinations have the same name {name}")
    for leaf in SHARED:
        if len({getattr(run.config.engine, leaf) for run in runs}) > 1:
            raise ConfigError(f"grid: the runs differ in engine.{leaf}; one Ray serves a sweep")
    if len(runs) == count:
        varied = [point.settings for axis in grid for point in axis.values]
        given = [setting for layer in varied for setting in layer.items()]
        warn_unused({**experiment.settings, **dict(given), **overrides}, [r.config for r in runs])
    return runs


def _grid(experiment: Experiment, overrides: Settings) -> tuple[Axis, ...]:
    """The axes that no flag replaces."""
    return tuple(axis for axis in experiment.grid if not _replaced(axis, overrides))


def check_out(runs: list[SweepRun], out: Path) -> None:
    """Refuses a directory in which the sweep would overwrite what is not its own.

    Its own are tables whose rows are runs of the grid, or runs that lie in ``out``: the grid may
    have changed since, and a flag such as ``--seed 0`` changes the names.

    Raises:
        ConfigError: ``out`` is no directory, a run, live or not, or inside one, or its summary.csv
            or aggregate.csv is not that of a sweep there.
        StoreError: it cannot be read.
    """
    check_outside_runs(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a directory")
    for name in ("config.yaml", "rounds.csv", "env.json"):
        if (out / name).exists():
            raise ConfigError(
                f"--out {out}: is a run directory (it holds {name}); a sweep needs its own"
            )
    if (out / files.LOCK_FILE).exists():
        with files.lock(out):  # refused where a run that has just begun holds it
            pass
    names = {run.name for run in runs} | {file.parent.name for file in out.glob("*/config.yaml")}
    groups = {group_of(name) for name in names}
    for name, column, known in (
        ("summary.csv", "run", names),
        ("aggregate.csv", "configuration", groups),
    ):
        with files.reading(out / name) as path:
            if path.exists() and not _lists_only(path, column, known):
                raise ConfigError(
                    f"{path}: is not the table of a sweep in this directory, and would be "
                    "overwritten; give another --out or move it away"
                )


def group_of(name: str) -> str:
    """The name of a run without its seed."""
    return ",".join(part for part in name.split(",") if not part.startswith("seed="))


def _lists_only(path: Path, column: str, known: Set[str]) -> bool:
    """Whether the first column of a CSV file has this name, and no other values than these."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            cells = [row[0] for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error):
        return False
    return cells[:1] == [column] and set(cells[1:]) <= known


def run_all(
    runs: list[SweepRun],
    out: Path,
    start: Callable[[RunConfig, Path], object],
) -> tuple[pd.DataFrame, list[str]]:
    """Runs what is not there yet, then writes OUT/summary.csv and OUT/aggregate.csv.

    A run that fails is logged, and the others go on; the tables hold what finished.

    ``out`` may hold finished runs. ``start`` runs one configuration into a directory, or resumes
    the run that is there.

    Returns:
        The rows of aggregate.csv, and the names of the runs that failed. Where none finished there
        are no rows and no tables.

    Raises:
        ConfigError: a finished run in ``out`` has another configuration, or ``out`` is not the
            sweep's, see :func:`check_out`.
        StoreError: the tables cannot be written.
    """
    check_out(runs, out)
    for run in runs:
        is_complete(run.config, out / run.name)  # refuses what is not the wanted run, before any
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for position, run in enumerate(runs, start=1):
        if is_complete(run.config, out / run.name):  # perhaps since the start, by another process
            logger.info("[%d/%d] %s: finished before", position, len(runs), run.name)
            continue
        try:
            resumed = can_resume(run.config, out / run.name)
            what = ": resumed after an interruption" if resumed else ""
            logger.info("[%d/%d] %s%s", position, len(runs), run.name, what)
            if not resumed:
                archive(out / run.name)
            start(run.config, out / run.name)
        except EngineLostError:
            raise  # the runs that follow need the same processes
        except FedsimError as error:
            reason = " ".join("; ".join([str(error), *getattr(error, "__notes__", [])]).split())
            logger.info("[%d/%d] %s: failed: %s", position, len(runs), run.name, reason)
            failed.append(run.name)
    finished = [run for run in runs if run.name not in failed]
    if not finished:
        return pd.DataFrame(), failed
    summary = summarise(finished, out)
    _write(summary, out / "summary.csv")
    table = aggregate(summary, finished)
    _write(table, out / "aggregate.csv")
    return table, failed


def _write(table: pd.DataFrame, path: Path) -> None:
    files.write(path, table.to_csv(index=False, lineterminator="\n").encode())


def summarise(runs: list[SweepRun], out: Path) -> pd.DataFrame:
    """The rows of all summary.csv in the order of the grid, after a column ``run``."""
    frames = []
    for run in runs:
        frame = pd.read_csv(out / run.name / "summary.csv")
        frame.insert(0, "run", run.name)
        frames.append(frame)
    columns = dict.fromkeys(column for frame in frames for column in frame.columns)
    known = [frame.dropna(axis="columns", how="all") for frame in frames]
    return pd.concat(known, ignore_index=True).reindex(columns=list(columns))


def aggregate(summary: pd.DataFrame, runs: list[SweepRun]) -> pd.DataFrame:
    """Per configuration without its seed: n, and mean, std (ddof 1), 95 % t-interval of metrics.

    ``_ci95`` is the half width of the interval; std and interval are empty for a single run.
    ``collapsed`` is the number of runs that did, see :mod:`fedsim.training.collapse`. Columns that
    a run of an earlier version does not have are empty.
    """
    groups = {run.name: run.group for run in runs}
    rows = []
    for group, frame in summary.groupby(summary["run"].map(groups), sort=False):
        first = frame.iloc[0]
        row: dict[str, object] = {"configuration": group}
        row |= {key: first[key] for key in ("algorithm", "dataset", "alpha")}
        row["n"] = len(frame)
        known = frame.reindex(columns=[*AVERAGED, "collapsed"])
        for metric in AVERAGED:
            for name, value in spread(known[metric].to_numpy(dtype=float)).items():
                row[f"{metric}_{name}"] = value
        row["collapsed"] = known["collapsed"].astype(float).sum(min_count=len(frame))
        rows.append(row)
    return pd.DataFrame(rows).astype({"collapsed": "Int64"})


def spread(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, float]:
    """mean, std and half width of the 95 % t-interval of values (n,); NaN where n is 1."""
    n = len(values)
    if n < 2:
        return {"mean": float(values.mean()), "std": np.nan, "ci95": np.nan}
    std = float(values.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * std / np.sqrt(n)
    return {"mean": float(values.mean()), "std": std, "ci95": half}


def _replaced(axis: Axis, overrides: Settings) -> bool:
    """Whether a flag takes the place of the axis; refuses one that sets a key of its rows."""
    key = RENAMED.get(axis.name, axis.name)
    if key in overrides and all(set(p.settings) == {key} for p in axis.values):
        return True
    for key in {key for point in axis.values for key in point.settings} & set(overrides):
        raise ConfigError(
            f"{overrides[key].origin}: the grid's axis {axis.name} sets {key} in its rows"
        )
    return False


def _plain(label: str) -> str:
    """A label as part of a directory's name: no separators of paths or of our own."""
    return "".join(c if c.isalnum() or c in "._-+" else "_" for c in label)
