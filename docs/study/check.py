"""Recomputes the p values and verdicts of the study of PROTOCOL.md with pandas and scipy alone.

    python docs/study/check.py             from docs/results.zip
    python docs/study/check.py FOLDER      from FOLDER/BLOCK.csv

BLOCK.csv has a row per run of the comparison with the columns of part 9 of PROTOCOL.md;
families.csv beside this file has the comparisons, which are fixed. A row is printed for each
comparison, with a verdict for these images (t) and for new ones (corrected).
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

HERE = Path(__file__).resolve().parent
LEVEL = 0.05
MARGINS = {"accuracy": 0.01, "balanced_accuracy": 0.01, "loss": 0.05}
"""Regions of practical equivalence: shares of images for scores, nats for losses."""
FIG2_RATE = 0.01
"""The learning rate of Fig. 2's verdicts."""
LEAD = 0.016
"""The paper's largest lead over the best other method, in accuracy (part 5 of PROTOCOL.md)."""
POWER = 0.8
"""Probability with which a comparison that is decidable finds that lead, or its absence."""
FEW = 0.1
"""A word rests on collapsed models where more than this share of a method's runs collapsed."""
CONFIRMED, REFUTED, EQUAL, OPEN = "confirmed", "refuted", "practically equal", "not decidable"
DESIGN = f"{OPEN} by design"
UNITS = ("method", "data_seed", "seed")


def margin_of(metric: str) -> float:
    """The region of practical equivalence of a metric is +- this."""
    return MARGINS["loss" if metric.endswith("loss") else metric]


def values(runs: pd.DataFrame, metric: str, method: str, planned: int, seeds: int) -> pd.Series:
    """The mean over the training seeds by partition; empty where anything planned is missing.

    A diverged run has the score of a guess, 1 / classes; its losses are missing.
    """
    own = runs[runs["method"] == method]
    if own.duplicated(list(UNITS)).any():
        raise ValueError(f"{method}: a run stands twice")
    kind = metric.removeprefix("abs_")
    score = own[kind].astype(float)
    diverged = own["status"] == "diverged"
    if not metric.endswith("loss"):
        score = score.where(~diverged, 1 / own["classes"])
    finished = own["status"] == "finished"
    score = score.where(finished if metric.endswith("loss") else finished | diverged)
    if metric.startswith("abs_"):
        score = score.abs()
    complete = len(own) == planned * seeds and bool(np.isfinite(score).all())
    by_partition = score.groupby(own["data_seed"]).agg(["mean", "size"])
    if not complete or len(by_partition) != planned or (by_partition["size"] != seeds).any():
        return pd.Series(dtype=float)
    return by_partition["mean"]


def paired(difference: Sequence[float], ratio: float = 0.0) -> dict[str, float]:
    """The t test of paired differences, with ratio = test / training samples the corrected one.

    Returns n, mean, the half-width of the 95 % interval, p of no difference, and the scale.
    """
    d = np.asarray(difference, dtype=float)
    n = len(d)
    scale = float(d.std(ddof=1)) * (1 / n + ratio) ** 0.5
    mean = float(d.mean())
    if scale == 0:
        p = 1.0 if mean == 0 else 0.0
    else:
        p = float(2 * stats.t.sf(abs(mean) / scale, n - 1))
    half = float(stats.t.ppf(0.975, n - 1)) * scale
    return {"n": n, "mean": mean, "half": half, "p": p, "scale": scale}


def equivalence(mean: float, scale: float, n: int, margin: float) -> float:
    """The larger p of two one-sided t tests that the difference lies within +- margin."""
    if scale == 0:
        return 0.0 if abs(mean) < margin else 1.0
    return float(stats.t.sf((margin - abs(mean)) / scale, n - 1))


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values; one that is missing counts as 1."""
    given = np.nan_to_num(np.asarray(p, dtype=float), nan=1.0)
    order = np.argsort(given, kind="stable")
    adjusted = np.empty(len(given))
    steps = given[order] * np.arange(len(given), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return [float(each) for each in adjusted]


def finds(scale: float, n: int, difference: float, level: float) -> float:
    """The probability that a two-sided t test at a level finds a true difference."""
    limit, away = stats.t.isf(level / 2, n - 1), difference / scale
    return float(stats.nct.sf(limit, n - 1, away) + stats.nct.cdf(-limit, n - 1, away))


@cache
def estimates(n: int) -> np.ndarray:
    """2,000 quantiles of an estimated scale from n values, over the true one."""
    middle = (np.arange(2000) + 0.5) / 2000
    return np.sqrt(stats.chi2.ppf(middle, n - 1) / (n - 1))


def finds_equal(scale: float, n: int, margin: float) -> float:
    """The probability that TOST says practically equal where the true difference is 0."""
    within = margin - stats.t.ppf(1 - LEVEL, n - 1) * scale * estimates(n)
    return float((1 - 2 * stats.norm.sf(np.maximum(within, 0) / scale)).mean())


def verdict(
    mean: float, p_holm: float, p_equal: float, claim: str, *, decidable: bool = True
) -> str:
    """The word of one comparison: rules 1 to 5 of part 6, where nan is a missing comparison.

    Where it is not ``decidable``, neither the paper's largest lead nor its absence would have been
    found with probability 0.8, or all partitions have one test part: not decidable by design.
    """
    if np.isnan([mean, p_holm, p_equal]).any():
        return OPEN if decidable else DESIGN
    if p_equal < LEVEL:
        return EQUAL
    if p_holm < LEVEL:
        return CONFIRMED if (mean > 0) == (claim == "higher") else REFUTED
    return OPEN if decidable else DESIGN


def together(words: Sequence[str]) -> str:
    """The word of a claim that holds only where all its comparisons do."""
    if REFUTED in words:
        return REFUTED
    if OPEN in words or not words:
        return OPEN
    if DESIGN in words:
        return DESIGN
    return EQUAL if EQUAL in words else CONFIRMED


def phrase(words: Sequence[str]) -> str:
    """``confirmed in 1 of 3, not decidable in 2 of 3``: a claim over blocks, without one word."""
    n = len(words)
    every = (CONFIRMED, REFUTED, EQUAL, OPEN, DESIGN)
    counts = [(word, list(words).count(word)) for word in every]
    return ", ".join(f"{word} in {count} of {n}" for word, count in counts if count)


def compared(
    families: pd.DataFrame, blocks: dict[str, pd.DataFrame], ratio: bool = False
) -> pd.DataFrame:
    """Every comparison with its statistics and its word; of new images where ``ratio``."""
    rows = []
    sizes = families["family"].value_counts()
    for _, row in families.iterrows():
        d, share = differences(row, blocks.get(row["block"]))
        made = dict.fromkeys(("n", "mean", "half", "p", "scale", "p_equal"), float("nan"))
        made["decidable"] = True
        if len(d) > 1 and ratio and np.isnan(share):
            made["decidable"] = False
        elif len(d) > 1:
            made |= paired(d, share if ratio else 0.0)
            n, margin = int(made["n"]), margin_of(row["metric"])
            made["p_equal"] = equivalence(made["mean"], made["scale"], n, margin)
            if made["scale"] > 0 and not row["metric"].endswith("loss"):
                level = LEVEL / sizes[row["family"]]
                found = finds(made["scale"], n, LEAD, level), finds_equal(made["scale"], n, margin)
                made["decidable"] = max(found) >= POWER
        rows.append(row.to_dict() | made | collapsed(row, blocks.get(row["block"])))
    table = pd.DataFrame(rows)
    table["p_holm"] = np.nan
    for _, own in table.groupby("family"):
        table.loc[own.index, "p_holm"] = holm(own["p"].to_list())
    table["verdict"] = [
        verdict(
            row["mean"], row["p_holm"], row["p_equal"], row["claim"], decidable=row["decidable"]
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    return table


def compared_runs(row: pd.Series, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs of a block that a comparison looks at: of Fig. 2 those of its alpha and rate."""
    if pd.isna(row["alpha"]):
        return runs
    return runs[(runs["alpha"] == row["alpha"]) & (runs["lr"] == FIG2_RATE)]


def collapsed(row: pd.Series, runs: pd.DataFrame | None) -> dict[str, int]:
    """How many runs of either method collapsed, and how many there are of each."""
    if runs is None or "collapsed" not in runs:
        return {"collapsed_first": 0, "collapsed_second": 0, "runs": 0}
    runs = compared_runs(row, runs)
    down = runs[runs["collapsed"].astype(float) == 1]["method"].value_counts()
    counts = {f"collapsed_{side}": int(down.get(row[side], 0)) for side in ("first", "second")}
    return counts | {"runs": int((runs["method"] == row["first"]).sum())}


def differences(row: pd.Series, runs: pd.DataFrame | None) -> tuple[pd.Series, float]:
    """First minus second by partition, and test / training samples (nan: one test part)."""
    if runs is None:
        return pd.Series(dtype=float), float("nan")
    runs = compared_runs(row, runs)
    planned, seeds = int(row["partitions"]), int(row["seeds"])
    first, second = (
        values(runs, row["metric"], row[side], planned, seeds) for side in ("first", "second")
    )
    if first.empty or second.empty or set(first.index) != set(second.index):
        return pd.Series(dtype=float), float("nan")
    drawn = bool((runs["test_drawn"] == 1).all())
    share = float((runs["test_samples"] / runs["train_samples"]).mean()) if drawn else float("nan")
    return first - second, share


def claims(table: pd.DataFrame) -> pd.DataFrame:
    """The word of each claim by family, metric and block (over alphas of Fig. 2: ``phrase``)."""
    rows = []
    for key, own in table.groupby(["claim_id", "family", "metric", "block"], sort=False):
        words = own["verdict"].to_list()
        over = phrase(words) if own["alpha"].notna().any() else together(words)
        rows.append(dict(zip(("claim_id", "family", "metric", "block"), key, strict=True)))
        rows[-1]["verdict"] = over
    return pd.DataFrame(rows)


def stored(folder: Path | None, names: Sequence[str]) -> dict[str, pd.DataFrame]:
    """The runs of each block that is there."""
    if folder is not None:
        paths = {name: folder / f"{name}.csv" for name in names}
        return {name: pd.read_csv(path) for name, path in paths.items() if path.exists()}
    with zipfile.ZipFile(HERE.parent / "results.zip") as archive:
        there = set(archive.namelist())
        found = {name: f"protocol/{name}.csv" for name in names}
        return {
            name: pd.read_csv(archive.open(path)) for name, path in found.items() if path in there
        }


def main(folder: Path | None) -> None:
    """Prints every comparison, then every claim."""
    families = pd.read_csv(HERE / "families.csv")
    blocks = stored(folder, list(dict.fromkeys(families["block"])))
    if not blocks:
        sys.exit("no block of the study is stored yet")
    for scope, ratio in (("these images", False), ("new images", True)):
        table = compared(families, blocks, ratio)
        print(f"\n# {scope}\n{table.to_csv(index=False)}\n{claims(table).to_csv(index=False)}")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
