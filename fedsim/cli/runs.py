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
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.storage.directories import Found, SweepStatus


@click.command()
@click.argument("directories", nargs=-1, metavar="[DIR]...", shell_complete=folders)
@format_option
@verbose_option
def runs(directories: tuple[str, ...], form: str) -> None:
    """List the runs, sweeps and searches below folders, runs/ by default.

    Of each run: the rounds done, whether it is finished, running, interrupted or failed, its final
    and best test accuracy, and when its last results were written. A running run is not disturbed.
    A run that failed or is damaged is listed with the reason. A search of 'fedsim tune' has one
    line, with the best value on the validation part; its runs are listed where DIR is the search.

    \b
      fedsim runs
      fedsim runs runs/digits runs/sweep-table3_small
      fedsim runs runs/tune-lr                        the runs of a search, too
      fedsim runs --format json
    """
    from fedsim.storage import directories as stored
    from fedsim.training.tables import show

    for folder in directories:
        if not Path(folder).is_dir():
            raise ConfigError(f"DIR {folder}: there is no such folder")
    chosen = [Path(folder) for folder in directories or ("runs",)]
    found = {s.path: s for folder in chosen if folder.is_dir() for s in stored.find(folder)}
    if form == "json":
        echo(json.dumps([_values(each) for each in found.values()], indent=2))
    elif found:
        rows = [_cells(each) for each in found.values()]
        show([row if any(r["problem"] for r in rows) else _without(row) for row in rows])
    else:
        where = ", ".join(map(str, chosen))
        echo(f"no runs in {where}; 'fedsim run' writes to runs/, or to --out DIR")


def _values(found: Found) -> dict[str, Any]:
    """A run, sweep or search for programs."""
    from fedsim.storage.directories import SearchStatus, SweepStatus
    from fedsim.storage.status import FAILED, FINISHED

    if isinstance(found, SearchStatus):
        return {"kind": "search", **values_of_search(found)}
    if isinstance(found, SweepStatus):
        counts = {
            "runs_finished": found.counts[FINISHED],
            "runs_failed": found.counts[FAILED],
            "runs": len(found.runs),
            "runs_in_grid": None if found.grid is None else len(found.grid),
        }
        return {"kind": "sweep", "path": str(found.path), "state": found.state, **counts}
    values = {"kind": "run", **asdict(found)}
    values |= {"path": str(found.path), "sweep": str(found.sweep) if found.sweep else None}
    values["when"] = _when(values.pop("changed"))
    return values


def _cells(found: Found) -> dict[str, str]:
    """A row of the table; the runs of a sweep are indented under it."""
    from fedsim.storage.directories import SearchStatus, SweepStatus

    if isinstance(found, SweepStatus):
        return EMPTY | {"run": f"{found.path} (sweep)", "state": f"{found.state} ({_done(found)})"}
    if isinstance(found, SearchStatus):
        return EMPTY | {
            "run": f"{found.path} (search)",
            "state": f"{found.state} ({trials_of(found)})" if found.trials else found.state,
            "best": "" if found.best is None else f"{found.best.value:.4f} ({found.by})",
            "problem": found.problem or "",
        }
    return {
        "run": f"  {found.path.name}" if found.sweep else str(found.path),
        "algorithm": found.algorithm or "-",
        "dataset": found.dataset or "-",
        "seed": "-" if found.seed is None else str(found.seed),
        "rounds": f"{found.rounds_done}/{'-' if found.rounds is None else found.rounds}",
        "state": found.state,
        "final": _accuracy(found.final_test_accuracy),
        "best": _accuracy(found.best_test_accuracy),
        "when": (_when(found.changed) or "-").replace("T", " ")[:16],
        "problem": found.problem or "",
    }


EMPTY = dict.fromkeys(
    ("run", "algorithm", "dataset", "seed", "rounds", "state", "final", "best", "when", "problem"),
    "",
)


def _done(sweep: SweepStatus) -> str:
    """``3 of 18 runs, 1 failed``; of a grid that is not known the runs that have begun."""
    from fedsim.storage.status import FAILED, FINISHED

    counts = sweep.counts
    known = sweep.grid is not None
    total = counted(len(sweep.grid or sweep.runs), "run" if known else "begun run")
    failed = f", {counts[FAILED]} failed" if counts[FAILED] else ""
    return f"{counts[FINISHED]} of {total}{failed}"


def _without(row: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in row.items() if key != "problem"}


def _accuracy(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _when(seconds: float | None) -> str | None:
    """Local time in ISO 8601, to the second."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
