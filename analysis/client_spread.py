"""How the accuracies of a run's clients spread: mean, 10th percentile, minimum, standard deviation.

Only accuracies on the same kind of samples are in one table. In the last evaluation a client has
one on its own test part or, with a model of its own, on the common test part (evaluations.csv).
Those of the final model (summary.csv) are on its own test part; in a run where no held-out client
has one, those of held-out clients are on their training samples (final_clients.csv).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from . import AnalysisError
from .captions import comparisons, signs
from .client_parts import heldout_parts, last_accuracies
from .layout import PERCENT, Table, crossed, crossed_heads, with_seeds
from .runs import Group
from .stats import Test, Values, cells, ranked, reference
from .style import title as title_of
from .units import COLUMNS

EVALUATED: Mapping[str, str] = {
    "own_test": "Accuracy by client on its own test part, last evaluation",
    "test": "Accuracy by client on the common test part, last evaluation",
}
"""Parts of :data:`analysis.client_parts.PARTS`, and the title of the table of each."""
FINAL: Mapping[str, str] = {
    "own_test_accuracy": "Accuracy by client on its own test part, final model",
    "finetuned_accuracy": "Accuracy by client on its own test part, after fine-tuning",
    "heldout_finetuned_accuracy": (
        "Accuracy by held-out client on its own test part, after fine-tuning"
    ),
}
"""Prefixes of columns of summary.csv, and the title of the table of each."""
HELDOUT: Mapping[str, str] = {
    "own_test": "Accuracy by held-out client on its own test part, final model",
    "own_train": "Accuracy by held-out client on its training samples, final model",
}
"""Parts that held-out clients are scored on, and the title of the table of each."""
SPREADS: Mapping[str, str] = {
    "mean": "Mean", "p10": "Worst decile", "worst": "Worst client", "std": "Std over clients",
}  # fmt: skip
"""What is made of the accuracies of a run's clients, and its heading."""


def spreads_of_clients(
    groups: Sequence[Group], baseline: str | None = None, test: Test = "t"
) -> list[Table]:
    """A table for each of :data:`EVALUATED` and :data:`FINAL` that any run has.

    Raises:
        AnalysisError: no run has any, or there is nothing to compare with the baseline.
    """
    labels = [one.label for one in groups]
    if baseline is not None and not _compared(labels, baseline):
        raise AnalysisError(
            f"baseline {baseline}: nothing to compare with it; the runs are {'; '.join(labels)}"
        )
    found = [
        _table(name, title, values, labels, baseline, test)
        for name, title, values in (*_evaluated(groups), *_final(groups))
    ]
    if not found:
        raise AnalysisError(
            "no run has accuracies by client; evaluation.clients_every, "
            "evaluation.finetune_epochs and data.heldout_clients write them"
        )
    return found


def _evaluated(groups: Sequence[Group]) -> Iterator[tuple[str, str, Values]]:
    """Name, title and values of the tables made from evaluations.csv."""
    levels = list(COLUMNS[groups[0].unit]) if groups else []
    rows = last_accuracies(groups)
    for split, title in EVALUATED.items():
        by = {
            label: frame["accuracy"].groupby(level=levels) for label, frame in rows[split].items()
        }
        if by:
            values = {
                "mean": {label: of.mean() for label, of in by.items()},
                "p10": {label: of.quantile(0.1) for label, of in by.items()},
                "worst": {label: of.min() for label, of in by.items()},
                "std": {label: of.std(ddof=0) for label, of in by.items()},
            }
            yield f"clients_evaluated_{split}", title, values


def _final(groups: Sequence[Group]) -> Iterator[tuple[str, str, Values]]:
    """Name, title and values of the tables made from summary.csv."""
    for prefix, title in FINAL.items():
        if values := _of_summaries(groups, prefix):
            yield f"clients_{prefix}", title, values
    parts = heldout_parts(groups)
    for part, title in HELDOUT.items():
        runs = {label: of[of == part].index for label, of in parts.items()}
        if values := _of_summaries(groups, "heldout_accuracy", runs):
            yield f"clients_heldout_{part}", title, values


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
    name: str, title: str, values: Values, every: Sequence[str], baseline: str | None, test: Test
) -> Table:
    labels = [label for label in every if any(label in of for of in values.values())]
    without = [title_of(label) for label in every if label not in labels]
    compared = baseline is not None and _compared(labels, baseline)
    found = cells(values, baseline if compared else None, test)
    ranks = {name: of for name, of in values.items() if name != "std"}
    found = ranked(found, ranks, test)
    caption = (
        "Over the clients of a run, in per cent: the worst decile is the 10th percentile; the "
        f"standard deviation is not ranked. {signs(found, test)}"
    )
    if compared:
        caption += comparisons(found, baseline, test, PERCENT)
    elif baseline is not None:
        there = any(reference(label, labels, baseline) for label in labels)
        why = "no other method has" if there else "it does not have"
        caption += f" Nothing is compared with {title_of(baseline)}: {why} these accuracies."
    if without:
        caption += f" Methods without these accuracies are left out: {'; '.join(without)}."
    shown, seeds = with_seeds(found, PERCENT)
    heads = {name: PERCENT.head(SPREADS[name]) for name in values}
    return crossed(name, title, caption + seeds, shown, crossed_heads(found, heads))


def _compared(labels: Sequence[str], baseline: str) -> bool:
    """Whether any of the methods is compared with the baseline."""
    return any(reference(label, labels, baseline) not in (None, label) for label in labels)
