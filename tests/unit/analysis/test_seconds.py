"""Curves against simulated seconds."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis import AnalysisError
from analysis.figures import curves
from analysis.runs import Group


def group(folder: Path, **rounds: str) -> Group:
    rows = []
    for seed, (name, text) in enumerate(rounds.items()):
        (folder / name).mkdir()
        (folder / name / "rounds.csv").write_text(f"round,simulated_seconds,test_accuracy\n{text}")
        rows.append({"seed": seed, "path": str(folder / name), "algorithm": "fedavg"})
    return Group("fedavg", pd.DataFrame(rows))


def test_the_newest_value_at_each_time_by_hand(tmp_path: Path) -> None:
    """Evaluated at 1, 3, 6 s and at 2, 4 s: from 2 s to 4 s; the first run changes at 3 s."""
    both = group(tmp_path, one="1,1,0.1\n2,2,0.3\n3,3,0.6\n", two="1,2,0.2\n2,2,0.4\n3,1,0.5\n")
    found = curves.by_seconds(both, "test_accuracy")
    assert (found.index[0], found.index[-1], len(found)) == (2, 5, curves.POINTS)
    one, two = found.T.to_numpy()
    assert set(one[found.index < 3]) == {0.1}
    assert set(one[found.index >= 3]) == {0.3}
    assert (two[0], two[-1]) == (0.2, 0.5)
    figure = curves.figure([both], ["test_accuracy"], x="seconds")
    assert figure.axes[0].get_xlabel() == "Simulated seconds"


def test_a_run_without_a_clock_is_named(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="simulated_seconds is empty"):
        curves.by_seconds(group(tmp_path, one="1,,0.1\n"), "test_accuracy")
