"""Test over training samples of runs on resplits of the same samples, from their split.csv.

The corrected resampled t test takes the ratio. It is for partitions whose test parts are drawn
anew from the same samples: such parts overlap, and so do the training parts.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from . import AnalysisError
from .files import read_env, read_table
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
        raise _refused("needs --unit partition and runs on several partitions (data.seed)")
    columns = [c for c in runs.columns if c in _DATA or str(c).startswith("data.")]
    others = [column for column in columns if column != PARTITION]
    ratios: dict[str, float] = {}
    seen: dict[tuple[object, ...], str] = {}
    for run in runs[~runs[columns].map(text).duplicated()].to_dict("records"):
        path = str(run["path"])
        ratios[path], test = _sizes(Path(path))
        twin = seen.setdefault((*(text(run[column]) for column in others), test), path)
        if twin != path:
            raise _refused(
                f"{twin} and {path} have the same test samples, so that the runs say nothing about "
                "others"
            )
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    if ratios[low] < (1 - ALIKE) * ratios[high]:
        raise _refused(
            f"the runs differ in test over training samples ({ratios[low]:.3g} in {low}, "
            f"{ratios[high]:.3g} in {high}); make a table for each"
        )
    return ratios[high]


def _refused(reason: str) -> AnalysisError:
    return AnalysisError(f"--test corrected: {reason}; --test t is about the same samples")


def _sizes(run: Path) -> tuple[float, frozenset[int]]:
    """Test over training samples of a run, and its test samples.

    Clients that are held out of training have no training samples.
    """
    file = run / "split.csv"
    if not file.is_file():
        raise _refused(f"{file}: there is no such file, with the numbers of samples")
    frame = read_table(file, numbers=("sample", "client_id"), texts=("part",))
    held_out = read_env(run).get("heldout_clients", [])
    train = frame[(frame["part"] == "train") & ~frame["client_id"].isin(held_out)]
    common, owned = (frame[frame["part"] == part] for part in ("test", "own_test"))
    test = common if len(common) else owned
    if train.empty or test.empty:
        raise _refused(f"{file}: no {'training' if train.empty else 'test'} samples")
    return len(test) / len(train), frozenset(test["sample"].astype(int))
