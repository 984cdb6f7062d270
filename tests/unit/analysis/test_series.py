"""Tables of many runs, reduced run by run."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
from run_files import groups_of, rows, run_of

from analysis import AnalysisError, series

EVALUATIONS = "round,client_id,group,split,num_samples,loss,accuracy"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (0, 1):
        folder = run_of(tmp_path, "fedld", seed, [0.2, 0.4 + seed / 10, 0.6])
        rows(
            folder, "evaluations", EVALUATIONS,
            f"2,,aligned,test,9,1,{0.5 + seed / 10}", "2,,conflicting,test,9,1,0.3",
            "1,,aligned,test,9,1,0", "3,0,,test,4,1,0.25", "3,1,,test,4,1,0.75",
            "3,0,,val,4,1,0.5", "3,,aligned,test,9,1,",
        )  # fmt: skip
    return tmp_path


def test_series_by_round_in_numeric_order(tmp_path: Path) -> None:
    for seed, high in enumerate((0.4, 0.6)):
        run_of(tmp_path, "fedld", seed, [0.1] * 9 + [high])
    got = series.aggregated(groups_of(tmp_path), "rounds", ["test_accuracy"])["fedld"]
    assert got.index.tolist() == list(range(1, 11))
    # 0.4 0.6: s = 0.1414214, half = t(0.975, 1) s / sqrt(2) = 12.70620474 * 0.1
    assert got["test_accuracy"].loc[10].tolist() == pytest.approx([0.5, 0.1414214, 2, 1.2706205])


def test_a_mean_is_over_the_runs_that_have_a_value(tmp_path: Path) -> None:
    run_of(tmp_path, "fedld", 0, [0.1, math.nan, 0.3])
    run_of(tmp_path, "fedld", 1, [0.3, 0.5, 0.5])
    got = series.aggregated(groups_of(tmp_path), "rounds", ["test_accuracy"])["fedld"]
    assert got["test_accuracy"]["n"].tolist() == [2, 1, 2]
    assert got["test_accuracy"]["mean"].tolist() == pytest.approx([0.2, 0.5, 0.4])
    assert series.complete(got, "test_accuracy").index.tolist() == [1, 3]


def test_rows_with_the_same_key_are_averaged_within_the_run(tmp_path: Path) -> None:
    for seed, pairs in enumerate((["0.1", "0.3"], ["0.8"])):
        lines = (f"1,0,{i},{c}" for i, c in enumerate(pairs, 1))
        folder = run_of(tmp_path, "fedld", seed, [0.5])
        rows(folder, "cosines", "round,client_a,client_b,cosine", *lines)
    got = series.aggregated(groups_of(tmp_path), "cosines", ["cosine"])["fedld"]
    # the runs' means 0.2 and 0.8 count alike, whatever the number of pairs
    assert got.loc[1, ("cosine", "mean")] == pytest.approx(0.5)


def test_last_round_is_that_of_the_rows_asked_for(runs: Path) -> None:
    where = {"split": "test"}
    groups = groups_of(runs)

    def last(key: str) -> pd.DataFrame:
        found = series.aggregated(groups, "evaluations", ["accuracy"], key, where, take="last")
        return found["fedld"]

    by_group = series.aggregated(groups, "evaluations", ["accuracy"], "group", where, take="last")[
        "fedld"
    ]
    assert by_group["accuracy"]["mean"].to_dict() == pytest.approx(
        {"aligned": 0.55, "conflicting": 0.3}
    )
    by_client = series.aggregated(
        groups, "evaluations", ["accuracy"], "client_id", where, take="last"
    )["fedld"]
    assert by_client["accuracy"]["mean"].to_dict() == {0: 0.25, 1: 0.75}


def test_last_without_a_key_is_one_value_per_run(runs: Path) -> None:
    got = series.values(groups_of(runs), "rounds", ["test_accuracy"], (), take="last")["fedld"]
    assert got["test_accuracy"].tolist() == [0.6, 0.6]
    assert got.index.get_level_values("seed").tolist() == [0, 1]
    assert (
        len(series.aggregated(groups_of(runs), "rounds", ["test_accuracy"], take="last")["fedld"])
        == 1
    )


def test_several_keys(runs: Path) -> None:
    got = series.values(groups_of(runs), "evaluations", ["accuracy"], ("split", "client_id"))
    assert got["fedld"].loc[0].index.tolist() == [("test", 0), ("test", 1), ("val", 0)]


def test_runs_without_the_table_are_skipped_and_named(runs: Path) -> None:
    bare = run_of(runs, "fedavg", 0, [0.5])
    empty = run_of(runs, "fedavg", 1, [0.5])
    rows(empty, "evaluations", EVALUATIONS)
    groups = groups_of(runs, "algorithm", "rounds")
    assert series.absent(groups, "evaluations") == [bare, empty]
    assert set(series.aggregated(groups, "evaluations", ["loss"])) == {"fedld, rounds=3"}
    assert len(series.absent(groups, "rounds", ["test_accuracy"])) == 0
    assert len(series.absent(groups, "rounds", ["gradient_diversity"])) == 4
    assert series.aggregated(groups, "rounds", ["gradient_diversity"]) == {}


def test_bad_field_names_file_line_and_column(runs: Path) -> None:
    (folder,) = runs.glob("fedld-1")
    rows(folder, "evaluations", EVALUATIONS, "1,,g,test,9,1,0.5", "1,,h,test,9,1,high")
    with pytest.raises(
        AnalysisError, match=r"evaluations\.csv, line 3: accuracy is 'high', not a number"
    ):
        series.aggregated(groups_of(runs), "evaluations", ["accuracy"], "group")


def test_lines_longer_than_the_header_are_refused(runs: Path) -> None:
    file = next(runs.rglob("rounds.csv"))
    header = file.read_text().splitlines()[0]
    file.write_text(f"{header}\n{'1,' * header.count(',')}1,1\n")
    with pytest.raises(AnalysisError, match=r"rounds\.csv: cannot be read as CSV"):
        series.aggregated(groups_of(runs), "rounds", ["test_accuracy"])


def test_numbers_in_text_columns_stay_text(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "fedld", 0, [0.5])
    rows(folder, "evaluations", EVALUATIONS, "1,,007,test,9,1,0.5", "1,,7,test,9,1,0.25")
    got = series.values(groups_of(tmp_path), "evaluations", ["accuracy"], "group")["fedld"]
    assert got.index.get_level_values("group").tolist() == ["007", "7"]


def test_unknown_columns_of_a_file_do_no_harm(tmp_path: Path) -> None:
    folder = run_of(tmp_path, "fedld", 0, [0.5])
    rows(folder, "timings", "round,phase,seconds,bytes,more", "1,train,2,3,words")
    got = series.aggregated(groups_of(tmp_path), "timings", ["seconds"], "phase")["fedld"]
    assert got.loc["train", ("seconds", "mean")] == 2


def test_batches_change_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_of(runs, "fedavg", 0, [0.25, 0.5])
    groups = groups_of(runs, "algorithm", "rounds")

    def both() -> list[dict[str, object]]:
        asked = (("rounds", ["test_accuracy"], "round"), ("evaluations", ["accuracy"], "group"))
        return [
            {label: frame.to_dict() for label, frame in series.values(groups, *one).items()}
            for one in asked
        ]

    together = both()
    assert [sorted(one) for one in together] == [
        ["fedavg, rounds=2", "fedld, rounds=3"], ["fedld, rounds=3"],
    ]  # fmt: skip
    monkeypatch.setattr(series, "BATCH", 1)
    assert both() == together
