"""Verdicts of a job from planted runs: what is read of them, and what is said of each result."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from fedsim.config.published.tables import Metric, Table
from fedsim.core.errors import StoreError
from fedsim.studies import reproduce
from tests.published import GOOD, NUMBERS, parse

CHANGED = {
    "metric: final_test_accuracy\n": """\
metric:
  Digits: final_test_accuracy
  Digits again: final_test_accuracy
  Last: "|decomposition.shift_loss|"
""",
    NUMBERS: """\
numbers:
  FedAvg: {Digits: 80.5, Digits again: 80.5}
  FedGH: {Digits: {value: 90, sd: 1, n: 3}, Last: {value: 1, missing: a GPU}}
""",
    "widest: 8\nruns: 1\n": "",
    "samples: 1437": "samples: 100",
}


def table() -> Table:
    text = GOOD
    for before, after in CHANGED.items():
        text = text.replace(before, after)
    return parse(text)


def planted(out: Path, values: dict[str, list[float | None]], samples: int = 100) -> list[object]:
    """Runs of FedAvg and FedGH with these accuracies, one per seed; None: not finished."""
    runs = []
    for server, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            name = f"split=alpha1_all,algorithm=fedavg,server={server},seed={seed}"
            folder = out / name
            folder.mkdir(parents=True)
            if accuracy is not None:
                (folder / "summary.csv").write_text(f"final_test_accuracy\n{accuracy}\n")
                (folder / "partition.csv").write_text(f"client_id,train_samples\n0,{samples}\n")
            config = SimpleNamespace(seed=seed, data=SimpleNamespace(seed=0))
            runs.append(SimpleNamespace(name=name, config=config))
    return runs


def judged(
    out: Path, own: list[float | None], fedgh: list[float | None], **given: int
) -> dict[str, reproduce.Result]:
    whole = table()
    runs = planted(out, {"own": own, "fedgh": fedgh}, **given)
    results = reproduce.write(whole, whole.jobs["full"], runs, out)  # type: ignore[arg-type]
    return {f"{each.method}, {each.result.setting}": each for each in results}


NEAR = [0.805, 0.806, 0.804, 0.805]


def test_each_verdict_of_a_job(tmp_path: Path) -> None:
    found = judged(tmp_path, NEAR, [0.825, 0.827, 0.824, 0.826])
    words = {key: each.verdict.word for key, each in found.items()}
    assert words == {
        "FedAvg, Digits": "confirmed",
        "FedAvg, Digits again": "not testable here",
        "FedGH, Digits": "contradicted",
        "FedGH, Last": "not testable here",
        "FedGH > FedAvg, Digits": "confirmed",
    }
    assert found["FedGH, Last"].verdict.reason == "a GPU"
    assert found["FedAvg, Digits again"].verdict.reason == "not in the runs of the full job"
    assert found["FedAvg, Digits"].verdict.difference == pytest.approx(0.0, abs=1e-9)
    assert found["FedGH > FedAvg, Digits"].verdict.difference == pytest.approx(2.05, abs=1e-9)
    cells = reproduce.cells(found["FedGH, Digits"])
    assert (cells["published"], cells["ours"], cells["n"]) == ("90 (sd 1, n 3)", "82.55", "4")
    stored = pd.read_csv(tmp_path / "verdicts.csv")
    assert stored["verdict"].tolist() == list(words.values())
    values = pd.read_csv(tmp_path / "values.csv")
    assert len(values) == 8
    assert values["value"].tolist()[:4] == pytest.approx([80.5, 80.6, 80.4, 80.5], abs=1e-9)
    again = reproduce.judge(table(), table().jobs["full"], values)
    assert [each.verdict.word for each in again] == list(words.values())


def test_an_undecided_number_says_how_many_seeds_would_decide(tmp_path: Path) -> None:
    found = judged(tmp_path, [0.80, 0.82, 0.79, 0.81], [0.80, 0.81, 0.80, 0.82])
    number, order = found["FedAvg, Digits"], found["FedGH > FedAvg, Digits"]
    for each in (number, order):
        assert each.verdict.word == "not decidable"
        told = f"{each.verdict.needed:,} seeds would decide"
        assert told in reproduce.cells(each)["note"]


def test_a_run_that_is_not_finished_decides_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, [*NEAR[:3], None], [0.825, 0.827, 0.824, 0.826])
    for key in ("FedAvg, Digits", "FedGH > FedAvg, Digits"):
        assert found[key].verdict.word == "not decidable"
        assert found[key].verdict.reason == "1 of 4 runs have no value"


def test_a_part_of_the_data_tests_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, NEAR, NEAR, samples=60)
    assert {each.verdict.word for each in found.values()} == {"not testable here"}
    reason = found["FedAvg, Digits"].verdict.reason
    assert reason == "60 training samples, the published runs have 100"


def test_what_is_read_of_a_run(tmp_path: Path) -> None:
    metric = Metric(table="decomposition", column="shift_loss", absolute=True)
    assert math.isnan(reproduce.read(tmp_path, metric))  # not finished
    (tmp_path / "summary.csv").write_text("run_id,rounds_to_target\na,\n")
    (tmp_path / "decomposition.csv").write_text("round,shift_loss\n1,-3\n2,-2.5\n")
    (tmp_path / "evaluations.csv").write_text(
        "round,client_id,split,accuracy\n1,0,own,0.1\n2,0,own,0.25\n2,1,own,0.75\n2,1,test,0.5\n"
    )
    assert reproduce.read(tmp_path, metric) == 2.5
    client = Metric(
        table="evaluations", column="accuracy", where={"client_id": "1", "split": "own"}
    )
    assert reproduce.read(tmp_path, client) == 0.75
    assert math.isnan(reproduce.read(tmp_path, Metric(table="summary", column="rounds_to_target")))
    with pytest.raises(StoreError, match=r"evaluations\.csv: 3 rows for accuracy, needed is one"):
        reproduce.read(tmp_path, Metric(table="evaluations", column="accuracy"))
    with pytest.raises(StoreError, match=r"summary\.csv: has no column 'x'"):
        reproduce.read(tmp_path, Metric(table="summary", column="x"))
