"""The files of a study: searches in OUT/tuning, and a sweep in OUT/runs.

What the searches (:mod:`fedsim.studies.tune`) have chosen is in OUT/chosen.csv and, as an ordinary
file of a sweep, in OUT/comparison.yaml. All of it follows from the file of the study and the
finished trials, so that an interrupted study continues where it was.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from fedsim.config import experiments
from fedsim.config.experiments import Setting, Settings
from fedsim.config.resolve import resolve, to_dict, unused
from fedsim.config.run import RunConfig
from fedsim.core import files
from fedsim.core.errors import ConfigError
from fedsim.core.settings import Scalar
from fedsim.storage.run_dir import check_outside_runs
from fedsim.storage.trials import Trial, cell_of
from fedsim.studies import sweep
from fedsim.studies.tune import Tuning

if TYPE_CHECKING:
    from fedsim.studies.plan import Plan

TUNING, RUNS, REPORT = "tuning", "runs", "report"
CHOSEN, COMPARISON = "chosen.csv", "comparison.yaml"
CONTENT = {TUNING, RUNS, REPORT, CHOSEN, COMPARISON, files.LOCK_FILE}
"""What lies in the directory of a study."""


def check_out(out: Path) -> None:
    """Refuses a directory that holds anything but a study.

    Raises:
        ConfigError: it is a file, a run or inside one, or holds other files.
    """
    check_outside_runs(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: is not a directory")
    others = sorted({path.name for path in out.iterdir()} - CONTENT) if out.exists() else []
    if others:
        raise ConfigError(
            f"--out {out}: holds {others[0]}, which is not of a study; give a new or empty "
            "directory"
        )


def best_trials(plan: Plan, tunings: Sequence[Tuning]) -> dict[str, Trial]:
    """The best trial of each search, by the name of its cell.

    Raises:
        FedsimError: no trial of a search is complete.
    """
    pairs = zip(plan.searches, tunings, strict=True)
    return {cell.name: tuning.leaders[0] for (cell, _), tuning in pairs}


def chosen_rows(plan: Plan, trials: Mapping[str, Trial]) -> list[dict[str, Scalar]]:
    """A row per cell: method, partition, trial, searched keys, metric, value, number of trials.

    ``trials`` are those that were chosen, by name of the cell.
    """
    keys = dict.fromkeys(key for trial in trials.values() for key in trial.params)
    rows = []
    for cell in plan.cells:
        row: dict[str, Scalar] = {"method": cell.method, "partition": cell.partition}
        trial = trials.get(cell.name)
        row["trial"] = None if trial is None else trial.number
        row |= {key: None if trial is None else trial.params.get(key) for key in keys}
        row |= {"metric": plan.file.by, "value": None if trial is None else trial.value}
        rows.append(row | {"trials": 0 if cell.plan is None else cell.plan.count})
    return rows


def write_chosen(plan: Plan, trials: Mapping[str, Trial], out: Path) -> None:
    """Writes chosen.csv and comparison.yaml, see :func:`chosen_rows`.

    Raises:
        StoreError: a file cannot be written.
    """
    rows = chosen_rows(plan, trials)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: "" if value is None else cell_of(value) for key, value in row.items()} for row in rows
    )
    files.write(out / CHOSEN, text.getvalue().encode())
    values = {
        cell.name: {
            **{key: setting.value for key, setting in cell.settings.items()},
            **(trials[cell.name].params if cell.name in trials else {}),
            **_typed(plan.overrides, cell.examples[0]),
            "label": cell.method,
        }
        for cell in plan.cells
    }
    about = plan.file.about or f"the comparison of {plan.source}"
    head = f"# {plan.source}: each method with the settings that were chosen in {out / TUNING}\n"
    grid = grid_text(values, plan.seeds, about)
    files.write(out / COMPARISON, f"{head}{grid}".encode())


def grid_text(rows: Mapping[str, Mapping[str, object]], seeds: Sequence[int], about: str) -> str:
    """The file of a sweep with named rows, by name the settings of each, by dotted key.

    Settings that all rows share stand at the top; those of methods that no row uses are left out.

    Raises:
        ConfigError: settings that cannot be used.
    """
    settings = [{key: Setting(value, key) for key, value in row.items()} for row in rows.values()]
    every = {key: setting for row in settings for key, setting in row.items()}
    idle = {"seed", *unused(every, [resolve(row, build=False) for row in settings])}
    first = next(iter(rows.values()))
    common = {
        key: value
        for key, value in first.items()
        if key not in idle | {"label"} and all(key in r and r[key] == value for r in rows.values())
    }
    varied = (
        {name: {k: v for k, v in row.items() if k not in common and k not in idle}}
        for name, row in rows.items()
    )
    lines = [f"{key}: {_flow(value)}" for key, value in {"about": about, **common}.items()]
    lines += ["grid:", "  method:", *(f"    - {_flow(row)[1:-1]}" for row in varied)]
    return "\n".join([*lines, f"  seed: {_flow([*seeds])}"]) + "\n"


def _flow(value: object) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(
        [value], default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )
    return text.strip()[1:-1]


def _typed(flags: Settings, config: RunConfig) -> dict[str, object]:
    """The values of flags, which are texts, as a configuration made with them has them."""
    values, typed = to_dict(config), {}
    for key, setting in flags.items():
        section, _, leaf = key.rpartition(".")
        typed[key] = (values.get(section, {}) if section else values).get(leaf, setting.value)
    return typed


def comparison_runs(plan: Plan, out: Path) -> list[sweep.SweepRun]:
    """The runs of OUT/comparison.yaml, the comparison of the study.

    Raises:
        ConfigError: see :func:`fedsim.studies.sweep.expand`.
    """
    experiment = sweep.load(str(out / COMPARISON))
    return sweep.expand(experiment, {}, plan.parallel, plan.tuning_runs)


COLUMNS = {
    "data.name": "dataset",
    "data.alpha": "alpha",
    "data.num_clients": "num_clients",
    "model.name": "model",
    "train.sample_rate": "sample_rate",
    "train.rounds": "rounds",
}
"""Keys whose column in summary.csv has another name."""


def grouping(out: Path) -> tuple[list[str], str]:
    """By which columns of summary.csv the comparison is grouped in tables, and the unit.

    Partitions that differ in their seeds alone are the unit; others are columns to group by.

    Raises:
        ConfigError: OUT/comparison.yaml cannot be read.
        StoreError: OUT/chosen.csv cannot be read.
    """
    with files.reading(out / CHOSEN) as path:
        searched = path.read_text(encoding="utf-8").partition("\n")[0].split(",")
    rows = [row.settings for row in experiments.read(out / COMPARISON).grid[0].values]
    first = [row for row in rows if row["label"].value == rows[0]["label"].value]
    keys = dict.fromkeys(key for row in first for key in row if key not in searched)
    varied = [
        k for k in keys if len({repr(row[k].value) if k in row else None for row in first}) > 1
    ]
    if varied == ["data.seed"]:
        return ["label"], "partition"
    return ["label", *(COLUMNS.get(key, key) for key in varied)], "seed"
