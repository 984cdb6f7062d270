"""What the commands say of a search by ``fedsim tune``."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.core.errors import DataError, StoreError
from fedsim.core.measures import Measures
from fedsim.core.terminal import echo
from fedsim.core.text import counted

if TYPE_CHECKING:
    from fedsim.storage.directories import SearchStatus


def trials_of(search: SearchStatus) -> str:
    """``7 of 20 trials: 5 complete, 2 pruned``."""
    ended, planned = len(search.trials), search.planned or 0
    number = f"{ended} of {counted(planned, 'trial')}" if ended < planned else ""
    counts = ", ".join(f"{count} {state}" for state, count in search.counts.items())
    return (number or counted(ended, "trial")) + (f": {counts}" if counts else "")


def values(search: SearchStatus) -> dict[str, Any]:
    """A search for programs."""
    best = search.best
    return {
        "path": str(search.path),
        "state": search.state,
        "problem": search.problem,
        "by": search.study.get("by"),
        "trials": len(search.trials),
        "trials_planned": search.planned,
        **{state: search.counts.get(state, 0) for state in ("complete", "pruned", "failed")},
        "best_trial": None if best is None else best.number,
        "best_value": None if best is None else best.value,
    }


def details(search: SearchStatus) -> dict[str, Any]:
    """All of a search for programs."""
    best, file = search.best, search.path / "best.yaml"
    return {
        **values(search),
        "study": dict(search.study),
        "best_params": None if best is None else dict(best.params),
        "best_yaml": str(file) if file.is_file() else None,
        "best_yaml_trial": _chosen(file),
        "confirmed": [
            {column: None if value != value else value for column, value in row.items()}  # NaN
            for row in confirmed(search.path)
        ],
    }


def show(search: SearchStatus) -> None:
    """Prints a search: what is searched, how the trials ended, and the best ones."""
    if search.problem is not None:
        raise DataError(search.problem)
    study: Mapping[str, Any] = search.study
    echo(f"{search.path}: {search.state} search")
    for key, form in study.get("search", {}).items():
        echo(f"  {key}: {form}")
    echo(
        f"by {search.by}, sampler {study.get('sampler')}, pruner {study.get('pruner')}, "
        f"training seeds {', '.join(map(str, study['seeds']))}"
    )
    echo(trials_of(search))
    if search.best is not None:
        from fedsim.studies.tune import params_text

        echo(f"best trial {search.best.number}: {search.by} {search.best.value or 0.0:.4f}")
        echo(f"  {params_text(search.best.params)}")
    if rows := confirmed(search.path):
        show_confirmed(search.by, search.measures, rows)
    if (file := search.path / "best.yaml").is_file():
        echo(f"{file} has trial {_chosen(file)}")


def show_confirmed(by: str, measures: Measures, rows: Sequence[Mapping[Any, Any]]) -> None:
    """Prints the rows of confirm.csv, in which empty cells are NaN."""
    from fedsim.display.tables import interval
    from fedsim.display.tables import show as show_table

    echo("on fresh training seeds: mean +- half-width of its 95 % interval (t distribution)")
    shown = []
    for line in rows:
        failed = int(line.get("failed") or 0)
        of = f" of {line['n'] + failed}" if failed else ""
        row = {"trial": str(line["trial"]), "n": f"{line['n']}{of}"}
        row["in the search"] = f"{line['value']:.4f}"
        test = f"final test {measures.title}", measures.column("test", "final")
        for head, column in ((by, by), test):
            row[head] = interval(line[f"{column}_mean"], line[f"{column}_ci95"], 4)
        shown.append(row)
    show_table(shown)


MEASURES = ("value", "_mean", "_std", "_ci95")
"""Ends of the names of columns with numbers."""


def confirmed(folder: Path) -> list[dict[str, Any]]:
    """The rows of confirm.csv, none where there is no such file; trial and n are whole numbers."""
    from fedsim.storage import tables

    path = folder / "confirm.csv"

    def value(column: str, cell: str) -> int | float | str:
        if column in ("trial", "n"):
            return int(cell)
        return float(cell or "nan") if column.endswith(MEASURES) else cell

    try:
        rows = tables.read(path) if path.exists() else []
        return [{column: value(column, cell) for column, cell in row.items()} for row in rows]
    except (OSError, ValueError, csv.Error) as error:
        raise StoreError(f"{path}: cannot be read ({error})") from error


def _chosen(best: Path) -> int | None:
    """The number of the trial in best.yaml, which its first line names."""
    text = best.read_text(encoding="utf-8") if best.is_file() else ""
    match = re.match(r"# trial (\d+):", text)
    return int(match[1]) if match else None
