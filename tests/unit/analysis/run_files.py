"""Small run directories for the tables: only what a test says is in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from analysis.runs import Group, find, group, summaries


def run_of(
    root: Path,
    algorithm: str,
    seed: int,
    accuracies: Sequence[float],
    val: Sequence[float | None] = (),
    **settings: object,
) -> Path:
    """A finished run with these test (and validation) accuracies per round."""
    name = "-".join(map(str, (algorithm, *settings.values(), seed)))
    folder = root / name
    folder.mkdir(parents=True)
    count = len(accuracies)
    rounds = {"round": range(1, count + 1), "test_accuracy": accuracies}
    pd.DataFrame(rounds | {"val_accuracy": list(val) or [None] * count}).to_csv(
        folder / "rounds.csv", index=False
    )
    row = {
        "run_id": name, "algorithm": algorithm, "dataset": "digits", "alpha": 0.5, "seed": seed,
        "rounds": count, "final_test_accuracy": accuracies[-1],
        "best_test_accuracy": max(accuracies), "best_round": 1, "best_by": "test",
        "last10_test_accuracy": sum(accuracies) / count, "total_seconds": 1.0 + seed,
    }  # fmt: skip
    pd.DataFrame([row | settings]).to_csv(folder / "summary.csv", index=False)
    return folder


def rows(folder: Path, table: str, header: str, *lines: str) -> Path:
    """Writes a table of a run."""
    file = folder / f"{table}.csv"
    file.write_text("\n".join((header, *lines, "")), encoding="utf-8")
    return file


def groups_of(root: Path, *by: str) -> list[Group]:
    """The groups of all runs below ``root``."""
    return group(summaries(find([root])[0]), by or ("algorithm",))
