"""FedGH's layouts, rounds to a target accuracy, and the choice of a hyperparameter."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis import AnalysisError
from analysis.cli import main
from analysis.labels import title_of
from analysis.runs import find, summaries
from analysis.tables import pairs
from analysis.tables.layout import EMPTY
from tests.unit.analysis.run_files import run_of

CI = " (± 95 % CI)"

FINAL = {
    ("fedavg", None): (0.60, 0.62, 0.64),
    ("fedavg", "fedgh"): (0.65, 0.67, 0.71),
    ("fedprox", None): (0.50, 0.50, 0.50),
    ("fedprox", "fedgh"): (0.55, 0.55, 0.55),
}


def sweep_of(root: Path, gain: float = 0.0, **settings: object) -> None:
    """Three seeds of two methods, each under its own server rule and under FedGH's."""
    for (algorithm, server), accuracies in FINAL.items():
        for seed, accuracy in enumerate(accuracies):
            run_of(root, algorithm, seed, [accuracy + gain], **{"server": server} | settings)


def table_of(root: Path) -> pd.DataFrame:
    return summaries(find([root])[0])


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_each_method_is_followed_by_itself_under_the_other_server(tmp_path: Path) -> None:
    sweep_of(tmp_path)
    got = pairs.accuracies(table_of(tmp_path))
    # differences 0.05 0.05 0.07: mean 0.17 / 3, s = 0.011547, t = 8.5, p(2 degrees) = 0.01356; the
    # two of fedprox do not vary, so that this is the only test
    assert got.head == ["Method", "Accuracy (%) ± 95 % CI"]
    # s = 2 and 3.0551, half = 4.302653 s / sqrt(3); against the other three the best mean has p
    # 0.0136, 0.0099 and 0.0189, and 0.0297, 0.0297 and 0.0297 after correction
    assert got.rows == [
        ["FedAvg", "62.00 ± 4.97"],
        ["+ FedGH", "**67.67** ± 7.59 *"],
        ["FedProx", "50.00 ± 0.00"],
        ["+ FedGH", "55.00 ± 0.00"],
    ]
    assert "Compared: method minus the same clients under their own server rule" in got.caption
    assert "the same difference for every seed: FedProx + FedGH." in got.caption
    assert got.caption.endswith("Seeds: 3 each.")
    own = got.data.set_index("label").loc["fedavg, server=fedgh"]
    assert own["difference"] == pytest.approx(0.17 / 3)
    assert own["p"] == pytest.approx(0.013560, abs=1e-6)
    assert got.data.set_index("label").loc[["fedavg", "fedprox"], "p"].isna().all()


@pytest.mark.slow
def test_columns_are_the_settings_that_tell_experiments_apart(tmp_path: Path) -> None:
    sweep_of(tmp_path, 0.0, alpha=0.1, sample_rate=1.0)
    sweep_of(tmp_path, 0.1, alpha=1.0, sample_rate=0.2)
    sweep_of(tmp_path, 0.2, alpha=1.0, sample_rate=1.0)
    sweep_of(tmp_path, 0.3, dataset="mnist", alpha=10.0, sample_rate=1.0)
    got = pairs.accuracies(table_of(tmp_path))
    assert got.head == [
        "Method", f"digits, alpha=0.1, sample_rate=1{CI}", f"digits, alpha=1, sample_rate=0.2{CI}",
        f"digits, alpha=1, sample_rate=1{CI}", f"mnist, alpha=10, sample_rate=1{CI}",
    ]  # fmt: skip
    assert [cell.removesuffix(" *") for cell in got.rows[1][1:]] == [
        "**67.67** ± 7.59", "**77.67** ± 7.59", "**87.67** ± 7.59", "**97.67** ± 7.59",
    ]  # fmt: skip
    by_rate = pairs.experiments(
        table_of(tmp_path), ["algorithm", "alpha", "dataset"], ["sample_rate"]
    )
    assert list(by_rate) == ["sample_rate=0.2", "sample_rate=1"]
    with pytest.raises(AnalysisError, match=r"--by alpha"):
        pairs.accuracies(table_of(tmp_path), columns="sample_rate")


@pytest.mark.slow
def test_data_of_users_have_two_accuracies(tmp_path: Path) -> None:
    sweep_of(tmp_path, dataset="digits", alpha=0.1)
    sweep_of(tmp_path, dataset="celeba", alpha=None, client_test_accuracy=0.25)
    got = pairs.accuracies(table_of(tmp_path))
    assert got.head == ["Method", f"celeba Acc_l{CI}", f"celeba Acc_g{CI}", f"digits{CI}"]
    assert got.rows[2][1:3] == ["25.00 ± 0.00", "50.00 ± 0.00"]
    assert "Acc_l: the unweighted mean over the clients" in got.caption
    alone = pairs.accuracies(table_of(tmp_path).query("dataset == 'celeba'"))
    assert alone.head == ["Method", f"Acc_l{CI}", f"Acc_g{CI}"]


def test_a_method_under_another_server_is_named_by_both() -> None:
    assert title_of("fedprox, server=fedgh, alpha=0.1") == "FedProx + FedGH, alpha=0.1"
    assert title_of("fedprox, server=my:own") == "FedProx, server=my:own"
    assert title_of("fedld, server=fedavg") == "Margin control only"


def reaching(root: Path, algorithm: str, seed: int, rounds: float | None, **more: object) -> None:
    times = {"seconds_to_target": None if rounds is None else 2.5 * rounds}
    settings = {"target_accuracy": 0.6, "rounds_to_target": rounds} | times | more
    run_of(root, algorithm, seed, [0.5], **settings)


def test_rounds_to_target_say_how_many_seeds_reached_it(tmp_path: Path) -> None:
    for seed, (first, second) in enumerate(((10, 4), (12, None), (14, 5))):
        reaching(tmp_path, "fedavg", seed, first)
        reaching(tmp_path, "fedprox", seed, second)
        reaching(tmp_path, "fedld", seed, None)
        reaching(tmp_path, "fedgh", seed, 20 + seed)
    got = pairs.reached(table_of(tmp_path))
    assert got.head == ["Method", f"60 %: rounds{CI}", f"60 %: seconds{CI}"]
    assert got.rows == [
        ["FedAvg", "**12.0** ± 5.0", "**30.0** ± 12.4"],
        ["FedProx", "4.5 ± 6.4 (2 of 3)", "11.2 ± 15.9 (2 of 3)"],
        ["FedGH", "21.0 ± 2.5", "52.5 ± 6.2"],
        ["FedLD", f"{EMPTY} (0 of 3)", f"{EMPTY} (0 of 3)"],
    ]
    data = got.data[got.data["column"] == "60 %: rounds"].set_index("label")
    assert data.loc[["fedavg", "fedprox", "fedld"], "n"].tolist() == [3, 2, 0]
    assert data["seeds"].tolist() == [3, 3, 3, 3]


@pytest.mark.slow
def test_simulated_seconds_and_targets_of_several_experiments(tmp_path: Path) -> None:
    for server in (None, "fedgh"):
        reaching(tmp_path, "fedavg", 0, 3, server=server, alpha=0.1)
        reaching(
            tmp_path, "fedavg", 0, 2, server=server, alpha=1.0, target_accuracy=0.8,
            simulated_seconds_to_target=40.25,
        )  # fmt: skip
    got = pairs.reached(table_of(tmp_path))
    assert got.head == [
        "Method", "alpha=0.1, 60 %: rounds", "alpha=0.1, 60 %: seconds", "alpha=1, 80 %: rounds",
        "alpha=1, 80 %: seconds", "alpha=1, 80 %: simulated seconds",
    ]  # fmt: skip
    assert [row[0] for row in got.rows] == ["FedAvg", "+ FedGH"]
    assert got.rows[0][5] == "40.2"
    reaching(tmp_path, "fedprox", 0, 3, alpha=1.0)  # to 60 %: columns of its own
    run_of(tmp_path, "fedgh", 0, [0.5], alpha=1.0)  # without a target
    again = pairs.reached(table_of(tmp_path))
    assert again.head[3:5] == ["alpha=1, 60 %: rounds", "alpha=1, 60 %: seconds"]
    assert [row[0] for row in again.rows] == ["FedAvg", "+ FedGH", "FedProx"]
    assert [row[3] for row in again.rows] == [EMPTY, EMPTY, "3.0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pairs", "--baseline", "fedavg"), "--baseline fedavg: the table pairs compares each"),
        (("pairs", "--columns", "colour"), "no column colour"),
        (("target",), "in no run summary.csv has target_accuracy; evaluation.target_accuracy"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    sweep_of(tmp_path)
    result = invoke("table", tmp_path, "--metric", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
