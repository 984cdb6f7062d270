"""A hyperparameter is chosen by validation accuracy alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from run_files import run_of

from analysis.cli import main

KEY = "fedld.margin_weight"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The weight 0.1 is best on validation, 1 on test; the last validated round is the second."""
    root = tmp_path / "runs"
    for weight, val, test in ((0.1, 0.7, 0.5), (1.0, 0.6, 0.9)):
        for seed in (0, 1):
            late = [0.99, val + seed / 50, None]
            run_of(root, "fedld", seed, [0.1, 0.2, test], late, **{KEY: weight})
    run_of(root, "fedavg", 0, [0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    return root


def select(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["select", *map(str, arguments)])


def test_validation_decides(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "chosen.csv"
    result = select(runs, "--by", KEY, "--out", file)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("| FedLD")]
    # 0.70 0.72: s = 0.0141, half = 12.7062 * 0.01
    assert lines == [
        "| FedLD | **0.1** | 2 | 71.00 ± 1.41 | [58.29, 83.71] | 50.00 ± 0.00 | [50.00, 50.00] | "
        "chosen |",
        "| FedLD | 1 | 2 | 61.00 ± 1.41 | [48.29, 73.71] | 90.00 ± 0.00 | [90.00, 90.00] |  |",
    ]
    assert "FedAvg" not in result.stdout
    assert "test accuracy, after the last round, was not looked at" in result.stdout
    kept = pd.read_csv(file)
    assert kept[["method", KEY, "n"]].to_numpy().tolist() == [["fedld", 0.1, 2]]
    assert kept["val_mean"].tolist() == pytest.approx([0.71])


def test_a_choice_for_each_setting(runs: Path, tmp_path: Path) -> None:
    for weight, val in ((0.1, 0.2), (1.0, 0.3)):
        run_of(runs, "fedld", 0, [0.1, 0.2, 0.3], [val] * 3, **{KEY: weight, "alpha": 10.0})
    file = tmp_path / "chosen.csv"
    result = select(runs, "--by", KEY, "--within", "algorithm", "--within", "alpha", "--out", file)
    assert result.exit_code == 0, result.output
    assert pd.read_csv(file)[["method", KEY]].to_numpy().tolist() == [
        ["fedld, alpha=0.5", 0.1], ["fedld, alpha=10", 1.0],
    ]  # fmt: skip
    assert "different numbers of seeds" in result.stdout


def test_the_first_of_equal_values_is_chosen(tmp_path: Path) -> None:
    for weight in (0.3, 0.1, 0.2):
        run_of(tmp_path, "fedld", 0, [0.5], [0.5], **{KEY: weight})
    result = select(tmp_path, "--by", KEY)
    (line,) = [line for line in result.stdout.splitlines() if line.endswith("| chosen |")]
    assert "| **0.1** | 1 | 50.00 | n/a |" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", KEY, "--out", "x.md"), "x.md: a table is a file named .csv"),
        (("--by", "colour"), "no column colour to group by"),
        (("--by", KEY), "rounds.csv: no val_accuracy; a choice needs a validation part"),
    ],
)
def test_refusals(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    run_of(runs, "fedld", 2, [0.1, 0.2, 0.3], **{KEY: 1.0})
    result = select(runs, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_run_has_the_setting(runs: Path) -> None:
    result = select(*runs.glob("fedavg*"), "--by", "fedld.keep")
    assert result.exit_code == 2
    run_of(runs / "more", "fedprox", 0, [0.1, 0.2, 0.3], [0.1] * 3, **{"fedprox.mu": None})
    result = select(runs / "more", "--by", "fedprox.mu")
    assert "no run has a value of fedprox.mu to choose" in result.stderr
