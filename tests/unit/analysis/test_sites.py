"""``fedsim table --metric sites``: every site by name, and whom a method helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats

from analysis import AnalysisError, plain, tables
from analysis.cli import main
from analysis.layout import FORMATS
from analysis.runs import find, summaries
from analysis.sites import gathered
from tests.unit.analysis.run_files import groups_of, rows, run_of

NAMES = ("Zürich & Söhne", "clinic_b", "St. Mary's, ward 2")
Accuracies = Mapping[str, Sequence[Sequence[float]]]


def sites(
    root: Path, accuracies: Accuracies, tuned: Accuracies | None = None,
    names: Sequence[str] = NAMES,
) -> None:  # fmt: skip
    """Runs with a final_clients.csv: by method and seed the accuracy of each site."""
    header = "client_id,held_out,split,num_samples,loss,accuracy,finetuned_loss,finetuned_accuracy"
    for method, by_seed in accuracies.items():
        for seed, values in enumerate(by_seed):
            run = run_of(root, method, seed, [0.3])
            fine = (tuned or {}).get(method)
            lines = [
                f"{client},0,own_test,20,1.0,{value},,{'' if fine is None else fine[seed][client]}"
                for client, value in enumerate(values)
            ]
            rows(run, "final_clients", header, *lines)
            of = pd.DataFrame({"client_id": range(len(values)), "label": 0, "name": names})
            of = of.assign(train_samples=100 + of["client_id"], test_samples=20)
            of.to_csv(run / "partition.csv", index=False)


def make(root: Path, **options: object) -> list[tables.Table]:
    return tables.make("sites", summaries(find([root])[0]), **options)  # type: ignore[arg-type]


CLEAR: Accuracies = {
    "local": [[0.60, 0.80, 0.5], [0.62, 0.81, 0.7], [0.61, 0.82, 0.6]],
    "fedavg": [[0.80, 0.60, 0.6], [0.81, 0.61, 0.6], [0.82, 0.60, 0.6]],
}


def test_each_site_by_name_with_its_samples_and_whom_federation_helps(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    levels, differences = make(tmp_path)
    assert levels.head == [
        "Site", "Training samples", "Test samples", "Local ± 95 % CI", "FedAvg ± 95 % CI",
    ]  # fmt: skip
    assert [row[:3] for row in levels.rows] == [
        [NAMES[0], "100", "20"], [NAMES[1], "101", "20"], [NAMES[2], "102", "20"],
    ]  # fmt: skip
    assert levels.rows[0][4].startswith("81.00 ± 2.48"), "0.80 0.81 0.82, t(0.975, 2) = 4.3027"
    told = {row[0]: row[1] for row in differences.rows}
    # differences 0.20 0.19 0.21: mean 0.20, std 0.01, half-width 0.0248
    assert told[NAMES[0]] == "+20.00 [+17.52, +22.48] **helps**"
    assert told[NAMES[1]].endswith("**does not help**")
    assert told[NAMES[2]].endswith(" cannot be told")
    assert "Approach minus Local at the same site" in differences.caption


def test_p_values_are_paired_over_seeds_and_corrected_over_the_sites(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    _, differences = make(tmp_path)
    shown = differences.data.set_index("site")
    for index, name in enumerate(NAMES):
        ours, theirs = ([of[index] for of in CLEAR[m]] for m in ("fedavg", "local"))
        assert shown["p"][name] == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    smallest = shown["p"].min()
    assert shown["p_holm"][shown["p"].idxmin()] == pytest.approx(3 * smallest)
    assert shown["verdict"].tolist() == ["helps", "does not help", "cannot be told"]
    assert shown["num_samples"].tolist() == [100, 101, 102]


def test_fine_tuned_models_are_approaches_of_their_own(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, {"fedavg": [[0.9, 0.9, 0.9]] * 3})
    levels, differences = make(tmp_path)
    assert differences.head == ["Site", "FedAvg", "FedAvg, fine-tuned"]
    assert levels.rows[0][5].startswith("90.00")


def test_two_seeds_are_too_few_to_tell(tmp_path: Path) -> None:
    sites(tmp_path, {method: of[:2] for method, of in CLEAR.items()})
    _, differences = make(tmp_path)
    assert all(row[1].endswith("cannot be told") for row in differences.rows)
    assert "Too few seeds to tell: at least 3 are needed." in differences.caption


def test_without_a_local_run_the_table_says_that_one_is_needed(tmp_path: Path) -> None:
    sites(tmp_path, {"fedavg": CLEAR["fedavg"]})
    run_of(tmp_path, "fedprox", 0, [0.3])
    (levels,) = make(tmp_path)
    assert "run the same with `-a local`" in levels.caption
    assert "No accuracies by site: FedProx" in levels.caption
    assert "--evaluate-clients-every" in levels.caption


@pytest.mark.slow
def test_another_reference(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    _, differences = make(tmp_path, baseline="fedavg")
    assert differences.title.startswith("Difference from FedAvg")
    with pytest.raises(AnalysisError, match=r"baseline fedbn: no accuracies by client; .* fedavg"):
        make(tmp_path, baseline="fedbn")


@pytest.mark.slow
def test_clients_without_names_and_sites_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    sites(tmp_path / "same", CLEAR, names=("eye", "eye", "ear"))
    levels, _ = make(tmp_path / "same")
    assert [row[0] for row in levels.rows] == ["eye (client 0)", "eye (client 1)", "ear"]
    sites(tmp_path / "none", CLEAR, names=("", "", ""))
    levels, _ = make(tmp_path / "none")
    assert [row[0] for row in levels.rows] == ["client 0", "client 1", "client 2"]


def test_runs_on_other_sites_are_refused(tmp_path: Path) -> None:
    sites(tmp_path, {"local": CLEAR["local"]})
    sites(tmp_path, {"fedavg": CLEAR["fedavg"]}, names=("a", "b", "c"))
    with pytest.raises(AnalysisError, match="do not name the same clients"):
        make(tmp_path)


def test_runs_without_accuracies_by_client_are_refused_with_the_flag(tmp_path: Path) -> None:
    run_of(tmp_path, "fedavg", 0, [0.3])
    with pytest.raises(AnalysisError, match=r"no run has accuracies by site.*--evaluate-clients"):
        make(tmp_path)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_has_the_names(suffix: str, tmp_path: Path) -> None:
    sites(tmp_path / "runs", CLEAR)
    out = tmp_path / f"table{suffix}"
    asked = ["table", str(tmp_path / "runs"), "--metric", "sites", "--out", str(out)]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    text = out.read_text(encoding="utf-8")
    assert ("Zürich \\& Söhne" if suffix == ".tex" else "Zürich & Söhne") in text
    assert "cannot be told" in text


def test_the_report_says_whom_the_best_federated_method_helps(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    groups = groups_of(tmp_path)
    found = gathered({"": groups})
    compared, result, whom = plain.summary({"": groups}, "accuracy", found)
    assert compared.startswith("Compared: FedAvg and Local on digits, each trained 3 times")
    assert "best accuracy" in result
    assert whom == (
        f"Compared with training alone, FedAvg **helps** {NAMES[0]}; **does not help** {NAMES[1]}; "
        f"for {NAMES[2]} it cannot be told."
    )
    assert "simulations" in plain.unknown({"": groups}, [])[0]


def test_the_report_names_the_methods_without_results_by_site(tmp_path: Path) -> None:
    sites(tmp_path, {"local": CLEAR["local"]})
    for seed in range(3):
        run_of(tmp_path, "fedavg", seed, [0.7])
    groups = groups_of(tmp_path)
    told = plain.summary({"": groups}, "accuracy", gathered({"": groups}))[2]
    assert told == (
        "Whom it helps is not known: that needs results by participant of FedAvg, too "
        "(`--evaluate-clients-every`)."
    )
