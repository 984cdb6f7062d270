"""``fedsim table --metric clients``: how the clients' accuracies spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis import AnalysisError
from analysis.figures import clients as client_figures
from analysis.figures.grid import Drawing
from analysis.runs import find, summaries
from analysis.tables import scores as tables
from tests.unit.analysis.run_files import groups_of, rows, run_of


def make(root: Path, **options: object) -> list[tables.Table]:
    return tables.make("clients", summaries(find([root])[0]), **options)  # type: ignore[arg-type]


def evaluated(
    folder: Path, *parts: tuple[str, Mapping[int, Sequence[float]], Sequence[int]]
) -> None:
    """Writes evaluations.csv: by split and round the clients' accuracies, and their samples."""
    lines = [
        f"{number},{client},,{split},{samples[client]},1.0,{accuracy}"
        for split, by_round, samples in parts
        for number, accuracies in by_round.items()
        for client, accuracy in enumerate(accuracies)
    ]
    rows(folder, "evaluations", "round,client_id,group,split,num_samples,loss,accuracy", *lines)


def test_mean_worst_decile_worst_client_and_spread_over_seeds(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        for method, mean in (("fedavg", 0.5 + seed / 100), ("local", 0.7 - seed / 100)):
            run_of(
                tmp_path, method, seed, [0.3],
                own_test_accuracy_mean=mean, own_test_accuracy_std=0.1,
                own_test_accuracy_p10=0.4, own_test_accuracy_worst=0.2,
            )  # fmt: skip
    (table,) = make(tmp_path)
    assert table.title == "Accuracy by client on its own test part, final model"
    assert [head.partition(" (")[0] for head in table.head[1:]] == [
        "Mean", "Worst decile", "Worst client", "Std over clients",
    ]  # fmt: skip
    by_method = {row[0]: row[1:] for row in table.rows}
    # means 0.50 0.51 0.52: std 0.01, half-width 4.3027 * 0.01 / sqrt(3) = 0.0248
    assert by_method["FedAvg"][0].startswith("51.00 ± 2.48")
    assert by_method["Local"][0].startswith("**69.00** ± 2.48")
    assert by_method["Local"][3].startswith("10.00"), "the spread is not ranked"


def test_the_last_evaluation_has_a_mean_too(tmp_path: Path) -> None:
    last = [0.1, 0.3, 0.5, 0.9]
    evaluated(
        run_of(tmp_path, "fedavg", 0, [0.3]), ("own_test", {1: [0, 0, 0, 0], 2: last}, [5] * 4)
    )
    (table,) = make(tmp_path)
    assert table.title == "Accuracy by client on its own test part, last evaluation"
    expected = np.mean(last), np.percentile(last, 10), 0.1, np.std(last)
    assert table.rows == [["FedAvg", *(f"{100 * value:.2f}" for value in expected)]]


def test_accuracies_on_unlike_test_parts_are_in_separate_tables(tmp_path: Path) -> None:
    own, common = [5, 7], [100, 100]
    for seed in (0, 1):
        evaluated(run_of(tmp_path, "fedavg", seed, [0.3]), ("own_test", {1: [0.2, 0.4]}, own))
        evaluated(run_of(tmp_path, "fedbn", seed, [0.3]), ("test", {1: [0.8, 0.9]}, common))
        evaluated(
            run_of(tmp_path, "pfedla", seed, [0.3]),
            ("test", {1: [0.6, 0.7]}, common),
            ("own_test", {1: [0.3, 0.4]}, own),
        )
        run_of(tmp_path, "fedprox", seed, [0.3])
    own_table, common_table = make(tmp_path, baseline="fedavg")
    assert own_table.name == "clients_evaluated_own_test"
    assert [row[0] for row in own_table.rows] == ["FedAvg", "pFedLA"]
    assert "Compared: method minus FedAvg" in own_table.caption
    assert "Methods without these accuracies are left out: FedProx; FedBN." in own_table.caption
    assert common_table.title == "Accuracy by client on the common test part, last evaluation"
    assert [row[0] for row in common_table.rows] == ["FedBN", "pFedLA"]
    assert (
        "Nothing is compared with FedAvg: it does not have these accuracies."
        in common_table.caption
    )
    assert "left out: FedAvg; FedProx." in common_table.caption
    assert "Compared" not in common_table.caption


def partition_of(folder: Path, *test_samples: int) -> None:
    """Writes partition.csv: by client its training and its own test samples, of two labels."""
    lines = [
        f"{client},{label},10,{count}"
        for client, samples in enumerate(test_samples)
        for label, count in enumerate((samples // 2, samples - samples // 2))
    ]
    rows(folder, "partition", "client_id,label,train_samples,test_samples", *lines)


@pytest.mark.slow
@pytest.mark.parametrize("own", [[5, 7], [7, 7]], ids=["unequal sites", "equal sites"])
def test_a_test_part_that_clients_own_is_their_own_part(own: list[int], tmp_path: Path) -> None:
    """Sites: the rows of split ``test`` are each model on its owner's samples."""
    runs = {method: run_of(tmp_path, method, 0, [0.3]) for method in ("fedavg", "fedbn", "fedpac")}
    for run in runs.values():
        partition_of(run, *own)
    evaluated(runs["fedavg"], ("own_test", {1: [0.2, 0.4]}, own))
    evaluated(runs["fedbn"], ("test", {1: [0.8, 0.9]}, own))
    both = ("test", {1: [0.7, 0.7]}, own), ("own_test", {1: [0.8, 0.9]}, own)
    evaluated(runs["fedpac"], *both)
    (table,) = make(tmp_path)
    assert table.name == "clients_evaluated_own_test"
    assert {row[0]: row[1] for row in table.rows} == {
        "FedAvg": "30.00", "FedBN": "85.00", "FedPAC": "85.00",
    }  # fmt: skip
    figure = client_figures.by_client({"": groups_of(tmp_path)})
    assert isinstance(figure, Drawing)
    assert "Accuracy of each client on its own test part" in figure.caption
    assert "Without such rows" not in figure.caption


def test_a_baseline_alone_in_a_table_and_one_that_no_run_has(tmp_path: Path) -> None:
    evaluated(run_of(tmp_path, "fedavg", 0, [0.3]), ("own_test", {1: [0.2, 0.4]}, [5, 7]))
    run_of(tmp_path, "fedprox", 0, [0.3])
    (table,) = make(tmp_path, baseline="fedavg")
    assert "Nothing is compared with FedAvg: no other method has these" in table.caption
    with pytest.raises(AnalysisError, match="baseline fedbn: nothing to compare with it; the runs"):
        make(tmp_path, baseline="fedbn")


def test_runs_without_any_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, "fedavg", 0, [0.3])
    with pytest.raises(
        AnalysisError, match=r"no run has accuracies by client; evaluation\.clients"
    ):
        make(tmp_path)
