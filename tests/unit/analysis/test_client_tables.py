"""``fedsim table --metric clients``: how the clients' accuracies spread."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import run_of

from analysis import AnalysisError, tables
from analysis.runs import find, summaries


def make(root: Path, **options: object) -> list[tables.Table]:
    return tables.make("clients", summaries(find([root])[0]), **options)  # type: ignore[arg-type]


def test_mean_worst_decile_worst_client_and_spread_over_seeds(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        for method, mean in (("fedavg", 0.5 + seed / 100), ("local", 0.7 - seed / 100)):
            run_of(
                tmp_path, method, seed, [0.3],
                own_test_accuracy_mean=mean, own_test_accuracy_std=0.1,
                own_test_accuracy_p10=0.4, own_test_accuracy_worst=0.2,
            )  # fmt: skip
    (table,) = make(tmp_path)
    assert table.title == "Accuracy by client, final model"
    assert [head.partition(" (")[0] for head in table.head[1:]] == [
        "Mean", "Worst decile", "Worst client", "Std over clients",
    ]  # fmt: skip
    by_method = {row[0]: row[1:] for row in table.rows}
    # means 0.50 0.51 0.52: std 0.01, half-width 4.3027 * 0.01 / sqrt(3) = 0.0248
    assert by_method["FedAvg"][0].startswith("51.00 ± 2.48")
    assert by_method["Local"][0].startswith("**69.00** ± 2.48")
    assert by_method["Local"][3].startswith("10.00"), "the spread is not ranked"


def test_one_table_for_each_kind_that_any_run_has(tmp_path: Path) -> None:
    run_of(tmp_path, "fedavg", 0, [0.3], finetuned_accuracy_mean=0.5, finetuned_accuracy_worst=0.1)
    run_of(tmp_path, "fedavg", 1, [0.3], client_accuracy_p10=0.25, client_accuracy_std=None)
    made = make(tmp_path)
    assert [table.name for table in made] == [
        "clients_client_accuracy",
        "clients_finetuned_accuracy",
    ]


def test_runs_without_any_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, "fedavg", 0, [0.3])
    with pytest.raises(AnalysisError, match=r"in no run summary.csv has accuracies by client"):
        make(tmp_path)
