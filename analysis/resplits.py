"""Test over training samples of runs on resplits of the same samples, from their split.csv.

The corrected resampled t test takes the ratio. It is for partitions whose test parts are drawn
anew from the same samples: such parts overlap, and so do the training parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from . import AnalysisError
from .files import read_json, read_table
from .labels import text
from .units import PARTITION, ExperimentalUnit

ALIKE = 0.05
"""Ratios of one table differ by no more than this share: sizes of parts are rounded."""
_DATA = ("dataset", "alpha", "num_clients")
"""Columns of summary.csv, beside those of section data, on which the parts depend."""


def ratio(runs: pd.DataFrame, unit: ExperimentalUnit) -> float:
    """The number of test samples over that of training samples; the largest among the runs.

    ``runs`` are of :func:`analysis.runs.summaries`. One run of each partition is read.

    Raises:
        AnalysisError: partitions are not the unit, a run has no split.csv or no test part, two
            partitions have the same test part, or the ratios differ.
    """
    if unit != "partition":
        raise AnalysisError(
            "--test corrected: needs --unit partition and runs on several partitions (data.seed): "
            "training seeds on one partition have the same training and test samples; for these "
            "take --test t"
        )
    columns = [c for c in runs.columns if c in _DATA or str(c).startswith("data.")]
    keys = runs[columns].map(text).apply(tuple, axis=1)
    ratios: dict[Path, float] = {}
    seen: dict[tuple[tuple[str, ...], str], Path] = {}
    for _, same in runs.groupby(keys, sort=False):
        run = Path(same["path"].iloc[0])
        ratios[run], digest = _sizes(run)
        others = tuple(text(same[c].iloc[0]) for c in columns if c != PARTITION)
        if (twin := seen.setdefault((others, digest), run)) != run:
            raise AnalysisError(
                f"--test corrected: {twin} and {run} have the same test samples, so that the "
                "runs say nothing about others; take --test t, which is about these samples"
            )
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    if ratios[low] < (1 - ALIKE) * ratios[high]:
        raise AnalysisError(
            f"--test corrected: the runs differ in test over training samples ({ratios[low]:.3g} "
            f"in {low}, {ratios[high]:.3g} in {high}); make a table for each"
        )
    return ratios[high]


def _sizes(run: Path) -> tuple[float, str]:
    """Test over training samples of a run, and a digest of which its test samples are.

    Clients that are held out of training have no training samples.
    """
    file = run / "split.csv"
    if not file.is_file():
        raise AnalysisError(
            f"--test corrected: {file}: there is no such file; it has the numbers of training and "
            "test samples (--test t needs none)"
        )
    frame = read_table(file, numbers=("sample", "client_id"), texts=("part",))
    train = frame[(frame["part"] == "train") & ~frame["client_id"].isin(_held_out(run))]
    common, owned = (frame[frame["part"] == part] for part in ("test", "own_test"))
    test = common if len(common) else owned
    if train.empty or test.empty:
        empty = "training" if train.empty else "test"
        raise AnalysisError(f"--test corrected: {file}: no {empty} samples")
    drawn = np.sort(test["sample"].to_numpy(np.int64))
    return len(test) / len(train), hashlib.sha256(drawn.tobytes()).hexdigest()


def _held_out(run: Path) -> Sequence[int]:
    file = run / "env.json"
    env = read_json(file) if file.is_file() else None
    return env.get("heldout_clients", []) if isinstance(env, dict) else []
