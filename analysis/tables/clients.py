"""Accuracy by client and by group of test samples: two figures, and tables of its spread.

Only accuracies on the same kind of samples are in one table. In the last evaluation a client has
one on its own test part or, with a model of its own, on the common test part (evaluations.csv).
Those of the final model (summary.csv) are on its own test part; in a run where no held-out client
has one, those of held-out clients are on their training samples (final_clients.csv).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from .. import AnalysisError, series
from ..figures import grid as panels
from ..figures import style
from ..figures.grid import Absent, Drawing, Facets, facet_lines, unit_of
from ..files import client_names
from ..paired import T, Test
from ..runs import Group, first_run
from ..stats import Values, cells, over_units, ranked, reference
from ..units import COLUMNS
from ..words import say, section, sentences
from .captions import comparisons, signs
from .layout import PERCENT, Table, crossed, crossed_heads, with_seeds

PARTS: Mapping[str, str] = section("parts")
"""Parts that clients are evaluated on, the preferred one first, and their names."""
EVALUATED = ("own_test", "test")
"""Those of :data:`PARTS` that have a table of the last evaluation."""
FINAL = ("own_test_accuracy", "finetuned_accuracy", "heldout_finetuned_accuracy")
"""Prefixes of columns of summary.csv that have a table of the final model."""
HELDOUT = ("own_test", "own_train")
"""Parts that held-out clients are scored on, with a table each."""
SPREADS: Mapping[str, str] = {
    "mean": "Mean", "p10": "Worst decile", "worst": "Worst client", "std": "Std over clients",
}  # fmt: skip
"""What is made of the accuracies of a run's clients, and its heading."""
MARKERS = ("o", "D", "s", "^", "v", "P", "X")
DARK = "#444444"


def last_scores(
    groups: Sequence[Group], score: str = "accuracy"
) -> dict[str, dict[str, pd.DataFrame]]:
    """By part of :data:`PARTS` and label each run's ``score`` in its last rows of that part.

    Of a client with a model of its own, evaluations.csv has rows with the split ``test``. Where
    the common test part belongs to clients (sites, users), they are on the client's own samples:
    such a run's are values of ``own_test``, unless it has rows with that split too.

    Returns:
        Frames indexed by (*:data:`analysis.units.COLUMNS`, client_id), as of
        :func:`analysis.series.by_run`; labels without any value of a part are left out.
    """
    columns = [score, "num_samples"]
    last = {
        part: series.by_run(
            groups, "evaluations", columns, "client_id", {"split": part}, take="last"
        )
        for part in PARTS
    }
    owned = {}
    if last["test"]:
        owned = series.by_run(groups, "partition", ["test_samples"], "client_id", reduced="sum")
    for label, frame in list(last["test"].items()):
        run = list(COLUMNS[groups[0].unit])
        samples = owned[label]["test_samples"] if label in owned else pd.Series(dtype=float)
        same = frame["num_samples"] == frame.index.map(samples.to_dict())
        own = same.groupby(level=run).transform("all")
        known = last["own_test"].get(label, frame[:0])
        runs = known.reset_index("client_id").index
        new = own & ~frame.reset_index("client_id").index.isin(runs)
        last["test"][label] = frame[~own]
        last["own_test"][label] = pd.concat([known, frame[new]])
    return {
        part: {label: frame[[score]] for label, frame in of.items() if len(frame)}
        for part, of in last.items()
    }


def by_client(facets: Facets) -> Drawing | Absent:
    """One dot per client and one box per method; a client's accuracy is its mean over seeds.

    Clients of different partitions hold different data: they are dots of their own.
    """
    every = {title: _accuracies(groups) for title, groups in facets.items()}
    part = next((name for name in PARTS if any(by[name] for by in every.values())), None)
    if part is None:
        return panels.absent("clients")
    chosen = {title: by[part] for title, by in every.items()}
    labels = panels.labels_of(chosen)
    counts = [float(n) for by in chosen.values() for frame in by.values() for n in frame["n"]]
    lines = facet_lines(facets)
    sites = _sites(facets)
    with style.look():
        fig, places = panels.method_rows(list(chosen), labels, "Client accuracy (%)")
        for axes, by in zip(places, chosen.values(), strict=True):
            for label, frame in by.items():
                accuracies = 100 * frame["mean"]
                _strip(axes, accuracies, labels.index(label), lines[label].colour, sites)
        if sites:
            handles = [_marker(marker, DARK) for marker, _ in zip(MARKERS, sites, strict=False)]
            panels.legend(fig, handles, [style.short(name, 30) for name in sites.values()])
    who = f"client ({panels.means_note(counts, 'seed')})"
    if unit_of(facets) == "partition":
        who = say("clients.nested")
    without = "; ".join(
        style.title(label) for label in panels.labels_in(facets) if label not in labels
    )
    caption = sentences(
        say("clients.caption", part=PARTS[part], who=who),
        say("clients.without", names=without) if without else "",
        say("clients.sites") if sites else "",
    )
    told = panels.told_by_label(chosen, lambda frame: " " + _range(100 * frame["mean"]))
    return panels.drawing("clients", fig, caption=caption, told=told)


def _accuracies(groups: Sequence[Group]) -> dict[str, dict[str, pd.DataFrame]]:
    """By part and label, columns (mean | n) indexed by client_id.

    If the partition is the unit there is a row for each partition of a client, with n = 1.
    """

    def summed_up(frame: pd.DataFrame) -> pd.DataFrame:
        values = series.per_unit(frame)
        if groups[0].unit == "seed":
            return panels.column(over_units(values, ["client_id"]), "accuracy")
        one = values.set_axis(["mean"], axis=1).assign(n=1)
        return one.droplevel(series.UNIT).sort_index()

    return {
        part: {label: summed_up(frame) for label, frame in of.items()}
        for part, of in last_scores(groups).items()
    }


def _sites(facets: Facets) -> Mapping[int, str]:
    """The clients' names by id, if they are few and the same everywhere."""
    first, *others = [client_names(first_run(groups)) for groups in facets.values()]
    few = all(other == first for other in others) and len(first) <= len(MARKERS)
    return first if few else {}


def _range(values: pd.Series[float]) -> str:
    return f"{values.median():.1f} ({values.min():.1f} to {values.max():.1f})"


def _marker(marker: str, face: str) -> Line2D:
    """A handle of the legend."""
    return Line2D([], [], marker=marker, linestyle="", color=DARK, markerfacecolor=face)


def _strip(
    axes: Axes, accuracies: pd.Series[float], row: int, colour: str, sites: Mapping[int, str]
) -> None:
    """A box plot with all its values, spread over the height of the row.

    ``accuracies`` are in per cent, indexed by client; clients with a site have its shape.
    """
    values = accuracies.to_numpy()
    lines = {"color": colour, "linewidth": 1.1}
    axes.boxplot(
        values, positions=[row], orientation="horizontal", widths=0.56, whis=(0, 100),
        manage_ticks=False, patch_artist=True, showfliers=False,
        boxprops={"facecolor": "none", "edgecolor": colour, "linewidth": 1.1},
        medianprops={"color": colour, "linewidth": 2.2}, whiskerprops=lines, capprops=lines,
    )  # fmt: skip
    heights = row + 0.2 * (2 * (np.arange(len(values)) * 0.618034 % 1) - 1)
    size = 14 if len(values) <= 60 else 6
    dots: dict[str, Any] = {"color": colour, "linewidths": 0, "zorder": 3}
    if not sites:
        axes.scatter(values, heights, s=size, alpha=0.45, **dots)
    for marker, client in zip(MARKERS, sites, strict=False):
        if client in accuracies.index:
            own = accuracies[accuracies.index == client]
            axes.scatter(own, [row] * len(own), s=34, marker=marker, alpha=0.8, **dots)


def by_group(facets: Facets) -> Drawing | Absent:
    """Mean accuracy and 95 % interval by group of test samples, one row per method."""
    accuracies = {
        title: {
            label: panels.column(frame, "accuracy")
            for label, frame in series.aggregated(
                groups, "evaluations", ["accuracy"], "group", {"split": "test"}, take="last"
            ).items()
        }
        for title, groups in facets.items()
    }
    frames = [frame for by in accuracies.values() for frame in by.values()]
    if not frames:
        return panels.absent("groups")
    known = list(dict.fromkeys(name for frame in frames for name in frame.index))
    labels = panels.labels_of(accuracies)
    lines = facet_lines(facets)
    with style.look():
        fig, places = panels.method_rows(list(accuracies), labels, "Test accuracy (%)", columns=2)
        for axes, by in zip(places, accuracies.values(), strict=True):
            for label, frame in by.items():
                _groups(axes, 100 * frame, known, labels.index(label), lines[label].colour)
        handles = [
            _marker(MARKERS[index % len(MARKERS)], "white" if index else DARK)
            for index, _ in enumerate(known)
        ]
        for handle in handles:
            handle.set_markersize(7)
        note = panels.unit_note((n for f in frames for n in f["n"]), unit_of(facets), "bar")
        panels.legend(fig, handles, known, note)

    def means(frame: pd.DataFrame) -> str:
        return ": " + ", ".join(f"{g} {value:.1f}" for g, value in (100 * frame["mean"]).items())

    told = panels.told_by_label(accuracies, means)
    return panels.drawing("groups", fig, names=", ".join(known), note=note, told=told)


def _groups(axes: Axes, frame: pd.DataFrame, known: list[str], row: int, colour: str) -> None:
    means = frame["mean"].reindex(known)
    axes.plot([means.min(), means.max()], [row, row], color="#BBBBBB", linewidth=1.2, zorder=1)
    for index, name in enumerate(known):
        if name in frame.index:
            half = frame["half"][name]
            axes.errorbar(
                means[name], row, xerr=None if np.isnan(half) else half,
                fmt=MARKERS[index % len(MARKERS)], color=colour, capsize=3, markersize=7,
                markerfacecolor=colour if index == 0 else "white", elinewidth=1.2,
            )  # fmt: skip


def spreads(groups: Sequence[Group], baseline: str | None = None, test: Test = T) -> list[Table]:
    """A table for each of :data:`EVALUATED`, :data:`FINAL` and :data:`HELDOUT` that any run has.

    Raises:
        AnalysisError: no run has any, or there is nothing to compare with the baseline.
    """
    labels = [one.label for one in groups]
    if baseline is not None and not _compared(labels, baseline):
        raise AnalysisError(
            f"baseline {baseline}: nothing to compare with it; the runs are {'; '.join(labels)}"
        )
    last = last_scores(groups)
    values = {f"evaluated_{part}": _over_clients(last[part]) for part in EVALUATED}
    values |= {prefix: _of_summaries(groups, prefix) for prefix in FINAL}
    scored = series.by_run(groups, "final_clients", ["split"], (), {"held_out": 1}, reduced="first")
    splits = {label: frame["split"].droplevel(series.WHOLE) for label, frame in scored.items()}
    for part in HELDOUT:
        runs = {label: split.index[split == part] for label, split in splits.items()}
        values[f"heldout_{part}"] = _of_summaries(groups, "heldout_accuracy", runs)
    made = [_table(key, of, labels, baseline, test) for key, of in values.items() if of]
    if not made:
        raise AnalysisError(say("spreads.absent"))
    return made


def _over_clients(accuracies: Mapping[str, pd.DataFrame]) -> Values:
    """Each run's spread over its clients, from the accuracies of :func:`last_scores`."""
    by_run = {
        label: frame["accuracy"].groupby(level=list(frame.index.names[:-1]))
        for label, frame in accuracies.items()
    }
    if not by_run:
        return {}
    return {
        "mean": {label: clients.mean() for label, clients in by_run.items()},
        "p10": {label: clients.quantile(0.1) for label, clients in by_run.items()},
        "worst": {label: clients.min() for label, clients in by_run.items()},
        "std": {label: clients.std(ddof=0) for label, clients in by_run.items()},
    }


def _of_summaries(
    groups: Sequence[Group], prefix: str, runs: Mapping[str, pd.Index] | None = None
) -> Values:
    """By column's name and label the values of the runs, by default of all of them."""
    values: dict[str, dict[str, pd.Series[float]]] = {}
    for name in SPREADS:
        for one in groups:
            if (column := f"{prefix}_{name}") not in one.runs:
                continue
            of = one.by_run(column).dropna()
            if runs is not None:
                of = of[of.index.isin(runs.get(one.label, of.index[:0]))]
            if len(of):
                values.setdefault(name, {})[one.label] = of
    return values


def _table(
    key: str, values: Values, every: Sequence[str], baseline: str | None, test: Test
) -> Table:
    labels = [label for label in every if any(label in of for of in values.values())]
    compared = baseline is not None and _compared(labels, baseline)
    ranks = {name: of for name, of in values.items() if name != "std"}
    shown = ranked(cells(values, baseline if compared else None, test), ranks, test)
    caption = say("spreads.caption", signs=signs(shown, test))
    if compared:
        caption += comparisons(shown, baseline, test, PERCENT)
    elif baseline is not None:
        there = any(reference(label, labels, baseline) for label in labels)
        why = "no other method has" if there else "it does not have"
        caption += " " + say("spreads.not_compared", baseline=style.title(baseline), why=why)
    if without := "; ".join(style.title(label) for label in every if label not in labels):
        caption += " " + say("spreads.without", names=without)
    texts, seeds = with_seeds(shown, PERCENT)
    heads = crossed_heads(shown, {name: PERCENT.head(SPREADS[name]) for name in values})
    return crossed(f"clients_{key}", say(f"spreads.{key}"), caption + seeds, texts, heads)


def _compared(labels: Sequence[str], baseline: str) -> bool:
    """Whether any of the methods is compared with the baseline."""
    return any(reference(label, labels, baseline) not in (None, label) for label in labels)
