"""The trials of ``fedsim tune``: the best value so far, and values by searched setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.core.measures import Measures
from fedsim.core.reading import parse_json

from . import AnalysisError
from .figures import grid, style
from .figures.grid import Drawing
from .files import read_table
from .labels import text
from .scores import Score, shown
from .stats import Estimate
from .tables.layout import EMPTY, Table
from .words import say, sentences

FILE, STUDY, CONFIRMED = "trials.csv", "study.json", "confirm.csv"
HEAD = ("trial", "state", "value")
LOOKS = {"complete": ("o", style.BLUE), "pruned": ("x", style.ORANGE)}
"""Marker and colour by state; a failed trial has no value to draw."""


@dataclass(frozen=True)
class Search:
    """The trials of one search, by number."""

    table: pd.DataFrame  # trials.csv; settings are text, but for those that are numbers
    keys: Sequence[str]  # the searched settings, columns of the table
    by: str  # the metric, such as ``val_accuracy``
    logarithmic: Sequence[str] = ()  # those of the settings that were searched so
    sampler: str = ""  # how candidates were proposed; empty where it is not known
    planned: int | None = None  # number of trials of the whole search, where known
    seeds: Sequence[int] = ()  # training seeds of every trial; none where they are not known
    measures: Measures = field(default_factory=Measures)  # of its task

    @property
    def measure(self) -> str:
        """The name of what the metric is on any part."""
        return self.by.removeprefix("val_")

    @property
    def score(self) -> Score:
        """How the metric is called and shown."""
        return shown(self.measures)[self.measure]

    @property
    def listed(self) -> pd.DataFrame:
        """All trials: the complete ones, the best first, then those pruned, then those failed."""
        rank = self.table["state"].map({"complete": 0, "pruned": 1}).fillna(2)
        order = self.table["value"] * (1 if self.score.lowest else -1)
        sorted_rows = self.table.assign(rank=rank, order=order).sort_values(
            ["rank", "order", "trial"], kind="stable"
        )
        return sorted_rows[self.table.columns]

    @property
    def best(self) -> pd.Series | None:
        """The best complete trial, the first one of equal values; None where none is complete."""
        first = self.listed.iloc[0]
        return first if first["state"] == "complete" else None

    @property
    def axis(self) -> str:
        """The label of an axis of values."""
        return self.score.unit.head(f"Validation {self.score.title}")


def is_search(folder: Path) -> bool:
    """Whether a folder is that of a search."""
    return (folder / FILE).is_file()


def read_search(folder: Path) -> Search:
    """The search in a folder."""
    table = read_table(folder / FILE, numbers=("trial", "value"), texts=("state", "run"))
    if table.empty:
        raise AnalysisError(f"{folder / FILE}: no trial has ended yet")
    keys = [column for column in table.columns if column not in (*HEAD, "run")]
    file = folder / STUDY
    try:
        study = parse_json(file.read_bytes())
        search = Search(
            table.sort_values("trial", kind="stable", ignore_index=True), keys, str(study["by"]),
            [key for key in keys if str(study["search"][key]).startswith("loguniform")],
            study.get("sampler", ""), study.get("trials"), study.get("seeds", ()),
            Measures.of(study),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AnalysisError(f"{file}: does not say what was searched ({error!r})") from error
    if search.by not in (names := [f"val_{name}" for name in search.measures.scores]):
        known = ", ".join(names)
        raise AnalysisError(f"{file}: unknown metric {search.by!r}; known: {known}")
    return search


def lead(search: Search) -> str:
    """What was searched, in a sentence or two."""
    counts = search.table["state"].value_counts()
    parts = [f"{counts[s]} {s}" for s in ("complete", "pruned", "failed") if s in counts]
    return say(
        "trials.lead", count=len(search.table), states=", ".join(parts), metric=search.by,
        best="lowest" if search.score.lowest else "highest",
    )  # fmt: skip


def findings(search: Search) -> list[str]:
    """The best trial in words."""
    best = search.best
    if best is None:
        return ["No trial is complete."]
    values = ", ".join(f"`{key} = {_short(best[key])}`" for key in search.keys)
    title, unit = search.score.title, search.score.unit
    value = f"{unit.number(best['value'])} {unit.name}".strip()
    return [say("trials.best", settings=values, trial=best["trial"], score=title, value=value)]


def table(search: Search) -> Table:
    """All trials, the best first; those that did not end after them."""
    number = search.score.unit.number
    rows = [
        [str(row["trial"]), row["state"], *(_short(row[k]) for k in search.keys),
         EMPTY if pd.isna(row["value"]) else number(row["value"])]
        for row in search.listed.to_dict("records")
    ]  # fmt: skip
    return Table(
        name="trials", title="All trials", caption=say("trials.caption"), rows=rows, words=2,
        head=["Trial", "State", *search.keys, search.axis], data=search.listed,
    )  # fmt: skip


def confirmed(folder: Path, search: Search) -> Table | None:
    """The best trials on fresh training seeds, the best mean first; None without confirm.csv."""
    if not (folder / CONFIRMED).is_file():
        return None
    scores = {search.axis: (search.by, search.score.unit)}
    primary = search.measures.primary
    for name in (primary, *({search.measure} - {primary, "loss"})):
        one = shown(search.measures)[name]
        scores[one.unit.head(f"Final test {one.title}")] = (f"final_test_{name}", one.unit)
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
    valued, best = search.table[search.table["value"].notna()], search.best
    valued = valued.assign(value=valued["value"] * search.score.unit.factor)
    complete = valued[valued["state"] == "complete"]
    with style.look():
        figure, (axes,) = _figure(search, valued, ["trial"])
        so_far = complete["value"].cummin() if search.score.lowest else complete["value"].cummax()
        axes.step(complete["trial"], so_far, where="post", color=style.BLACK, label="best so far")
        axes.set_xlabel("Trial")
        grid.legend(figure, *axes.get_legend_handles_labels())
    yield grid.drawing("search", figure, axis=search.axis)
    with style.look():
        figure, places = _figure(search, valued, search.keys)
        for axes, key in zip(places, search.keys, strict=False):
            if key in search.logarithmic:
                axes.set_xscale("log")
                style.logarithmic(axes.xaxis)
            if best is not None:
                row = valued[valued["trial"] == best["trial"]]
                axes.scatter(
                    _horizontal(axes, valued[key])[row.index], row["value"], s=110, zorder=3,
                    facecolors="none", edgecolors=style.RED, linewidths=1.6,
                )  # fmt: skip
    yield grid.drawing("search_values", figure, axis=search.axis)


def _figure(search: Search, valued: pd.DataFrame, keys: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A panel per column: dots of complete trials, crosses of pruned ones; huge losses cut."""
    across = min(3, len(keys))
    lines = -(-len(keys) // across)
    figure = Figure(figsize=(grid.WIDTH, 0.5 + 2.9 * lines))
    every = figure.subplots(lines, across, squeeze=False, sharey=True)
    places = list(every.ravel())
    for axes in places[len(keys) :]:
        axes.set_visible(False)
    for axes in every[:, 0]:
        axes.set_ylabel(search.axis)
    for axes, key in zip(places, keys, strict=False):
        x = _horizontal(axes, valued[key])
        for state, (marker, colour) in LOOKS.items():
            chosen = valued["state"] == state
            axes.scatter(
                x[chosen], valued["value"][chosen], marker=marker, color=colour, s=24, label=state,
                zorder=2,
            )  # fmt: skip
        axes.set_xlabel(key)
    if search.score.lowest and len(valued):
        low, high = float(valued["value"].min()), float(valued["value"].max())
        usual = float(np.quantile(valued["value"], 0.75))
        if high > low + 5 * (usual - low) > low:
            places[0].set_ylim(low - 0.1 * (usual - low), low + 3 * (usual - low))
    return figure, places


def _horizontal(axes: Axes, values: pd.Series) -> pd.Series:
    """Where the values of a setting stand on the horizontal axis; texts side by side."""
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
        if pd.api.types.is_integer_dtype(values):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        return values.astype(float)
    codes, names = pd.factorize(values.map(text), sort=True)
    if len(names):
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    return pd.Series(codes, values.index, dtype=float)
