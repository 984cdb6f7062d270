"""Run directories to test on: small ones with only what a test says, and full ones, generated."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
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


TABLES = ("decomposition", "cosines", "spectrum", "evaluations", "classes", "timings", "partition")
PRESENT = (*TABLES, "confusion")
"""The tables of the present version; classes.csv then has a column ``auc``."""
NAMES = ("cat", "dog", "eel", "fox")
CLASSES = 4
COHORT = 5


def write_run(
    root: Path,
    algorithm: str = "fedavg",
    seed: int = 0,
    *,
    alpha: float = 0.5,
    rounds: int = 6,
    clients: int = 8,
    tables: Collection[str] = TABLES,
    groups: bool = True,
    **settings: object,
) -> Path:
    """A finished run with plausible numbers that depend on the arguments alone."""
    name = f"{algorithm}-{alpha:g}-{'-'.join(map(str, settings.values()))}-{seed}"
    folder = root / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng([zlib.crc32(name.encode()), rounds, clients])
    level = 0.75 + 0.03 * (zlib.crc32(algorithm.encode()) % 7) / 7 + 0.03 * np.log10(alpha)
    times = np.arange(1, rounds + 1)
    accuracy = level * (1 - np.exp(-times / (0.2 * rounds))) + rng.normal(0, 0.015, rounds)
    loss = 2.3 * np.exp(-times / (0.4 * rounds)) + 0.3 + rng.normal(0, 0.03, rounds)
    frames = {
        "rounds": _rounds(rng, times, accuracy, loss),
        "decomposition": _decomposition(rng, times, loss, alpha),
        "cosines": _cosines(rng, times),
        "spectrum": _spectrum(rng, times),
        "evaluations": _evaluations(rng, times, accuracy, clients, groups),
        "classes": _classes(rng, times, accuracy),
        "confusion": _confusion(times, accuracy),
        "timings": _timings(rng, times),
        "partition": _partition(clients, alpha),
    }
    if "confusion" in tables:
        frames["classes"]["auc"] = 0.5 + frames["classes"]["recall"] / 2
        (folder / "env.json").write_text(json.dumps({"classes": NAMES}), encoding="utf-8")
    for table in ("rounds", *tables):
        frames[table].to_csv(folder / f"{table}.csv", index=False, lineterminator="\n")
    summary = {
        "run_id": name, "algorithm": algorithm, "dataset": "digits", "model": "cnn",
        "num_clients": clients, "sample_rate": 1.0, "alpha": alpha, "seed": seed, "rounds": rounds,
        "final_test_accuracy": accuracy[-1], "best_test_accuracy": accuracy.max(),
        "best_round": int(accuracy.argmax()) + 1, "best_by": "test",
        "last10_test_accuracy": accuracy[-10:].mean(), "total_seconds": 2.5 * rounds,
        "data.partition": "dirichlet", "data.seed": 0, "train.lr": 0.01, "train.batch_size": 50,
        "evaluation.every": 1,
    }  # fmt: skip
    pd.DataFrame([summary | settings]).to_csv(folder / "summary.csv", index=False)
    return folder


Rng = np.random.Generator
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def _rounds(rng: Rng, times: Floats, accuracy: Floats, loss: Floats) -> pd.DataFrame:
    count = len(times)
    return pd.DataFrame(
        {
            "round": times, "lr": 0.01, "cohort_size": COHORT, "dropped": 0,
            "train_loss": loss - 0.1, "val_loss": None, "val_accuracy": None, "test_loss": loss,
            "test_accuracy": accuracy, "test_balanced_accuracy": accuracy - 0.01,
            "test_macro_f1": accuracy - 0.02, "test_auc": None,
            "conflict_ratio": rng.binomial(10, 0.1 + 0.3 * times / count) / 10,
            "update_norm": 1 / times,
            "gradient_diversity": 1.2 + 2 * times / count + rng.gamma(2, 0.1, count),
            "top_axis_share": 0.7 - 0.3 * times / count + rng.normal(0, 0.02, count),
            "client_test_accuracy": accuracy - 0.03,
        }
    )  # fmt: skip


def _decomposition(rng: Rng, times: Floats, loss: Floats, alpha: float) -> pd.DataFrame:
    shift = (0.15 - 0.1 * np.log10(alpha)) * np.exp(-times / len(times))
    shift = np.maximum(shift, 0.01) * rng.lognormal(0, 0.1, len(times))
    aggregation = -0.7 * shift * rng.lognormal(0, 0.1, len(times))
    return pd.DataFrame(
        {
            "round": times, "split": "train", "scope": "population",
            "local_loss": loss - shift - aggregation, "shift_loss": shift,
            "aggregation_loss": aggregation, "global_loss": loss,
            "shift_spread": abs(shift) * 1.2, "aggregation_spread": abs(aggregation) * 1.2,
        }
    )  # fmt: skip


def _cosines(rng: Rng, times: Floats) -> pd.DataFrame:
    first, second = np.triu_indices(COHORT, 1)
    pairs = len(first)
    return pd.DataFrame(
        {
            "round": np.repeat(times, pairs), "client_a": np.tile(first, len(times)),
            "client_b": np.tile(second, len(times)),
            "cosine": np.clip(rng.normal(0.25, 0.2, pairs * len(times)), -1, 1),
        }
    )  # fmt: skip


def _spectrum(rng: Rng, times: Floats) -> pd.DataFrame:
    shares = np.sort(rng.dirichlet([2.0] * COHORT, len(times)), axis=1)[:, ::-1]
    return pd.DataFrame(
        {
            "round": np.repeat(times, COHORT), "axis": np.tile(range(1, COHORT + 1), len(times)),
            "share": shares.ravel(),
        }
    )  # fmt: skip


def _evaluations(
    rng: Rng, times: Floats, accuracy: Floats, clients: int, groups: bool
) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    spread = rng.normal(0, 0.08, clients)
    for time, level in zip(times[-2:], accuracy[-2:], strict=True):
        for client in range(clients):
            for split, bonus in (("own_train", 0.05), ("own_test", 0.0)):
                value = float(np.clip(level + bonus + spread[client], 0, 1))
                rows.append(_row(time, client, None, split, 40 + client, value))
        for name, shift in (("aligned", 0.1), ("conflicting", -0.25)) if groups else ():
            value = float(np.clip(level + shift + rng.normal(0, 0.02), 0, 1))
            rows.append(_row(time, None, name, "test", 500, value))
    return pd.DataFrame(rows).astype({"client_id": "Int64"})


def _row(
    time: int, client: int | None, group: str | None, split: str, samples: int, accuracy: float
) -> dict[str, object]:
    return {
        "round": time, "client_id": client, "group": group, "split": split,
        "num_samples": samples, "loss": 1 - accuracy, "accuracy": accuracy,
    }  # fmt: skip


def _classes(rng: Rng, times: Floats, accuracy: Floats) -> pd.DataFrame:
    recall = np.clip(accuracy[:, None] + np.linspace(-0.2, 0.1, CLASSES), 0, 1)
    return pd.DataFrame(
        {
            "round": np.repeat(times, CLASSES), "label": np.tile(range(CLASSES), len(times)),
            "support": 90, "recall": recall.ravel(), "precision": recall.ravel(),
        }
    )  # fmt: skip


def _confusion(times: Floats, accuracy: Floats) -> pd.DataFrame:
    """Class i is right 90 times, but for what goes to class 0, the less the better the model."""
    wrong = np.round(60 * (1 - accuracy)).astype(int)
    rows = []
    for time, missed in zip(times, wrong, strict=True):
        rows += [(time, 0, 0, 90)]
        for label in range(1, CLASSES):
            rows += [(time, label, 0, missed), (time, label, label, 90 - missed)]
    return pd.DataFrame(rows, columns=["round", "label", "prediction", "count"])


def _timings(rng: Rng, times: Floats) -> pd.DataFrame:
    phases = {"broadcast": 0.02, "train": 1.5, "aggregate": 0.05, "evaluate": 0.3}
    phases |= {"decompose": 0.4, "checkpoint": 0.1, "total": 2.5}
    return pd.DataFrame(
        [
            {"round": t, "phase": phase, "seconds": mean * rng.lognormal(0, 0.05), "bytes": 1000}
            for t in times
            for phase, mean in phases.items()
        ]
    )


def _partition(clients: int, alpha: float) -> pd.DataFrame:
    rng = np.random.default_rng(round(1000 * alpha))
    counts = np.stack([rng.multinomial(300, rng.dirichlet([alpha] * clients)) for _ in range(4)])
    label, client = np.nonzero(counts)
    return pd.DataFrame(
        {
            "client_id": client, "label": label, "train_samples": counts[label, client],
            "test_samples": 0,
        }
    ).sort_values(["client_id", "label"])  # fmt: skip
