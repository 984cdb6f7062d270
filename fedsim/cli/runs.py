"""``fedsim runs``."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli.names import folders
from fedsim.cli.options import format_option, verbose_option
from fedsim.cli.searches import trials_of
from fedsim.cli.searches import values as values_of_search
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo
from fedsim.core.text import counted, decimals

if TYPE_CHECKING:
    from fedsim.storage.directories import Found


@click.command()
@click.argument("directories", nargs=-1, metavar="[DIR]...", shell_complete=folders)
@format_option
@verbose_option
def runs(directories: tuple[str, ...], form: str) -> None:
    """List runs, sweeps and searches below folders, runs/ by default.

    Of each run: its label, the rounds done, whether it is finished, running, interrupted or failed
    and why, its final and best test accuracy (of another task its primary measure, by name), and
    when its last results were written. A search of 'fedsim tune' has one line; its runs are listed
    where DIR is the search.

    \b
      fedsim runs
      fedsim runs runs/digits runs/sweep-table3_small
      fedsim runs --format json
    """
    from fedsim.display.tables import show
    from fedsim.storage import directories as stored

    for folder in directories:
        if not Path(folder).is_dir():
            raise ConfigError(f"DIR {folder}: there is no such folder")
    chosen = [Path(folder) for folder in directories or ("runs",)]
    listed = {s.path: s for folder in chosen if folder.is_dir() for s in stored.find(folder)}
    if form == "json":
        echo(json.dumps([_values(each) for each in listed.values()], indent=2))
    elif listed:
        rows = [_cells(each) for each in listed.values()]
        idle = {key for key in ("label", "problem") if not any(row[key].strip("-") for row in rows)}
        show([{key: cell for key, cell in row.items() if key not in idle} for row in rows])
    else:
        places = ", ".join(map(str, chosen))
        echo(f"no runs in {places}; 'fedsim run' writes to runs/, or to --out DIR")


def _values(item: Found) -> dict[str, Any]:
    """A run, sweep or search for programs."""
    from fedsim.storage.directories import SearchStatus, SweepStatus
    from fedsim.storage.status import FAILED, FINISHED

    if isinstance(item, SearchStatus):
        return {"kind": "search", **values_of_search(item)}
    if isinstance(item, SweepStatus):
        counts = {
            "runs_finished": item.counts[FINISHED],
            "runs_failed": item.counts[FAILED],
            "runs": len(item.runs),
            "runs_in_grid": None if item.grid is None else len(item.grid),
        }
        return {"kind": "sweep", "path": str(item.path), "state": item.state, **counts}
    values = {"kind": "run", **asdict(item)}
    values |= {"path": str(item.path), "sweep": str(item.sweep) if item.sweep else None}
    return values | {"when": _when(values.pop("changed"))}


def _cells(item: Found) -> dict[str, str]:
    """A row of the table; the runs of a sweep are indented under it."""
    from fedsim.storage.directories import SearchStatus, SweepStatus
    from fedsim.storage.status import FAILED, FINISHED

    if isinstance(item, SweepStatus):
        number = len(item.grid or item.runs)
        total = counted(number, "begun run" if item.grid is None else "run")
        failed = f", {item.counts[FAILED]} failed" if item.counts[FAILED] else ""
        state = f"{item.state} ({item.counts[FINISHED]} of {total}{failed})"
        return EMPTY | {"run": f"{item.path} (sweep)", "state": state}
    if isinstance(item, SearchStatus):
        return EMPTY | {
            "run": f"{item.path} (search)",
            "state": f"{item.state} ({trials_of(item)})" if item.trials else item.state,
            "best": "" if item.best is None else f"{item.best.value:.4f} ({item.by})",
            "problem": item.problem or "",
        }
    return {
        "run": f"  {item.path.name}" if item.sweep else str(item.path),
        "label": item.label or "-",
        "algorithm": item.algorithm or "-",
        "dataset": item.dataset or "-",
        "seed": "-" if item.seed is None else str(item.seed),
        "rounds": f"{item.rounds_done}/{'-' if item.rounds is None else item.rounds}",
        "state": item.state,
        "final": _value(item.final, item.measure),
        "best": _value(item.best, item.measure),
        "when": (_when(item.changed) or "-").replace("T", " ")[:16],
        "problem": item.problem or "",
    }


HEADS = "run label algorithm dataset seed rounds state final best when problem"
EMPTY = dict.fromkeys(HEADS.split(), "")


def _value(value: float | None, measure: str) -> str:
    """``0.9123``; of another measure than accuracy with its name: ``0.8628 rmse``."""
    text = decimals(value)
    return text if measure == "accuracy" or text == "-" else f"{text} {measure}"


def _when(seconds: float | None) -> str | None:
    """Local time in ISO 8601, to the second."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
