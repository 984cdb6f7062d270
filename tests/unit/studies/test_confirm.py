"""The best trials on fresh seeds: a trial with a run that failed has no value."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from fedsim.cli.searches import confirmed
from fedsim.config.resolve import resolve
from fedsim.storage import status
from fedsim.storage.trials import Trial
from fedsim.studies import confirm

BY = "val_accuracy"


def trial(number: int, value: float) -> Trial:
    params = {"train.lr": 0.1 * (number + 1)}
    return Trial(number=number, params=params, state="complete", value=value)


def plan_of(by: str = BY) -> Any:
    """What confirmation asks of a plan: one seed, so that there are three fresh ones."""
    return SimpleNamespace(
        seeds=(0,), proposer=SimpleNamespace(by=by), settings={}, overrides={},
        config=lambda params, seed: resolve({}),
    )  # fmt: skip


def write(
    out: Path, leaders: list[Trial], values: dict[int, tuple[float | None, ...]],
    monkeypatch: pytest.MonkeyPatch, by: str = BY,
) -> pd.DataFrame:  # fmt: skip
    """Confirms trials whose runs on the fresh seeds 1, 2 and 3 have these values; None failed."""
    last, failed, rows = {}, [], []
    for number, of in values.items():
        there = [value for value in of if value is not None]
        for seed, value in enumerate(of, start=1):
            name = f"trial={number},seed={seed}"
            if value is None:
                failed.append(name)
            else:
                last[out / confirm.FOLDER / name] = value
        if there:
            rows.append(
                {"configuration": f"trial={number}", "algorithm": "fedavg", "n": len(there)}
                | {"final_test_accuracy_mean": 0.5, "runs": len(there)}
            )
    shown = {path: [{by: str(value)}] for path, value in last.items()}
    monkeypatch.setattr(status, "rounds", shown.__getitem__)
    return confirm.write_confirmed(plan_of(by), out, leaders, failed, pd.DataFrame(rows))


def best(out: Path) -> str:
    """The comment of best.yaml, which holds a whole configuration."""
    text = (out / "best.yaml").read_text()
    assert yaml.safe_load(text)["algorithm"]
    return text.splitlines()[0]


def test_one_survivor_of_three_is_not_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = [trial(4, 0.9), trial(2, 0.8)]
    values = {4: (None, 0.99, None), 2: (0.5, 0.75, 0.625)}
    found = write(tmp_path, leaders, values, monkeypatch)
    assert found["trial"].tolist() == [2, 4]
    assert found["n"].tolist() == [3, 1]
    assert found["failed"].tolist() == [0, 2]
    assert best(tmp_path) == "# trial 2: val_accuracy 0.625, mean over 3 fresh training seeds"
    read = pd.read_csv(tmp_path / "confirm.csv")
    assert list(read)[-1] == "failed"
    assert read[f"{BY}_mean"].tolist() == [0.625, pytest.approx(math.nan, nan_ok=True)]
    assert read["final_test_accuracy_mean"].isna().tolist() == [False, True]
    assert [row["n"] for row in confirmed(tmp_path)] == [3, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_is_a_failure(
    bad: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = [trial(0, 0.1), trial(1, 0.2)]
    values = {0: (0.1, 0.1, bad), 1: (0.5, 0.6, 0.7)}
    found = write(tmp_path, leaders, values, monkeypatch, "val_loss")
    assert found["trial"].tolist() == [1, 0]
    assert best(tmp_path).startswith("# trial 1: val_loss 0.6")


def test_where_all_fail_best_is_that_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = [trial(3, 0.9), trial(1, 0.8)]
    found = write(tmp_path, leaders, {3: (0.5, None, 0.5), 1: (None, None, None)}, monkeypatch)
    assert best(tmp_path) == "# trial 3: val_accuracy 0.9"
    assert found["failed"].tolist() == [1, 3]
    assert found["n"].tolist() == [2, 0]


def test_equal_means_keep_the_order_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = [trial(7, 0.9), trial(1, 0.8)]
    found = write(tmp_path, leaders, {7: (0.5, 0.5, 0.5), 1: (0.5, 0.5, 0.5)}, monkeypatch)
    assert found["trial"].tolist() == [7, 1]
