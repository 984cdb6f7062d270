"""How the accuracies of a run's clients spread: mean, 10th percentile, minimum, standard deviation.

Only accuracies on the same kind of samples are in one table. In the last evaluation a client has
one on its own test part or, with a model of its own, on the common test part (evaluations.csv).
Those of the final model (summary.csv) are on its own test part; where no held-out client has one,
those of held-out clients are on their training samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from . import AnalysisError, series
from .layout import PERCENT, Table, comparisons, crossed, crossed_heads, signs, with_seeds
from .runs import Group
from .stats import Test, Values, cells, ranked, reference
from .style import title as title_of
from .units import COLUMNS

EVALUATED: Mapping[str, str] = {
    "own_test": "Accuracy by client on its own test part, last evaluation",
    "test": "Accuracy by client on the common test part, last evaluation",
}
"""Splits of clients' rows in evaluations.csv, and the title of the table of each."""
FINAL: Mapping[str, str] = {
    "own_test_accuracy": "Accuracy by client on its own test part, final model",
    "finetuned_accuracy": "Accuracy by client on its own test part, after fine-tuning",
    "heldout_accuracy": "Accuracy by held-out client, final model",
    "heldout_finetuned_accuracy": "Accuracy by held-out client, after fine-tuning",
}
"""Prefixes of columns of summary.csv, and the title of the table of each."""
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
    columns = ["accuracy", "num_samples"]
    rows = {
        split: series.by_run(
            groups, "evaluations", columns, "client_id", {"split": split}, take="last"
        )
        for split in EVALUATED
    }
    for label, frame in list(rows["test"].items()):
        # where clients own the common part, each model is scored on its owner's samples alone
        owned = frame.groupby(level=levels)["num_samples"].transform("nunique") > 1
        rows["test"][label] = frame[~owned]
        known = rows["own_test"].get(label, frame[:0])
        runs = known.reset_index("client_id").index
        new = frame[owned & ~frame.reset_index("client_id").index.isin(runs)]
        rows["own_test"][label] = pd.concat([known, new])
    for split, title in EVALUATED.items():
        by = {
            label: frame["accuracy"].groupby(level=levels)
            for label, frame in rows[split].items()
            if len(frame)
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
        values = {
            name: {
                one.label: one.by_run(column)
                for one in groups
                if column in one.runs and one.runs[column].notna().any()
            }
            for name in SPREADS
            for column in [f"{prefix}_{name}"]
        }
        values = {name: of for name, of in values.items() if of}
        if values:
            yield f"clients_{prefix}", title, values


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
