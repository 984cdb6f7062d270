"""``fedsim show`` and ``fedsim compare``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli.names import folders
from fedsim.cli.options import format_option, verbose_option
from fedsim.core.errors import ConfigError
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.cli.details import Details

CURVES = ("train_loss", "val_accuracy", "test_accuracy")
"""The columns of rounds.csv that are drawn."""
YES = {True: "yes", False: "no"}
MOST_CLASSES = 40
"""Of more classes no table is printed."""
DIGESTS = ("data_digest", "code.")
"""What the names of :attr:`fedsim.cli.details.Details.digests` begin with."""
NO_DEVICE = "not started"
"""The device in env.json of a run on Ray before its first round."""


@click.command()
@click.argument("run", metavar="RUN", shell_complete=folders)
@format_option
@verbose_option
def show(run: str, form: str) -> None:
    """Show one run: its settings, results and curves; or a search: its best trials.

    RUN is its directory; the run may be unfinished. Of the settings those are shown that differ
    from the defaults. "best" is the value in the round with the best validation accuracy or,
    without a validation part, test accuracy. Of a search by 'fedsim tune': how its trials ended,
    the best one, its file best.yaml, and what it reached on fresh training seeds.

    \b
      fedsim show runs/digits/fedld/RUN
      fedsim show runs/digits/fedld/RUN --format json
      fedsim show runs/tune-lr
    """
    from fedsim.cli import details, searches
    from fedsim.storage import directories

    search = directories.search_in(Path(run))
    if search is not None:
        if form == "json":
            echo(json.dumps(searches.details(search), indent=2))
        else:
            searches.show(search)
        return
    found = details.read(run)
    if form == "json":
        echo(json.dumps(_values(found), indent=2))
    else:
        _print(found)


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN RUN...", shell_complete=folders)
@format_option
@verbose_option
def compare(runs: tuple[str, ...], form: str) -> None:
    """Compare runs: the settings in which they differ, and their results.

    The runs may be of different methods, data sets and versions of fedsim. Beside the settings, the
    digests of the data and of the user's own code are compared. A setting that a method
    or data set does not have is "-"; one that an earlier version did not know has the value that
    stands for it. To average over seeds and to test differences use 'fedsim table'.

    \b
      fedsim compare runs/digits/fedld/RUN runs/digits/fedavg/RUN
    """
    from fedsim.cli import details
    from fedsim.training.tables import show as show_table

    if len(runs) < 2:
        raise ConfigError(f"RUN: at least two are needed, {len(runs)} given")
    found = [details.read(run) for run in runs]
    labels = _labels([each.status.path for each in found])
    if form == "json":
        echo(json.dumps(_compared(found), indent=2))
        return
    texts = [{key: details.text(v) for key, v in _described(each).items()} for each in found]
    show_table(_beside("setting", labels, _differing(texts)) or [{"setting": "all are equal"}])
    echo()
    results = []
    for each in found:
        pairs = {
            f"{name} {column.replace('_', ' ')}": f"{value:.4f}"
            for column, values in each.results.items()
            for name, value in values.items()
            if value is not None and column not in CURVES[:1]
        }
        done = f"{each.status.rounds_done} of {each.settings['train.rounds']}"
        collapsed = {} if each.collapsed is None else {"collapsed": YES[each.collapsed]}
        results.append({"state": each.status.state, "rounds": done, **collapsed, **pairs})
    show_table(_beside("result", labels, results))


def _print(found: Details) -> None:
    from fedsim.cli import details
    from fedsim.training.tables import show as show_table

    settings, status = found.settings, found.status
    reason = status.problem or status.process
    echo(f"{status.path}: {status.state}" + (f" ({reason})" if reason else ""))
    clients = counted(settings["data.num_clients"], "client")
    rounds = counted(settings["train.rounds"], "round")
    echo(
        f"{settings['algorithm']} on {settings['data.name']}, {settings['model.name']}, "
        f"{clients}, sample rate {settings['train.sample_rate']}, seed {settings['seed']}; "
        f"{status.rounds_done} of {rounds}"
    )
    version, device = found.environment.get("fedsim"), found.environment.get("device")
    if version:
        seen = device not in (None, "", NO_DEVICE)
        echo(f"fedsim {version}" + (f" on {device}" if seen else ""))
    if "accepted_code" in found.environment:
        echo("a function of your own has changed since, which --accept-changed-code accepted")
    echo()
    changed = [
        {"setting": key, "value": details.text(value), "default": details.text(default)}
        for key, (value, default) in found.changed.items()
    ]
    if not changed:
        echo("all settings have their defaults")
    show_table(changed)
    if found.results:
        echo()
        best = f"best (round {found.best_round})" if found.best_round else "best"
        headings = {"final": "final", "best": best}
        if status.rounds_done > 1:
            headings["last10"] = f"last {min(10, status.rounds_done)}"
        show_table(
            [
                {"result": column.replace("_", " ")}
                | {h: "-" if values[k] is None else f"{values[k]:.4f}" for k, h in headings.items()}
                for column, values in found.results.items()
            ]
        )
    if found.collapsed:
        echo("\nthe final model collapsed: its balanced accuracy is at most that of chance")
    _print_classes(found)
    _print_curves(found)


def _print_classes(found: Details) -> None:
    from fedsim.training.tables import show as show_table

    if not found.classes or len(found.classes) > MOST_CLASSES:
        return
    names = found.environment.get("classes")
    rows = []
    for row in found.classes:
        label = row.get("label", "-")
        scores = {k: _short(v) for k, v in row.items() if k not in ("round", "label")}
        if isinstance(names, list) and label.isdigit() and int(label) < len(names):
            label = str(names[int(label)])
        rows.append({f"class (round {row['round']})": label, **scores})
    echo()
    show_table(rows)


def _print_curves(found: Details) -> None:
    from fedsim.cli import details

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    blocks = details.BLOCKS if "utf" in encoding.lower() else details.ASCII_BLOCKS
    lines = []
    for column in CURVES:
        points = details.curve(found.rounds, column)
        if len(points) > 1:
            rounds, values = list(points), list(points.values())
            line = f"{values[0]:.4f} {details.sparkline(values, blocks)} {values[-1]:.4f}"
            what = f"rounds {rounds[0]} to {rounds[-1]}"
            lines.append(f"{column.replace('_', ' '):13}  {line}  {what}")
    if lines:
        echo("\n" + "\n".join(lines))


def _short(cell: str) -> str:
    """A cell of classes.csv with four decimals."""
    try:
        return f"{float(cell):.4f}" if "." in cell else cell or "-"
    except ValueError:
        return cell


def _values(found: Details) -> dict[str, Any]:
    """A run for programs."""
    from fedsim.cli import details

    return {
        "path": str(found.status.path),
        "state": found.status.state,
        "problem": found.status.problem,
        "rounds_done": found.status.rounds_done,
        "rounds": found.settings["train.rounds"],
        "fedsim": found.environment.get("fedsim"),
        "device": found.environment.get("device"),
        "changed": {k: {"value": v, "default": d} for k, (v, d) in found.changed.items()},
        "settings": dict(found.settings),
        "best_round": found.best_round,
        "collapsed": found.collapsed,
        "results": found.results,
        "classes": [dict(row) for row in found.classes],
        "curves": {column: details.curve(found.rounds, column) for column in CURVES},
    }


def _compared(found: Sequence[Details]) -> dict[str, Any]:
    """The comparison for programs: lists in the order of the runs."""
    described = [_described(each) for each in found]
    differing = _differing(described)
    return {
        "runs": [str(each.status.path) for each in found],
        "states": [each.status.state for each in found],
        "settings": {key: [run.get(key) for run in differing] for key in _keys(differing)},
        "collapsed": [each.collapsed for each in found],
        "results": [each.results for each in found],
    }


def _described(found: Details) -> dict[str, Any]:
    """The settings, and what else can change results: version, kind of device, data and code."""
    known = {key: found.environment.get(key) for key in ("fedsim", "device")}
    versions = {key: value for key, value in known.items() if value is not None}
    return {**found.settings, **versions, **found.digests}


def _differing(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The entries in which the runs are not all the same.

    A digest that a run of an earlier version does not have is the same as all others.
    """
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
