"""The row of summary.csv: a run in one line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim import data
from fedsim.config.keys import COLUMNS, KEYS
from fedsim.config.run import RunConfig
from fedsim.config.sections import SECTIONS, fields
from fedsim.core.normalization import OF_DATASET
from fedsim.core.rows import EPSILONS, METRICS, SCORES, WHEN, metric_column
from fedsim.core.task import Task
from fedsim.core.types import F64
from fedsim.metrics.scores import gini
from fedsim.storage.run_dir import RunStore, last_predictions
from fedsim.storage.tables import Outcome
from fedsim.training.setup import Setup

if TYPE_CHECKING:
    import pandas as pd

FIRST = tuple(name for name, score in SCORES.items() if score.takes and not score.late)
LAST = tuple(name for name, score in SCORES.items() if score.takes and score.late)
"""Scores of the test part whose columns stand in the middle, and at the end."""
UNDER_ATTACK = tuple(column for column, metric in METRICS.items() if metric.takes == WHEN[::2])
"""Columns of rounds.csv of runs with an attack; each has a final and a last-10 column."""
GINI = "client_accuracy_gini"
CLIENT_COLUMNS = ("client_accuracy_std", "client_accuracy_p10", "client_accuracy_worst")
"""How the clients' accuracies spread."""
FINAL_CLIENTS = {
    "own_test_accuracy": (0, "accuracy"),
    "finetuned_accuracy": (0, "finetuned_accuracy"),
    "heldout_accuracy": (1, "accuracy"),
    "heldout_finetuned_accuracy": (1, "finetuned_accuracy"),
}
"""What is summed up of final_clients.csv: by name the value of ``held_out``, and the column."""
TARGET = ("target_accuracy", "rounds_to_target", "seconds_to_target", "simulated_seconds_to_target")
"""When the target accuracy was reached."""
TOTALS = ("simulated_seconds", "downlink_bytes", "uplink_bytes")
"""Columns of rounds.csv that are summed up."""
OPTIONAL = (
    *("server", "margin", "margin_weight", "margin_threshold"),
    *("data.columns", "data.normalization", "task", "evaluation.measures"),
)
"""Settings that are columns only where they are set."""


def summarise(setup: Setup, store: RunStore, seconds: float) -> dict[str, Any]:
    """The summary of a finished run from its tables.

    ``best`` is the round with the best accuracy, or primary measure of another task, on the
    validation part where there is one, else on the test part, the earliest on ties; ``last10`` is
    the mean over evaluated rounds among the last ten.
    """
    config, rounds, task = setup.config, store.read("rounds"), setup.task
    tested = rounds.dropna(subset=["test_loss"]).set_index("round")
    best_by, best = _best(tested, task)

    def outcomes(*columns: str) -> dict[str, float | None]:
        """Final, best and last-10 value of columns of the evaluated rounds."""
        row: dict[str, float | None] = {}
        for name in columns:
            outcome = Outcome.of(tested[name].to_dict(), best, len(rounds))
            row |= {f"{take}_{name}": value for take, value in asdict(outcome).items()}
        return row

    accuracy = outcomes("test_accuracy")
    row: dict[str, Any] = {
        "run_id": store.path.resolve().name,
        "algorithm": config.algorithm,
        "dataset": setup.dataset.name,
        "model": setup.model.name,
        "num_clients": setup.partition.num_clients,
        "sample_rate": config.train.sample_rate,
        "alpha": setup.alpha,
        "seed": config.seed,
        "rounds": len(rounds),
        "final_test_accuracy": accuracy["final_test_accuracy"],
        "best_test_accuracy": accuracy["best_test_accuracy"],
        "best_round": best,
        "best_by": best_by,
        "last10_test_accuracy": accuracy["last10_test_accuracy"],
        "total_seconds": seconds,
    }
    row |= settings_of(config)
    row["client_test_accuracy"] = rounds["client_test_accuracy"].iloc[-1]
    row |= {name: rounds[name].sum(min_count=1) for name in TOTALS}
    row |= _target(config, store, rounds)
    row |= outcomes(*(metric_column("test", metric) for metric in FIRST[1:]))
    accuracies = _accuracies_of_clients(store)
    spread = (None,) * len(CLIENT_COLUMNS) if accuracies is None else _spread(accuracies)
    row |= dict(zip(CLIENT_COLUMNS, spread, strict=True))
    final = last_predictions(store)
    row |= {"collapsed": None if final is None else final.collapsed} | _final_clients(store)
    row |= outcomes(*(metric_column("test", metric) for metric in LAST))
    row |= outcomes(*(c for c in setup.measure_columns if c.startswith("test_")))
    if task.collapsed is not None and len(tested):
        names = {m.name: metric_column("test", m.name, "final") for m in task.measures}
        row["collapsed"] = task.collapsed({name: row[column] for name, column in names.items()})
    row |= {name: rounds[name].iloc[-1] for name in EPSILONS if name in rounds}
    row[GINI] = None if accuracies is None else gini(accuracies)
    for metric in (name for name in UNDER_ATTACK if name in rounds):
        values = rounds.set_index("round")[metric].dropna().to_dict()
        outcome = Outcome.of(values, None, len(rounds))
        row |= {f"final_{metric}": outcome.final, f"last10_{metric}": outcome.last10}
    return row | {"data_digest": _data_digest(setup), "label": config.label}


def _best(tested: pd.DataFrame, task: Task) -> tuple[str, int | None]:
    """The part that the best of the evaluated rounds is chosen on, and this round."""
    part = "val" if tested["val_loss"].notna().any() else "test"
    scores = tested[metric_column(part, task.primary)].dropna()
    at = scores.argmin() if task.lowest and len(scores) else scores.argmax() if len(scores) else 0
    # a callback may stop a run before its first evaluation
    return part, int(scores.index[int(at)]) if len(scores) else None


def _data_digest(setup: Setup) -> str | None:
    """That of the data; None for generated data, which follow from the settings."""
    info, digests = data.find(setup.config.data.name), setup.provenance.data
    generated = info is not None and info.generated and setup.config.data.dir is None
    return None if generated or digests is None else digests.short


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Every other setting that a result depends on, by key; runs that differ in one are no seeds.

    Those of the methods and of the data set in use have the keys of their sections.
    """
    values = {key: config.value(key) for key in OPTIONAL}
    row = {key: value for key, value in values.items() if value not in (None, OF_DATASET)}
    for method in config.methods:
        row |= {f"{method}.{key}": v for key, v in config.hyperparameters[method].items()}
    for name in SECTIONS:
        if name != "engine" and _has_columns(name, config):
            row |= _columns(name, config)
    parts = config.data.name, config.data.partition, config.attack.name, config.compress.name
    for name in filter(None, (*parts, config.task)):
        options = config.hyperparameters.get(name, {})
        row |= {f"{name}.{key}": value for key, value in options.items()}
    return row


def _has_columns(section: str, config: RunConfig) -> bool:
    """Whether a section is in the summary: rare ones are where something is set in them."""
    if section == "async":
        return config.clock.mode == "async"
    always = section in ("data", "model", "train", "evaluation")
    return always or getattr(config, section) != RunConfig.model_fields[section].default


def _columns(section: str, config: RunConfig) -> dict[str, Any]:
    """The columns of a section that have the names of its keys."""
    row = {}
    for leaf, value in getattr(config, section):
        key = f"{section}.{leaf}"
        with_key = KEYS[key].column_with and f"{section}.{KEYS[key].column_with}"
        shown = not with_key or config.value(with_key) != fields()[with_key].default
        if shown and COLUMNS.get(key) == key and key not in OPTIONAL:
            row[key] = value
    return row


def _accuracies_of_clients(store: RunStore) -> F64 | None:
    """The clients' accuracies in the last evaluation of evaluations.csv on the test part.

    Where the clients are not evaluated on it, on their own test parts. None without either.
    """
    if not (store.path / "evaluations.csv").is_file():
        return None
    table = store.read("evaluations").dropna(subset=["client_id"])
    for split in ("test", "own_test"):
        rows = table[table["split"] == split]
        if len(rows):
            last = rows["accuracy"][rows["round"] == rows["round"].max()].dropna()
            return last.to_numpy(np.float64) if len(last) else None
    return None


def _spread(values: F64) -> tuple[float, float, float]:
    """Standard deviation (of the population), 10th percentile and minimum."""
    return float(values.std()), float(np.percentile(values, 10)), float(values.min())


def _final_clients(store: RunStore) -> dict[str, float]:
    """Mean and spread of what final_clients.csv says, where there is such a table."""
    row: dict[str, float] = {}
    if not (store.path / "final_clients.csv").is_file():
        return row
    table = store.read("final_clients")
    for name, (held_out, column) in FINAL_CLIENTS.items():
        values = table[column][table["held_out"] == held_out].dropna().to_numpy(dtype=np.float64)
        if len(values):
            std, p10, worst = _spread(values)
            row |= {f"{name}_mean": float(values.mean()), f"{name}_std": std}
            row |= {f"{name}_p10": p10, f"{name}_worst": worst}
    return row


def _target(config: RunConfig, store: RunStore, rounds: pd.DataFrame) -> dict[str, Any]:
    """When the target accuracy was first reached; None where it was not."""
    target = config.evaluation.target_accuracy
    row: dict[str, Any] = dict.fromkeys(TARGET) | {"target_accuracy": target}
    if target is None or not (rounds["test_accuracy"] >= target).any():
        return row
    first = int(rounds["round"][rounds["test_accuracy"] >= target].iloc[0])
    timings = store.read("timings")
    until = timings[(timings["phase"] == "total") & (timings["round"] <= first)]
    simulated = rounds["simulated_seconds"][rounds["round"] <= first]
    return row | {
        "rounds_to_target": first,
        "seconds_to_target": until["seconds"].sum(),
        "simulated_seconds_to_target": simulated.sum(min_count=1),
    }
