"""What ``fedsim show`` says of runs, read from their files alone."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedsim import data
from fedsim.cli import names
from fedsim.config import experiments
from fedsim.config.sections import fields
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.machine import kind_of
from fedsim.core.measures import CONSTANT, Measures
from fedsim.core.normalization import OF_DATASET
from fedsim.core.rows import EPSILONS
from fedsim.core.terminal import echo
from fedsim.core.text import counted, decimals, setting_text
from fedsim.display.tables import show as show_table
from fedsim.identity.provenance import Provenance
from fedsim.privacy.accounting import Sampling, neighbours
from fedsim.storage import directories, status, tables
from fedsim.storage.run_dir import RunStore
from fedsim.storage.status import RunStatus
from fedsim.storage.tables import Cells, Outcome, curve

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""A curve has at most so many characters."""
RESULTS = ("val_", "test_", "client_test_", "train_loss", "benign_", "attack_success_rate")
"""What the names of those columns of rounds.csv begin with that are results."""
MOST_CLASSES = 40
"""Of more classes no table is printed."""
DIGESTS = ("data_digest", "code.")
"""What the names of the digests in :attr:`Details.conditions` begin with."""


@dataclass(frozen=True, kw_only=True)
class Details:
    """A run, read from its files: its settings by dotted key, env.json, and rows of tables. Of
    classes.csv those of the newest evaluated round, of clients.csv only with dp.level=example;
    ``collapsed`` is None where summary.csv does not say."""

    status: RunStatus
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    collapsed: bool | None
    rounds: Sequence[Cells]
    clients: Sequence[Cells]
    classes: Sequence[Cells]

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings, and what else can change results: version, kind of device, data, code."""
        kind = kind_of(self.environment) if self.environment else {}
        provenance = Provenance.read(self.status.path)
        conditions = {
            "fedsim": self.environment.get("fedsim"),
            "device": kind.get("name"),
            "server_device": kind.get("server"),
            "data_digest": provenance.data and provenance.data.short,
            **{f"code.{role}": code.short for role, code in provenance.code.items()},
        }
        return {**self.settings, **{k: v for k, v in conditions.items() if v is not None}}

    @property
    def measures(self) -> Measures:
        """Those of its task."""
        return Measures.of(self.environment)

    @property
    def curves(self) -> dict[str, dict[int, float]]:
        """The columns of rounds.csv that are drawn, by round."""
        columns = "train_loss", self.measures.column("val"), self.measures.column("test")
        return {column: curve(self.rounds, column) for column in columns}

    @property
    def changed(self) -> dict[str, dict[str, Any]]:
        """The settings that are not the default: ``value`` and ``default`` of each."""
        standard = default_settings(self.settings)
        return {
            key: {"value": value, "default": standard.get(key)}
            for key, value in self.settings.items()
            if value != standard.get(key)
        }

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """By column of rounds.csv that has values its :class:`Outcome`."""
        curves = {
            column: curve(self.rounds, column)
            for column in (self.rounds[0] if self.rounds else ())
            if column.startswith(RESULTS)
        }
        return {
            column: asdict(Outcome.of(values, self.best_round, len(self.rounds)))
            for column, values in curves.items()
            if values
        }

    @property
    def privacy(self) -> dict[str, Any] | None:
        """Level, delta, neighbours, largest epsilons (None: infinite) at the end, if any."""
        settings = self.settings
        level, clients = settings["dp.level"], settings["data.num_clients"]
        if level is None or not self.rounds:
            return None
        sampling: Sampling = "poisson"
        if level == "user" and settings["train.cohort"] == "fixed":
            m = cohort_size(clients, settings["train.sample_rate"])
            turns = settings["train.selection"] == "round_robin"
            sampling = "full" if turns or m == clients else "fixed"
        delta = settings["dp.delta"]
        values = {"level": level, "delta": delta, "neighbours": neighbours(sampling)}
        if level == "user":
            last = self.rounds[-1]
            columns = [column for column in EPSILONS if column in last] or EPSILONS[:1]
            return values | {column: tables.number(last.get(column)) for column in columns}
        newest = {row["client_id"]: row for row in self.clients if row["status"] == "ok"}
        epsilons = [tables.number(row.get("epsilon")) for row in newest.values()]
        finite = [epsilon for epsilon in epsilons if epsilon is not None]
        largest = max(finite, default=0.0) if len(finite) == len(epsilons) else None
        return values | {"epsilon": largest}

    @property
    def best_round(self) -> int | None:
        """The round that counts as the best, by validation or test accuracy, or primary measure."""
        best = tables.best_row(self.rounds, self.measures)
        return None if best is None else int(best["round"])

    @property
    def values(self) -> dict[str, Any]:
        """All of it for programs."""
        return {
            "path": str(self.status.path),
            "state": self.status.state,
            "problem": self.status.problem,
            "rounds_done": self.status.rounds_done,
            "rounds": self.settings["train.rounds"],
            "fedsim": self.environment.get("fedsim"),
            "device": kind_of(self.environment).get("name"),
            "changed": self.changed,
            "settings": dict(self.settings),
            "best_round": self.best_round,
            "collapsed": self.collapsed,
            "results": self.results,
            "privacy": self.privacy,
            "classes": [dict(row) for row in self.classes],
            "curves": self.curves,
        }


def read(run: str | Path) -> Details:
    """Reads a run, which may be unfinished."""
    path = Path(run)
    if not path.is_dir():
        raise ConfigError(f"RUN {path}: there is no such folder")
    if not status.is_run({entry.name for entry in path.iterdir()}):
        hint = f"; 'fedsim runs {path}' lists those below it" if any(directories.find(path)) else ""
        raise ConfigError(f"RUN {path}: holds no run{hint}")
    settings = {k: s.value for k, s in experiments.read(path / "config.yaml").settings.items()}
    rounds, classes = _rows(path / "rounds.csv", "round"), _rows(path / "classes.csv", "round")
    state = status.read(path)
    if state.state == status.DAMAGED:
        raise StoreError(f"{path}: cannot be read ({state.problem})")
    summary = _rows(path / "summary.csv")
    collapsed = summary[0].get("collapsed") if summary else None
    private = settings.get("dp.level") == "example"
    return Details(
        status=state,
        settings=settings,
        environment=RunStore(path).read_environment(),
        collapsed=collapsed == "True" if collapsed else None,
        rounds=rounds,
        clients=_rows(path / "clients.csv") if private else [],
        classes=[row for row in classes if row["round"] == classes[-1]["round"]],
    )


def _rows(file: Path, *numbers: str) -> list[dict[str, str]]:
    """The rows of a table, none where the run has none; those columns are ``numbers``."""
    try:
        rows = tables.read(file) if file.exists() else []
        for row in rows:
            for column in numbers:
                float(row[column])
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise StoreError(f"{file}: cannot be read ({error})") from error
    return rows


def default_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The default of every key for the method, data set and model of these settings."""
    values = {key: field.default for key, field in fields().items()}
    for section in {key.rpartition(".")[0] for key in settings}:
        values |= {f"{section}.{leaf}": v for leaf, v in names.defaults(section).items()}
    values["data.group"] = "none"  # what a run without known patients has
    values["data.normalization"] = OF_DATASET  # and one without published weights
    info = data.find(str(settings.get("data.name")))
    if info is None:
        return values
    return values | {"model.name": info.default_model, "data.partition": info.default_partition}


def sparkline(values: Sequence[float]) -> str:
    """The values as a line of blocks, lowest to highest; long ones are thinned out."""
    if len(values) > WIDTH:
        last = len(values) - 1
        values = [values[round(i * last / (WIDTH - 1))] for i in range(WIDTH)]
    low, high = min(values), max(values)
    height = (high - low) or 1.0
    return "".join(BLOCKS[round((v - low) / height * (len(BLOCKS) - 1))] for v in values)


def show(run: Details) -> None:
    """Prints a run: its settings, results, classes and curves."""
    settings, state = run.settings, run.status
    reason = state.problem or state.process
    echo(f"{state.path}: {state.state}" + (f" ({reason})" if reason else ""))
    clients = counted(settings["data.num_clients"], "client")
    rounds = counted(settings["train.rounds"], "round")
    echo(
        f"{settings['algorithm']} on {settings['data.name']}, {settings['model.name']}, "
        f"{clients}, sample rate {settings['train.sample_rate']}, seed {settings['seed']}; "
        f"{state.rounds_done} of {rounds}"
    )
    version, device = run.environment.get("fedsim"), kind_of(run.environment).get("name")
    if version:
        echo(f"fedsim {version}" + (f" on {device}" if device else ""))
    if "accepted_code" in run.environment:
        echo("a function of your own has changed since, which --accept-changed-code accepted")
    echo()
    changed = [
        {"setting": key, **{k: setting_text(value) for k, value in entry.items()}}
        for key, entry in run.changed.items()
    ]
    if not changed:
        echo("all settings have their defaults")
    show_table(changed)
    _show_results(run)
    _show_privacy(run)
    if run.collapsed:
        chance = "its balanced accuracy is at most that of chance"
        why = chance if run.measures.of_classes else f"it is {CONSTANT}"
        echo(f"\nthe final model collapsed: {why}")
    _show_classes(run)
    curves, width = run.curves, max(13, *map(len, run.curves))
    lines = [
        f"{column.replace('_', ' '):{width}}  {decimals(values[0])} {sparkline(values)} "
        f"{decimals(values[-1])}  rounds {min(points)} to {max(points)}"
        for column, points in curves.items()
        if len(values := list(points.values())) > 1
    ]
    if lines:
        echo("\n" + "\n".join(lines))


def _show_results(run: Details) -> None:
    if not run.results:
        return
    done, best = run.status.rounds_done, run.best_round
    heads = {"final": "final", "best": "best" if best is None else f"best (round {best})"}
    heads |= {"last10": f"last {min(10, done)}"} if done > 1 else {}
    echo()
    show_table(
        [
            {"result": column.replace("_", " ")}
            | {head: decimals(values[when]) for when, head in heads.items()}
            for column, values in run.results.items()
        ]
    )


def _show_privacy(run: Details) -> None:
    privacy = run.privacy
    if privacy is None:
        return
    texts = {
        column: "infinity" if privacy[column] is None else f"{privacy[column]:.4g}"
        for column in EPSILONS
        if column in privacy
    }
    user = privacy["level"] == "user"
    whose, whom = ("clients", "client") if user else ("samples", "sample of a client")
    echo(
        f"\ndifferential privacy of {whose}: epsilon {'' if user else 'at most '}"
        f"{texts['epsilon']} after {counted(run.status.rounds_done, 'round')}, delta "
        f"{privacy['delta']:g}; neighbours {privacy['neighbours']} {whom}"
    )
    if "deployment_epsilon" in texts:
        echo(f"epsilon of the deployment: {texts['deployment_epsilon']}")


def _show_classes(run: Details) -> None:
    if not run.classes or len(run.classes) > MOST_CLASSES:
        return
    class_names = run.environment.get("classes") or []
    shown = [key for key in run.classes[0] if key not in ("round", "label")]
    if not run.measures.of_classes:
        shown = [key for key in shown if any(row[key] not in ("", "0") for row in run.classes)]
    rows = []
    for row in run.classes:
        cells = {key: cell for key, cell in row.items() if key in shown}
        label = int(row["label"])
        name = str(class_names[label] if label < len(class_names) else label)
        scores = {k: f"{float(c):.4f}" if "." in c else c or "-" for k, c in cells.items()}
        rows.append({f"class (round {row['round']})": name, **scores})
    echo()
    show_table(rows)


def show_comparison(runs: Sequence[Details]) -> None:
    """Prints the settings in which runs differ, and their results side by side."""
    labels = _labels([run.status.path for run in runs])
    rows = [
        {"setting": key}
        | dict(zip(labels, ("-" if v is None else setting_text(v) for v in values), strict=True))
        for key, values in comparison(runs)["settings"].items()
    ]
    show_table(rows or [{"setting": "all are equal"}])
    echo()
    columns = [
        {
            "state": run.status.state,
            "rounds": f"{run.status.rounds_done} of {run.settings['train.rounds']}",
            "collapsed": {True: "yes", False: "no", None: "-"}[run.collapsed],
        }
        | {
            f"{when} {name.replace('_', ' ')}": decimals(value)
            for name, values in run.results.items()
            if name != "train_loss"
            for when, value in values.items()
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for column in columns for key in column)
    cells = {key: [column.get(key, "-") for column in columns] for key in keys}
    show_table(
        [
            {"result": key} | dict(zip(labels, row, strict=True))
            for key, row in cells.items()
            if {*row} != {"-"}
        ]
    )


def comparison(runs: Sequence[Details]) -> dict[str, Any]:
    """The settings that differ, but for digests that one run lacks, and results, for programs."""
    every = [run.conditions for run in runs]
    settings = {}
    for key in dict.fromkeys(key for conditions in every for key in conditions):
        values = [conditions.get(key) for conditions in every]
        present = [v for v in values if v is not None] if key.startswith(DIGESTS) else values
        if any(value != present[0] for value in present):
            settings[key] = values
    return {
        "runs": [str(run.status.path) for run in runs],
        "states": [run.status.state for run in runs],
        "settings": settings,
        "collapsed": [run.collapsed for run in runs],
        "results": [run.results for run in runs],
    }


def _labels(paths: Sequence[Path]) -> list[str]:
    """The paths below the folder that holds them all; the same one twice gets a number."""
    absolute = [path.resolve() for path in paths]
    common = os.path.commonpath([path.parent for path in absolute])
    labels = [str(path.relative_to(common)) for path in absolute]
    return [
        f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)
    ]
