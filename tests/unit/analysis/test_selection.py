"""The choice of a hyperparameter where runs of some values have failed."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from analysis import AnalysisError, selection, units
from analysis.runs import find, summaries
from tests.unit.analysis.run_files import run_of


def chosen(root: Path, **options: str) -> pd.DataFrame:
    table = selection.choose(summaries(find([root])[0]), ["train.lr"], ["algorithm"], **options)
    return table.data.set_index("train.lr")


def runs_of(root: Path, rates: dict[float, tuple[float | None, ...]], **more: object) -> None:
    """A run per seed, with its validation accuracy; none where it is None."""
    for rate, values in rates.items():
        for seed, value in enumerate(values):
            if value is not None:
                run_of(root, "fedavg", seed, [0.5], [value], **{"train.lr": rate}, **more)


@pytest.mark.slow
def test_a_value_with_a_failed_run_is_not_chosen(tmp_path: Path) -> None:
    """The only run of the rate 1 that did not diverge has the best score of all."""
    runs_of(tmp_path, {0.1: (0.6, 0.7, 0.65), 1: (None, 0.9, None), 0.01: (0.5, 0.5, math.inf)})
    got = chosen(tmp_path)
    assert got["chosen"].to_dict() == {"0.01": False, "0.1": True, "1": False}
    assert got["missing"].to_dict() == {"0.01": 1, "0.1": 0, "1": 2}
    assert got["n"].to_dict() == {"0.01": 2, "0.1": 3, "1": 1}
    table = selection.choose(summaries(find([tmp_path])[0]), ["train.lr"], ["algorithm"])
    assert list(table.data)[-2:] == ["missing", "chosen"]
    assert table.caption.endswith(
        " Never chosen, as a failed trial of fedsim tune: values that lack runs which others have, "
        "or whose score is not finite; how many: train.lr=0.01 (1); train.lr=1 (2)."
    )


def test_runs_of_other_partitions_are_missing_too(tmp_path: Path) -> None:
    for part, values in ((0, (0.6, None)), (1, (0.6, 0.7))):
        rates = {0.1: (values[0],), 1: (values[1],)}
        runs_of(tmp_path, rates, **{"data.seed": part})
    got = chosen(tmp_path, unit="partition")
    assert got["chosen"].to_dict() == {"0.1": True, "1": False}


def test_where_no_value_has_all_runs_none_is_chosen(tmp_path: Path) -> None:
    runs_of(tmp_path, {0.1: (0.6, None), 1: (None, 0.9)})
    with pytest.raises(AnalysisError) as error:
        chosen(tmp_path)
    assert str(error.value) == (
        "fedavg: every value of train.lr lacks runs that another one has, or their val_accuracy is "
        "not finite (0.1: 1; 1: 1), so that none can be chosen; give the same seeds for each "
        "value, all finished"
    )


def test_complete_means_a_finite_value_of_each_run() -> None:
    values = pd.Series({0: 0.5, 1: math.inf, 2: math.nan})
    assert units.complete(values, [0])
    assert not any(units.complete(values, runs) for runs in ([1], [2], [0, 3], [0, 1]))
    assert units.complete(values, [])
