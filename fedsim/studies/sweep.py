"""Sweeps: a grid of settings, one run directory per combination, two tables at the end.

A run that has a summary.csv is complete, and skipped if its configuration is the wanted one. What
is made of an incomplete one, :func:`fedsim.studies.parallel.execute` says.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim import data
from fedsim.config import experiments, presets
from fedsim.config.experiments import MOST_RUNS, Axis, AxisValue, Experiment, Setting, Settings
from fedsim.config.resolve import resolve, warn_unused
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.data.files import places
from fedsim.identity.provenance import (
    Code,
    Data,
    Provenance,
    accept_code,
    check_code,
    check_data,
    code_of,
    data_of,
)
from fedsim.identity.resume import is_complete
from fedsim.storage import directories
from fedsim.studies.capacity import Parallel, with_engine
from fedsim.studies.parallel import Drivers, Follower, control
from fedsim.training.events import Job

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger("fedsim")
SEEDS = ("seed", "data.seed")
"""Keys in which the runs of one group differ: of training, and of the partition."""
OF_METHODS = frozenset({"algorithm", "server", "margin", "clock.mode"})
"""Keys that say which method is run."""
OF_EXPERIMENTS = frozenset({"data", "model", "evaluation", "clock", "async", "attack", "engine"})
"""Sections that methods are compared under."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep."""

    name: str  # of its directory, such as ``algorithm=fedavg,seed=1``
    group: str  # the name without the seeds
    config: RunConfig
    title: str = ""  # the group in words: a named row by its name alone
    rows: Mapping[str, str] = field(default_factory=dict)  # by axis the name of its row


def load(name_or_file: str) -> Experiment:
    """Reads a preset or a file; the settings of a file win over those of its own ``preset``."""
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml"):
        return presets.load(name_or_file, "fedsim sweep")
    return over_preset(experiments.read(path), str(path))


def over_preset(experiment: Experiment, source: str) -> Experiment:
    """An experiment over the preset that it names, if any; ``source`` is its name in messages."""
    if experiment.preset is None:
        return experiment
    return experiment.over(presets.load(experiment.preset, f"{source} (preset)"))


def expand(
    experiment: Experiment,
    overrides: Settings,
    parallel: Parallel = "auto",
    others: int = 0,
    build: bool = True,
) -> list[SweepRun]:
    """All runs of a sweep, each configuration checked; warns of settings that no run uses. A flag
    wins over the grid: an axis of the same key disappears. ``others`` is the number of other runs
    by the same drivers; for ``build`` see :func:`~fedsim.config.resolve.resolve`."""
    if experiment.search:
        origin = next(iter(experiment.search.values())).origin
        raise ConfigError(f"{origin}: a search is run by 'fedsim tune'")
    grid = varied_axes(experiment, overrides)
    count = math.prod(len(axis.values) for axis in grid)
    if count > MOST_RUNS:
        raise ConfigError(f"grid: {count:,} runs; a sweep has at most {MOST_RUNS:,}")
    runs = []
    for values in itertools.product(*(axis.values for axis in grid)):
        label = label_of(grid, values)
        named: Settings = {} if label is None else {"label": Setting(label, "grid")}
        layers = [experiment.settings, named, *(value.settings for value in values), overrides]
        config = with_engine(resolve(*layers, build=build), layers, count + others, parallel)
        runs.append(_run(grid, values, config))
    for name, times in Counter(run.name for run in runs).items():
        if times > 1:
            raise ConfigError(f"grid: two combinations have the same name {name}")
    varied = [setting for axis in grid for v in axis.values for setting in v.settings.items()]
    warn_unused({**experiment.settings, **dict(varied), **overrides}, [r.config for r in runs])
    return runs


def _run(grid: Sequence[Axis], values: Sequence[AxisValue], config: RunConfig) -> SweepRun:
    pairs = [
        (axis, v, f"{axis.name}={plain(v.label)}") for axis, v in zip(grid, values, strict=True)
    ]
    of_group = [(axis, value, part) for axis, value, part in pairs if not _repeats(axis)]
    titles = [v.label if v.named else f"{axis.name}={v.label}" for axis, v, _ in of_group]
    name = ",".join(part for *_, part in pairs) or "run"
    rows = {axis.name: value.label for axis, value, _ in of_group if value.named}
    return SweepRun(name, ",".join(part for *_, part in of_group), config, ", ".join(titles), rows)


def label_of(grid: Sequence[Axis], values: Sequence[AxisValue]) -> str | None:
    """The name that the user gives a run by its rows in a grid: ``fedavg, clipped``; or None.
    Beside an axis of methods, rows that say which data, model or clock is used name none."""
    parts, named = [], False
    alone = not any(map(_tells_methods, grid))
    for axis, value in zip(grid, values, strict=True):
        if value.named and (_tells_methods(axis) or (alone and not _repeats(axis))):
            parts.append(value.label)
            named = True
        elif axis.name == "algorithm":
            parts.append(value.label)
        elif axis.name in OF_METHODS and value.settings[axis.name].value is not None:
            parts.append(f"{axis.name}={value.label}")
    return ", ".join(parts) if named else None


def _tells_methods(axis: Axis) -> bool:
    """Whether the rows of an axis are methods or variants of one, rather than experiments."""
    keys = {key for value in axis.values for key in value.settings}
    if keys & OF_METHODS or _repeats(axis):
        return bool(keys & OF_METHODS)
    sections = {key.rpartition(".")[0] for key in keys}
    return sections.isdisjoint(OF_EXPERIMENTS) and not any(map(data.find, sections))


def varied_axes(experiment: Experiment, overrides: Settings) -> tuple[Axis, ...]:
    """The axes that no flag replaces; refuses a flag that sets a key of named rows."""
    varied = []
    for axis in experiment.grid:
        keys = {key for value in axis.values for key in value.settings}
        if axis.name in overrides and all(set(v.settings) == {axis.name} for v in axis.values):
            continue
        for key in keys & set(overrides):
            raise ConfigError(
                f"{overrides[key].origin}: the grid's axis {axis.name} sets {key} in its rows"
            )
        varied.append(axis)
    return tuple(varied)


def _repeats(axis: Axis) -> bool:
    """Whether the values of an axis are repetitions: they set nothing but seeds."""
    return all(set(value.settings) <= set(SEEDS) for value in axis.values)


def missing(runs: Sequence[SweepRun], out: Path, accept: bool = False) -> list[SweepRun]:
    """The runs that are not finished; one of other settings, code or data is refused."""
    unfinished = [run for run in runs if not is_complete(run.config, out / run.name)]
    left = {run.name for run in unfinished}
    check_finished([(r.config, out / r.name) for r in runs if r.name not in left], accept)
    for position, run in enumerate(runs, start=1):
        if run.name not in left:
            logger.info("[%d/%d] %s: finished before", position, len(runs), run.name)
    return unfinished


def check_finished(runs: Sequence[tuple[RunConfig, Path]], accept: bool) -> None:
    """Refuses finished runs of other code or data than those of now; code that is accepted is noted
    in the runs' env.json once all have passed."""
    accepted: dict[Path, dict[str, Code]] = {}
    digests: dict[str, Data | None] = {}
    for config, run in runs:
        before, code = Provenance.read(run), code_of(config)
        if check_code(run, before, code, accept=accept):
            accepted[run] = code
        info, folder = data.find(config.data.name), config.data.dir
        if before.data is None or (info is not None and folder is None):
            continue  # only data of a folder or a user's function change under their name
        key = repr((config.data, config.task, config.hyperparameters.get(config.data.name)))
        if key not in digests:
            digests[key] = _data_of(config)
        advice = "give another --out, move this run away, or put the data back"
        check_data(run, before, digests[key], advice)
    for run, code in accepted.items():
        accept_code(run, code)


def _data_of(config: RunConfig) -> Data | None:
    """The data of now, None where they are gone."""
    from fedsim.training import loading  # imports torch, which a sweep need not

    named = [] if config.data.dir is None else places(config.data.dir)
    for path in (*named, loading.client_file(config)):
        if path is not None and not path.exists():
            logger.info("%s is not there: the data are not compared", path)
            return None
    return data_of(loading.divided(config)[0], config.data.dir)


def run_all(
    runs: Sequence[SweepRun],
    wanted: Sequence[SweepRun],
    out: Path,
    drivers: Drivers,
    follower: Follower,
    trackers: tuple[str, ...] = (),
    accept: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Does the ``wanted`` runs in their order, then writes OUT/summary.csv and OUT/aggregate.csv;
    returns the latter and the names of runs that failed, which do not stop the others."""
    out.mkdir(parents=True, exist_ok=True)
    directories.write_grid(out, {run.name: run.rows for run in runs})
    jobs = (Job(run.name, run.config, out / run.name, trackers, accept) for run in wanted)
    failed = control(lambda: next(jobs, None), drivers, follower)
    finished = {run.name: run.group for run in runs if run.name not in failed}
    from fedsim.studies import sweep_tables  # imports pandas, for which no run has to wait

    return sweep_tables.write(finished, out), [run.name for run in runs if run.name in failed]


def plain(label: str) -> str:
    """A label as part of a directory's name: no separators of paths or of our own."""
    return "".join(c if c.isalnum() or c in "._-+" else "_" for c in label)
