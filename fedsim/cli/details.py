"""What ``fedsim show`` says of runs, read from their files alone."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim import data
from fedsim.cli import names
from fedsim.config import experiments
from fedsim.config.sections import fields
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.machine import kind_of
from fedsim.core.normalization import OF_DATASET
from fedsim.core.reading import parse_json
from fedsim.core.rows import EPSILONS
from fedsim.core.terminal import echo
from fedsim.core.text import counted
from fedsim.display.tables import show as show_table
from fedsim.privacy.accounting import Sampling, neighbours
from fedsim.storage import directories, status
from fedsim.storage.status import RunStatus
from fedsim.training.provenance import Provenance

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-=+*#@"
WIDTH = 60
"""A curve has at most so many characters."""
CURVES = ("train_loss", "val_accuracy", "test_accuracy")
"""The columns of rounds.csv that are drawn."""
RESULTS = ("val_", "test_", "client_test_", "train_loss", "benign_", "attack_success_rate")
"""What the names of those columns of rounds.csv begin with that are results."""
YES = {True: "yes", False: "no"}
MOST_CLASSES = 40
"""Of more classes no table is printed."""
DIGESTS = ("data_digest", "code.")
"""What the names of :attr:`Details.digests` begin with."""
Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Details:
    """A run, read from its files.

    Args:
        settings: all of them by dotted key.
        environment: env.json; empty where it is damaged.
        collapsed: whether the final model is no better than chance, by summary.csv; None where it
            does not say, as for unfinished runs.
        rounds: the rows of rounds.csv.
        clients: those of clients.csv where they have epsilons, with dp.level=example.
        classes: the rows of classes.csv of the newest evaluated round.
    """

    status: RunStatus
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    collapsed: bool | None
    rounds: Sequence[Row]
    clients: Sequence[Row]
    classes: Sequence[Row]

    @property
    def digests(self) -> dict[str, str]:
        """``data_digest``, and ``code.ROLE`` for each function of the user's; as far as known."""
        try:
            known = Provenance.read(self.status.path)
        except ConfigError:  # a damaged env.json says nothing here
            return {}
        of_data = {} if known.data is None else {"data_digest": known.data.short}
        return of_data | {f"code.{role}": code.short for role, code in known.code.items()}

    @property
    def conditions(self) -> dict[str, Any]:
        """The settings, and what else can change results: version, kind of device, data, code."""
        kind = kind_of(self.environment) if self.environment else {}
        known = {"fedsim": self.environment.get("fedsim"), "device": kind.get("name")}
        known["server_device"] = kind.get("server")
        versions = {key: value for key, value in known.items() if value is not None}
        return {**self.settings, **versions, **self.digests}

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The settings that are not the default: their value and the default."""
        standard = default_settings(self.settings)
        return {
            key: (value, standard.get(key))
            for key, value in self.settings.items()
            if value != standard.get(key)
        }

    @property
    def results(self) -> dict[str, dict[str, float | None]]:
        """By column of rounds.csv: its value at the end, in the best round and the mean of the
        evaluated rounds among the last ten; without columns that are empty."""
        best = status.best_row(self.rounds)
        recent = [r for r in self.rounds if int(r["round"]) > len(self.rounds) - 10]
        results = {}
        for column in self.rounds[0] if self.rounds else ():
            values = curve(self.rounds, column)
            if values and column.startswith(RESULTS):
                last = curve(recent, column).values()
                results[column] = {
                    "final": list(values.values())[-1],
                    "best": status.number(best[column]) if best else None,
                    "last10": math.fsum(last) / len(last) if last else None,
                }
        return results

    @property
    def privacy(self) -> dict[str, Any] | None:
        """Level, delta, neighbours and epsilons at the end; None without privacy or rounds.

        An epsilon is None where it is infinite. That of samples is the largest of all clients.
        """
        settings = self.settings
        level, clients = settings["dp.level"], settings["data.num_clients"]
        if level is None or not self.rounds:
            return None
        drawn: Sampling = "poisson"
        if level == "user" and settings["train.cohort"] == "fixed":
            m = cohort_size(clients, settings["train.sample_rate"])
            turns = settings["train.selection"] == "round_robin"
            drawn = "full" if turns or m == clients else "fixed"
        said = {"level": level, "delta": settings["dp.delta"], "neighbours": neighbours(drawn)}
        if level == "user":
            last = self.rounds[-1]
            known = [column for column in EPSILONS if column in last] or EPSILONS[:1]
            return said | {column: status.number(last.get(column)) for column in known}
        last_of = {row["client_id"]: row for row in self.clients if row["status"] == "ok"}
        own = [status.number(row.get("epsilon")) for row in last_of.values()]
        finite = [epsilon for epsilon in own if epsilon is not None]
        return said | {"epsilon": max(finite, default=0.0) if len(finite) == len(own) else None}

    @property
    def best_round(self) -> int | None:
        """The round that counts as the best, by validation or test accuracy."""
        best = status.best_row(self.rounds)
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
            "changed": {k: {"value": v, "default": d} for k, (v, d) in self.changed.items()},
            "settings": dict(self.settings),
            "best_round": self.best_round,
            "collapsed": self.collapsed,
            "results": self.results,
            "privacy": self.privacy,
            "classes": [dict(row) for row in self.classes],
            "curves": {column: curve(self.rounds, column) for column in CURVES},
        }


def read(run: str | Path) -> Details:
    """Reads a run, which may be unfinished.

    Raises:
        ConfigError: there is no run, or its configuration cannot be read.
        StoreError: one of its tables cannot be read.
    """
    path = Path(run)
    if not path.is_dir():
        raise ConfigError(f"RUN {path}: there is no such folder")
    if not status.is_run({entry.name for entry in path.iterdir()}):
        hint = f"; 'fedsim runs {path}' lists those below it" if any(directories.find(path)) else ""
        raise ConfigError(f"RUN {path}: holds no run{hint}")
    given = experiments.read(path / "config.yaml").settings
    try:
        state = status.read(path)
        if state.state == status.DAMAGED:
            raise ValueError(state.problem)
        rounds = _table(path / "rounds.csv", numbers=True)
        classes = _table(path / "classes.csv")
        private = "dp.level" in given and given["dp.level"].value == "example"
        clients = _table(path / "clients.csv") if private else []
    except (OSError, ValueError, csv.Error) as error:
        raise StoreError(f"{path}: cannot be read ({error})") from error
    return Details(
        status=state,
        settings={key: setting.value for key, setting in given.items()},
        environment=_environment(path),
        collapsed=_collapsed(path),
        rounds=rounds,
        clients=clients,
        classes=[row for row in classes if row["round"] == classes[-1]["round"]],
    )


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


def _table(file: Path, numbers: bool = False) -> list[dict[str, str]]:
    """The rows of a table, none where the run has none.

    Raises:
        OSError, ValueError, csv.Error: it cannot be read; ``round`` is no whole number; with
            ``numbers``, a cell is no number.
    """
    rows = status.table(file) if file.exists() else []
    for line, row in enumerate(rows, 2):
        if not row.get("round", "").isdigit():
            raise ValueError(f"{file}, line {line}: round is no whole number")
        for column, cell in row.items() if numbers else ():
            if cell and not _is_number(cell):
                raise ValueError(f"{file}, line {line}: {column} is {cell!r}, not a number")
    return rows


def _environment(path: Path) -> dict[str, Any]:
    try:
        environment = parse_json((path / "env.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return environment if isinstance(environment, dict) else {}


def _collapsed(path: Path) -> bool | None:
    rows = status.table(path / "summary.csv") if (path / "summary.csv").exists() else []
    said = rows[0].get("collapsed") if rows else None
    return said == "True" if said else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def curve(rows: Sequence[Row], column: str) -> dict[int, float]:
    """The values of a column by round, without rounds that have none."""
    pairs = ((int(row["round"]), status.number(row.get(column))) for row in rows)
    return {number: value for number, value in pairs if value is not None}


def sparkline(values: Sequence[float], blocks: str = BLOCKS) -> str:
    """The values as a line of blocks, lowest to highest; long ones are thinned out."""
    if len(values) > WIDTH:
        last = len(values) - 1
        values = [values[round(i * last / (WIDTH - 1))] for i in range(WIDTH)]
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(blocks[round((v - low) / width * (len(blocks) - 1))] for v in values)


def text(value: object) -> str:
    """A setting as YAML has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
        {"setting": key, "value": text(value), "default": text(default)}
        for key, (value, default) in run.changed.items()
    ]
    if not changed:
        echo("all settings have their defaults")
    show_table(changed)
    if run.results:
        echo()
        best = f"best (round {run.best_round})" if run.best_round else "best"
        headings = {"final": "final", "best": best}
        if state.rounds_done > 1:
            headings["last10"] = f"last {min(10, state.rounds_done)}"
        show_table(
            [
                {"result": column.replace("_", " ")}
                | {h: "-" if values[k] is None else f"{values[k]:.4f}" for k, h in headings.items()}
                for column, values in run.results.items()
            ]
        )
    _show_privacy(run)
    if run.collapsed:
        echo("\nthe final model collapsed: its balanced accuracy is at most that of chance")
    _show_classes(run)
    _show_curves(run)


def _show_privacy(run: Details) -> None:
    known = run.privacy
    if known is None:
        return
    numbers = {
        column: "infinity" if (epsilon := known[column]) is None else f"{epsilon:.4g}"
        for column in EPSILONS
        if column in known
    }
    whom = {"user": "client", "example": "sample of a client"}[known["level"]]
    most = "at most " * (known["level"] == "example")
    echo(
        f"\ndifferential privacy of {whom.split()[0]}s: epsilon {most}{numbers['epsilon']} after "
        f"{counted(run.status.rounds_done, 'round')}, delta {known['delta']:g}; neighbours "
        f"{known['neighbours']} {whom}"
    )
    if "deployment_epsilon" in numbers:
        echo(f"epsilon of the deployment: {numbers['deployment_epsilon']}")


def _show_classes(run: Details) -> None:
    if not run.classes or len(run.classes) > MOST_CLASSES:
        return
    class_names = run.environment.get("classes")
    rows = []
    for row in run.classes:
        label = row.get("label", "-")
        scores = {k: _short(v) for k, v in row.items() if k not in ("round", "label")}
        if isinstance(class_names, list) and label.isdigit() and int(label) < len(class_names):
            label = str(class_names[int(label)])
        rows.append({f"class (round {row['round']})": label, **scores})
    echo()
    show_table(rows)


def _short(cell: str) -> str:
    """A cell of classes.csv with four decimals."""
    try:
        return f"{float(cell):.4f}" if "." in cell else cell or "-"
    except ValueError:
        return cell


def _show_curves(run: Details) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    blocks = BLOCKS if "utf" in encoding.lower() else ASCII_BLOCKS
    lines = []
    for column in CURVES:
        points = curve(run.rounds, column)
        if len(points) > 1:
            rounds, values = list(points), list(points.values())
            line = f"{values[0]:.4f} {sparkline(values, blocks)} {values[-1]:.4f}"
            what = f"rounds {rounds[0]} to {rounds[-1]}"
            lines.append(f"{column.replace('_', ' '):13}  {line}  {what}")
    if lines:
        echo("\n" + "\n".join(lines))


def show_comparison(runs: Sequence[Details]) -> None:
    """Prints the settings in which runs differ, and their results side by side."""
    labels = _labels([run.status.path for run in runs])
    texts = [{key: text(value) for key, value in run.conditions.items()} for run in runs]
    show_table(_beside("setting", labels, _differing(texts)) or [{"setting": "all are equal"}])
    echo()
    results = []
    for run in runs:
        pairs = {
            f"{name} {column.replace('_', ' ')}": f"{value:.4f}"
            for column, values in run.results.items()
            for name, value in values.items()
            if value is not None and column not in CURVES[:1]
        }
        done = f"{run.status.rounds_done} of {run.settings['train.rounds']}"
        collapsed = {} if run.collapsed is None else {"collapsed": YES[run.collapsed]}
        results.append({"state": run.status.state, "rounds": done, **collapsed, **pairs})
    show_table(_beside("result", labels, results))


def comparison(runs: Sequence[Details]) -> dict[str, Any]:
    """The comparison for programs: lists in the order of the runs."""
    differing = _differing([run.conditions for run in runs])
    return {
        "runs": [str(run.status.path) for run in runs],
        "states": [run.status.state for run in runs],
        "settings": {key: [run.get(key) for run in differing] for key in _keys(differing)},
        "collapsed": [run.collapsed for run in runs],
        "results": [run.results for run in runs],
    }


def _differing(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries in which the runs are not all the same; a digest that one does not have does not
    count."""
    keys = [key for key in _keys(runs) if _differs(key, runs)]
    return [{key: run[key] for key in keys if key in run} for run in runs]


def _differs(key: str, runs: Sequence[Mapping[str, Any]]) -> bool:
    if key.startswith(DIGESTS):
        return len({run[key] for run in runs if key in run}) > 1
    return any(run.get(key) != runs[0].get(key) for run in runs)


def _keys(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for run in runs for key in run))


def _beside(
    heading: str, labels: Sequence[str], runs: Sequence[Mapping[str, str]]
) -> list[dict[str, str]]:
    """A row per key, a column per run."""
    return [
        {heading: key, **{n: run.get(key, "-") for n, run in zip(labels, runs, strict=True)}}
        for key in _keys(runs)
    ]


def _labels(paths: Sequence[Path]) -> list[str]:
    """The ends of the paths that tell the runs apart; the same one twice gets a number."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        labels = [str(Path(*p[-length:])) for p in parts]
        if len(set(labels)) == len(set(parts)):
            break
    return [
        f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)
    ]
