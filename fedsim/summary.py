"""The row of summary.csv: a run in one line."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedsim.settings import RunConfig
from fedsim.setup import Setup
from fedsim.store import RunStore


def summarise(setup: Setup, store: RunStore, seconds: float) -> dict[str, Any]:
    """The summary of a finished run from its rounds.csv.

    ``best`` is chosen on the validation part where there is one, else on the test part, the
    earliest on ties; ``last10`` is the mean over evaluated rounds among the last ten.
    """
    config = setup.config
    rounds = store.read("rounds")
    tested = rounds.dropna(subset=["test_accuracy"]).set_index("round")
    best_by = "val" if tested["val_accuracy"].notna().any() else "test"
    best = int(tested[f"{best_by}_accuracy"].to_numpy().argmax())
    accuracy = tested["test_accuracy"]
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
        "final_test_accuracy": accuracy.iloc[-1],
        "best_test_accuracy": accuracy.iloc[best],
        "best_round": accuracy.index[best],
        "best_by": best_by,
        "last10_test_accuracy": last10(accuracy, len(rounds)),
        "total_seconds": seconds,
    }
    settings: dict[str, Any] = {"server": config.server, "margin": config.margin}
    settings |= {"margin_weight": config.margin_weight, "margin_threshold": config.margin_threshold}
    row |= {key: value for key, value in settings.items() if value is not None}
    for method in dict.fromkeys(m for m in (config.algorithm, config.server) if m is not None):
        values = config.hyperparameters[method]
        row |= {f"{method}.{key}": value for key, value in values.items()}
    return row | settings_of(config)


ELSEWHERE = {"data.name", "data.dir", "data.num_clients", "data.alpha", "model.name"}
ELSEWHERE |= {"train.rounds", "train.sample_rate"}
"""Keys that are columns under another name, or no part of the result."""


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Every other setting that a result depends on, by dotted key; differing runs are no seeds."""
    sections = {name: getattr(config, name) for name in ("data", "model", "train", "evaluation")}
    values = {f"{name}.{key}": v for name, section in sections.items() for key, v in section}
    return {key: value for key, value in values.items() if key not in ELSEWHERE}


def last10(accuracy: pd.Series[float], rounds: int) -> float:
    """The mean over the evaluated rounds among the last ten."""
    return float(accuracy[accuracy.index > rounds - 10].mean())
