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
from fedsim.core.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.storage.status import RunStatus, SweepStatus


@click.command()
@click.argument("directories", nargs=-1, metavar="[DIR]...", shell_complete=folders)
@format_option
@verbose_option
def runs(directories: tuple[str, ...], form: str) -> None:
    """List the runs and sweeps below folders, runs/ by default.

    Of each run: the rounds done, whether it is finished, running or interrupted, its final and best
    test accuracy, and when its last results were written. A running run is not disturbed. A run
    that is damaged is listed with the reason.

    \b
      fedsim runs
      fedsim runs runs/digits runs/sweep-table3_small
      fedsim runs --format json
    """
    from fedsim.storage import status
    from fedsim.training.tables import show

    for folder in directories:
        if not Path(folder).is_dir():
            raise ConfigError(f"DIR {folder}: there is no such folder")
    chosen = [Path(folder) for folder in directories or ("runs",)]
    found = {s.path: s for folder in chosen if folder.is_dir() for s in status.find(folder)}
    if form == "json":
        click.echo(json.dumps([_values(each) for each in found.values()], indent=2))
    elif found:
        rows = [_cells(each) for each in found.values()]
        show([row if any(r["problem"] for r in rows) else _without(row) for row in rows])
    else:
        where = ", ".join(map(str, chosen))
        click.echo(f"no runs in {where}; 'fedsim run' writes to runs/, or to --out DIR")


def _values(found: RunStatus | SweepStatus) -> dict[str, Any]:
    """A run or sweep for programs."""
    from fedsim.storage.status import SweepStatus

    if isinstance(found, SweepStatus):
        counts = {"runs_finished": found.finished, "runs": len(found.runs)}
        return {"kind": "sweep", "path": str(found.path), "state": found.state, **counts}
    values = {"kind": "run", **asdict(found)}
    values |= {"path": str(found.path), "sweep": str(found.sweep) if found.sweep else None}
    values["when"] = _when(values.pop("changed"))
    return values


def _cells(found: RunStatus | SweepStatus) -> dict[str, str]:
    """A row of the table; the runs of a sweep are indented under it."""
    from fedsim.storage.status import SweepStatus

    if isinstance(found, SweepStatus):
        cells = dict.fromkeys(("algorithm", "dataset", "seed", "rounds"), "")
        done = f"{found.finished} of {len(found.runs)} runs"
        state = f"{found.state} ({done})"
        return {"run": f"{found.path} (sweep)", **cells, "state": state} | dict.fromkeys(
            ("final", "best", "when", "problem"), ""
        )
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


def _without(row: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in row.items() if key != "problem"}


def _accuracy(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _when(seconds: float | None) -> str | None:
    """Local time in ISO 8601, to the second."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
