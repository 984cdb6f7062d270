"""Accuracy by client, and tables of how it spreads over the clients of a run.

Only accuracies on the same kind of samples are in one table. Held-out clients are scored on their
training samples where none has a test part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd

from .. import AnalysisError, series
from ..labels import AXIS, title_of
from ..paired import T, Test
from ..runs import Group
from ..scores import Score, primary_of
from ..stats import Values, cells, ranked, reference
from ..units import COLUMNS
from ..words import say
from .captions import comparisons, signs
from .layout import Table, crossed

PARTS: Mapping[str, str] = {
    "own_test": "its own test part", "own_val": "its own validation part",
    "own_train": "its own training part", "test": "the common test part",
}  # fmt: skip
"""Parts that clients are evaluated on, the preferred one first, and their names."""
EVALUATED = ("own_test", "test")  # those of `PARTS` that have a table of the last evaluation
FINAL = ("own_test_accuracy", "finetuned_accuracy", "heldout_finetuned_accuracy")
"""Prefixes of columns of summary.csv that have a table of the final model."""
HELDOUT = ("own_test", "own_train")  # parts that held-out clients are scored on, with a table each
SPREADS: Mapping[str, str] = {
    "mean": "Mean", "p10": "Worst decile", "worst": "Worst client", "std": "Std over clients",
}  # fmt: skip
"""What is made of the accuracies of a run's clients, and its heading."""


def last_scores(
    groups: Sequence[Group], score: str = "accuracy"
) -> dict[str, dict[str, pd.DataFrame]]:
    """By part of :data:`PARTS` and label the ``score`` by run and client in its last rows. Rows of
    ``test`` on as many samples as the client owns are of ``own_test``, where it has none."""
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
        samples = owned[label]["test_samples"] if label in owned else pd.Series(dtype=float)
        same = frame["num_samples"] == frame.index.map(samples.to_dict())
        owned_rows = same.groupby(level=list(COLUMNS[groups[0].unit])).transform("all")
        owned_scores = last["own_test"].get(label, frame[:0])
        runs = owned_scores.reset_index("client_id").index
        new = owned_rows & ~frame.reset_index("client_id").index.isin(runs)
        last["test"][label] = frame[~owned_rows]
        last["own_test"][label] = pd.concat([owned_scores, frame[new]])
    return {
        part: {label: frame[[score]] for label, frame in of.items() if len(frame)}
        for part, of in last.items()
    }


def spreads(groups: Sequence[Group], baseline: str | None = None, test: Test = T) -> list[Table]:
    """A table for each of :data:`EVALUATED`, :data:`FINAL` and :data:`HELDOUT` that any run has."""
    labels = [one.label for one in groups]
    if baseline is not None and not _compared(labels, baseline):
        known = "; ".join(labels).replace(AXIS, "")
        raise AnalysisError(
            f"baseline {baseline}: nothing to compare with it; the runs are {known}"
        )
    primary, score = primary_of(groups)
    last = last_scores(groups, primary)
    values = {f"evaluated_{part}": _over_clients(last[part], score.lowest) for part in EVALUATED}
    values |= {prefix: _of_summaries(groups, prefix) for prefix in FINAL}
    scored = series.by_run(groups, "final_clients", ["split"], (), {"held_out": 1}, reduced="first")
    splits = {label: frame["split"].droplevel(series.WHOLE) for label, frame in scored.items()}
    for part in HELDOUT:
        runs = {label: split.index[split == part] for label, split in splits.items()}
        values[f"heldout_{part}"] = _of_summaries(groups, "heldout_accuracy", runs)
    made = [_table(key, of, labels, baseline, test, score) for key, of in values.items() if of]
    if not made:
        raise AnalysisError(say("spreads.absent"))
    return made


def _over_clients(scores: Mapping[str, pd.DataFrame], lowest: bool) -> Values:
    """Each run's spread over its clients, from the scores of :func:`last_scores`."""
    values: dict[str, dict[str, pd.Series[float]]] = {}
    for label, frame in scores.items():
        runs = frame[frame.columns[0]].groupby(level=list(frame.index.names[:-1]))
        worst = (runs.quantile(0.9), runs.max()) if lowest else (runs.quantile(0.1), runs.min())
        spread = (runs.mean(), *worst, runs.std(ddof=0))
        for name, of in zip(SPREADS, spread, strict=True):
            values.setdefault(name, {})[label] = of
    return values


def _of_summaries(
    groups: Sequence[Group], prefix: str, runs: Mapping[str, pd.Index] | None = None
) -> Values:
    """By column's name and label the values of the runs, by default of all of them."""
    values: dict[str, dict[str, pd.Series[float]]] = {}
    for name, one in product(SPREADS, groups):
        if f"{prefix}_{name}" in one.runs:
            of = one.by_run(f"{prefix}_{name}").dropna()
            if runs is not None:
                of = of[of.index.isin(runs.get(one.label, of.index[:0]))]
            if len(of):
                values.setdefault(name, {})[one.label] = of
    return values


def _table(
    key: str, values: Values, every: Sequence[str], baseline: str | None, test: Test, score: Score
) -> Table:
    labels = [label for label in every if any(label in of for of in values.values())]
    compared = baseline is not None and _compared(labels, baseline)
    ranks = {name: of for name, of in values.items() if name != "std"}
    made = cells(values, baseline if compared else None, test)
    shown = ranked(made, ranks, test, lowest=score.lowest)
    caption = say(
        "spreads.caption", signs=signs(shown, test, lowest=score.lowest), lowest=score.lowest,
        percent=score.unit.name == "%",
        comparisons=comparisons(shown, baseline, test, score.unit) if compared else "",
        not_compared=title_of(baseline) if baseline is not None and not compared else "",
        there=any(reference(label, labels, baseline) for label in labels),
        without="; ".join(title_of(label) for label in every if label not in labels),
    )  # fmt: skip
    heads = {name: score.unit.head(SPREADS[name]) for name in values}
    title = say(f"spreads.{key}", score=score.name)
    return crossed(f"clients_{key}", title, caption, shown, heads, score.unit)


def _compared(labels: Sequence[str], baseline: str) -> bool:
    """Whether any of the methods is compared with the baseline."""
    return any(reference(label, labels, baseline) not in (None, label) for label in labels)
