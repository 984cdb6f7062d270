"""The trials of ``fedsim tune``: the best value so far, and values by searched setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.core.reading import parse_json

from . import AnalysisError
from .figures import grid, style
from .figures.grid import Drawing
from .files import read_table
from .labels import text
from .scores import SCORES, VALIDATION, Score
from .stats import Estimate
from .tables.layout import EMPTY, Table
from .words import say, sentences

FILE, STUDY, CONFIRMED = "trials.csv", "study.json", "confirm.csv"
HEAD = ("trial", "state", "value")
LOOKS = {"complete": ("o", style.BLUE), "pruned": ("x", style.ORANGE)}
"""Marker and colour by state; a failed trial has no value to draw."""


@dataclass(frozen=True)
class Search:
    """The trials of one search, by number.

    Attributes:
        table: trials.csv; settings are text, but for those that are numbers.
        keys: the searched settings, columns of the table.
        by: the metric, such as ``val_accuracy``.
        logarithmic: those of the settings that were searched so.
        sampler: how candidates were proposed; empty where it is not known.
        planned: the number of trials of the whole search; None where it is not known.
        seeds: training seeds of every trial; none where they are not known.
    """

    table: pd.DataFrame
    keys: Sequence[str]
    by: str
    logarithmic: Sequence[str] = ()
    sampler: str = ""
    planned: int | None = None
    seeds: Sequence[int] = ()

    @property
    def score(self) -> Score:
        """How the metric is called and shown."""
        return SCORES[VALIDATION[self.by]]

    @property
    def valued(self) -> pd.DataFrame:
        """The trials that have a value, in the unit in which it is shown."""
        there = self.table[self.table["value"].notna()]
        return there.assign(value=there["value"] * self.score.unit.factor)

    @property
    def best(self) -> pd.Series | None:
        """The best complete trial, the first one of equal values; None where none is complete."""
        complete = self.table[self.table["state"] == "complete"]
        if complete.empty:
            return None
        order = complete["value"] * (1 if self.score.lowest else -1)
        return complete.iloc[int(order.argmin())]

    @property
    def axis(self) -> str:
        """The label of an axis of values."""
        return self.score.unit.head(f"Validation {self.score.title}")


def is_search(folder: Path) -> bool:
    """Whether a folder is that of a search."""
    return (folder / FILE).is_file()


def read_search(folder: Path) -> Search:
    """The search in a folder.

    Raises:
        AnalysisError: a file is missing or cannot be read, or there is no trial yet.
    """
    table = read_table(folder / FILE, numbers=("trial", "value"), texts=("state", "run"))
    if table.empty:
        raise AnalysisError(f"{folder / FILE}: no trial has ended yet")
    keys = [column for column in table.columns if column not in (*HEAD, "run")]
    file = folder / STUDY
    try:
        study = parse_json(file.read_bytes())
        by, forms = str(study["by"]), {key: str(study["search"][key]) for key in keys}
        seeds = [int(seed) for seed in study.get("seeds", ())]
        planned = None if study.get("trials") is None else int(study["trials"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnalysisError(f"{file}: does not say what was searched ({error!r})") from error
    if by not in VALIDATION:
        raise AnalysisError(f"{file}: unknown metric {by!r}; known: {', '.join(VALIDATION)}")
    logarithmic = [key for key, form in forms.items() if form.startswith("loguniform")]
    return Search(
        table.sort_values("trial", kind="stable", ignore_index=True), keys, by, logarithmic,
        sampler=str(study.get("sampler", "")), planned=planned,
        seeds=seeds,
    )  # fmt: skip


def lead(search: Search) -> str:
    """What was searched, in a sentence or two."""
    count, counts = len(search.table), search.table["state"].value_counts()
    parts = [f"{counts[s]} {s}" for s in ("complete", "pruned", "failed") if s in counts]
    return say(
        "trials.lead", count=count, states=", ".join(parts), metric=search.by,
        best="lowest" if search.score.lowest else "highest",
    )  # fmt: skip


def findings(search: Search) -> list[str]:
    """The best trial in words."""
    best = search.best
    if best is None:
        return ["No trial is complete."]
    values = ", ".join(f"`{key} = {_short(best[key])}`" for key in search.keys)
    unit = search.score.unit
    value = f"{unit.number(best['value'])} {unit.name}".strip()
    score = search.score.title
    return [say("trials.best", trial=best["trial"], score=score, value=value, settings=values)]


def table(search: Search) -> Table:
    """All trials, the best first; those that did not end after them."""
    rank = search.table["state"].map({"complete": 0, "pruned": 1}).fillna(2)
    order = search.table["value"] * (1 if search.score.lowest else -1)
    listed = search.table.assign(rank=rank, order=order).sort_values(
        ["rank", "order", "trial"], kind="stable"
    )
    rows = []
    for row in listed.to_dict("records"):
        value = EMPTY if pd.isna(row["value"]) else search.score.unit.number(row["value"])
        rows.append(
            [str(row["trial"]), row["state"], *(_short(row[k]) for k in search.keys), value]
        )
    return Table(
        name="trials", title="All trials", caption=say("trials.caption"), rows=rows, words=2,
        head=["Trial", "State", *search.keys, search.axis],
        data=listed.drop(columns=["rank", "order"]),
    )  # fmt: skip


def confirmed(folder: Path, search: Search) -> Table | None:
    """The best trials on fresh training seeds, the best mean first; None without confirm.csv.

    Raises:
        AnalysisError: the file cannot be read, or a column is missing.
    """
    if not (folder / CONFIRMED).is_file():
        return None
    scores = {search.axis: (search.by, search.score.unit)}
    tested = ["accuracy", *({VALIDATION[search.by]} - {"accuracy", "loss"})]
    for name in tested:
        unit = SCORES[name].unit
        head = unit.head(f"Final test {SCORES[name].title}")
        scores[head] = (f"final_test_{name}", unit)
    parts = [f"{c}_{part}" for c, _ in scores.values() for part in ("mean", "std", "ci95")]
    data = read_table(folder / CONFIRMED, numbers=("trial", "value", "n", *parts))
    rows = []
    for row in data.to_dict("records"):
        cells = [str(row["trial"]), *(_short(row.get(key)) for key in search.keys)]
        cells += [search.score.unit.number(row["value"]), str(row["n"])]
        for column, unit in scores.values():
            mean, std, half = (row[f"{column}_{part}"] for part in ("mean", "std", "ci95"))
            cells.append(unit.spread(Estimate(mean=mean, std=std, n=row["n"], half=half)))
        rows.append(cells)
    ci = " ± 95 % CI" * bool((data["n"] > 1).any())
    failed = data["failed"] > 0 if "failed" in data else pd.Series(False, data.index)
    caption = sentences(
        say("confirmed.caption"),
        "" if failed.all() else say("confirmed.first"),
        say(f"confirmed.{'all' if failed.all() else 'some'}_failed") if failed.any() else "",
        say("confirmed.optimistic"),
    )
    return Table(
        name="confirmed", title="The best trials on fresh training seeds", caption=caption,
        head=["Trial", *search.keys, "In the search", "n", *(f"{head}{ci}" for head in scores)],
        rows=rows, words=1, data=data,
    )  # fmt: skip


def _short(value: object) -> str:
    """A setting as text, a real number with five digits."""
    return f"{value:.5g}" if isinstance(value, float) and not pd.isna(value) else text(value)


def drawings(search: Search) -> Iterator[Drawing]:
    """The figures: the best value so far, and the value against each searched setting."""
    figure = _so_far(search, search.valued)
    yield grid.drawing("search", figure, axis=search.axis)
    figure = _against(search, search.valued)
    yield grid.drawing("search_values", figure, axis=search.axis)


def _points(axes: Axes, x: pd.Series, valued: pd.DataFrame) -> None:
    """Dots of complete trials, crosses of pruned ones."""
    for state, (marker, colour) in LOOKS.items():
        own = valued["state"] == state
        axes.scatter(
            x[own], valued["value"][own], marker=marker, color=colour, s=24, label=state, zorder=2
        )


def _ring(axes: Axes, x: float, y: float) -> None:
    axes.scatter([x], [y], s=110, facecolors="none", edgecolors=style.RED, linewidths=1.6, zorder=3)


def _so_far(search: Search, valued: pd.DataFrame) -> Figure:
    with style.look():
        figure = Figure(figsize=(grid.WIDTH, 3.6))
        axes = figure.subplots()
        _points(axes, valued["trial"], valued)
        complete = valued[valued["state"] == "complete"]
        values = complete["value"]
        best = values.cummin() if search.score.lowest else values.cummax()
        axes.step(complete["trial"], best, where="post", color=style.BLACK, label="best so far")
        axes.set_xlabel("Trial")
        axes.set_ylabel(search.axis)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _limit(axes, search, valued)
        grid.legend(figure, *axes.get_legend_handles_labels())
    return figure


def _against(search: Search, valued: pd.DataFrame) -> Figure:
    columns = min(3, len(search.keys))
    rows = -(-len(search.keys) // columns)
    with style.look():
        figure = Figure(figsize=(grid.WIDTH, 0.4 + 2.9 * rows))
        places = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        for axes, key in zip(places, search.keys, strict=False):
            x = _horizontal(axes, valued[key])
            if key in search.logarithmic:
                axes.set_xscale("log")
                style.logarithmic(axes.xaxis)
            _points(axes, x, valued)
            if search.best is not None:
                row = valued.index[valued["trial"] == search.best["trial"]][0]
                _ring(axes, float(x[row]), float(valued["value"][row]))
            axes.set_xlabel(key)
        for axes in places[len(search.keys) :]:
            axes.set_visible(False)
        for axes in places[::columns]:
            axes.set_ylabel(search.axis)
        _limit(places[0], search, valued)
    return figure


def _horizontal(axes: Axes, values: pd.Series) -> pd.Series:
    """Where the values of a setting stand on the horizontal axis; texts side by side."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        if pd.api.types.is_integer_dtype(values):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        return values.astype(float)
    names = [text(value) for value in values]
    if not names:
        return values.astype(float)
    known = sorted(set(names))
    axes.set_xticks(range(len(known)), known)
    axes.set_xlim(-0.5, len(known) - 0.5)
    return pd.Series([float(known.index(name)) for name in names], values.index)


def _limit(axes: Axes, search: Search, valued: pd.DataFrame) -> None:
    """Ends the axis of a loss where a few huge values would hide all others."""
    if not search.score.lowest or valued.empty:
        return
    low, high = float(valued["value"].min()), float(valued["value"].max())
    usual = float(np.quantile(valued["value"], 0.75))
    if high > low + 5 * (usual - low) > low:
        axes.set_ylim(low - 0.1 * (usual - low), low + 3 * (usual - low))
