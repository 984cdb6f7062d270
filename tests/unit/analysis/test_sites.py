"""``fedsim table --metric sites``: every site by name, and whom a method helps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from analysis import AnalysisError
from analysis.facets import Facets
from analysis.figures import scores as score_figure
from analysis.figures import sites as site_figure
from analysis.figures.grid import Drawing
from analysis.report import answer
from analysis.report.answer import outcome
from analysis.runs import find, group, summaries, unit_among
from analysis.scores import completed
from analysis.tables import scores as tables
from analysis.tables.layout import EMPTY
from analysis.tables.sites import by_client, by_setting, split
from tests.unit.analysis.run_files import rows, run_of

NAMES = ("Zürich & Söhne", "clinic_b", "St. Mary's, ward 2")
Accuracies = Mapping[str, Sequence[Sequence[float]]]


def sites(
    root: Path, accuracies: Accuracies, tuned: Accuracies | None = None,
    names: Sequence[str] = NAMES, unit: str = "partition", measure: str = "accuracy",
    left_out: str | None = None, declared: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Runs with a final_clients.csv: by method and partition the accuracy of each site, or another
    ``measure`` beside it; ``left_out`` is a site that these runs hold out by name."""
    header = "client_id,held_out,split,num_samples,loss,accuracy,finetuned_loss,finetuned_accuracy"
    extra = measure != "accuracy"
    header += f",{measure},finetuned_{measure}" * extra
    for method, by_seed in accuracies.items():
        for seed, values in enumerate(by_seed):
            drawn: dict[str, object] = {"data.seed": seed if unit == "partition" else 0}
            drawn |= {} if left_out is None else {"data.heldout_clients": left_out or 0.0}
            run = run_of(root, method, 0 if unit == "partition" else seed, [0.3], **drawn)
            fine = (tuned or {}).get(method)
            out = [int(name == left_out) for name in names]
            lines = [
                f"{client},{out[client]},own_test,20,1.0,{',,,' * extra}{value},"
                f"{',' * (not extra)}{'' if fine is None else fine[seed][client]}"
                for client, value in enumerate(values)
            ]
            if declared:
                env = {"task": {"primary": measure, "measures": {measure: declared}}}
                (run / "env.json").write_text(json.dumps(env), encoding="utf-8")
            rows(run, "final_clients", header, *lines)
            of = pd.DataFrame({"client_id": range(len(values)), "label": 0, "name": names})
            trained = 100 + of["client_id"] + (seed == 0) * (len(by_seed) > 3)
            of = of.assign(train_samples=trained, test_samples=20)
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
    assert [row[:3] for row in levels.rows] == [[n, f"10{i}", "20"] for i, n in enumerate(NAMES)]
    assert levels.rows[0][4].startswith("81.00 ± 2.48"), "0.80 0.81 0.82, t(0.975, 2) = 4.3027"
    told = {row[0]: row[1] for row in differences.rows}
    # differences 0.20 0.19 0.21: mean 0.20, std 0.01, half-width 0.0248
    assert told[NAMES[0]] == "+20.00 [+17.52, +22.48] **helps**"
    assert told[NAMES[1]].endswith("**harms**")
    assert told[NAMES[2]].endswith(" cannot be told")
    assert "Approach minus Local at the same site" in differences.caption


def test_p_values_are_paired_over_partitions_and_corrected_over_the_sites(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    _, differences = make(tmp_path)
    shown = differences.data.set_index("site")
    for index, name in enumerate(NAMES):
        ours, theirs = ([of[index] for of in CLEAR[m]] for m in ("fedavg", "local"))
        assert shown["p"][name] == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    smallest = shown["p"].min()
    assert shown["p_holm"][shown["p"].idxmin()] == pytest.approx(3 * smallest)
    assert shown["verdict"].tolist() == ["helps", "harms", "cannot be told"]
    assert shown["num_samples"].tolist() == [100, 101, 102]


def test_samples_are_means_over_the_partitions(tmp_path: Path) -> None:
    sites(tmp_path, {"local": [[0.5, 0.6, 0.7]] * 4, "fedavg": [[0.5, 0.6, 0.7]] * 4})
    levels, _ = make(tmp_path)
    assert levels.data["num_samples"].tolist() == [100.25, 101.25, 102.25] * 2
    assert [row[1] for row in levels.rows] == ["100", "101", "102"]


@pytest.mark.parametrize(("unit", "count"), [("partition", 2), ("seed", 2), ("seed", 3)])
def test_seeds_and_two_partitions_are_too_few_to_tell(
    unit: str, count: int, tmp_path: Path
) -> None:
    sites(tmp_path, {method: of[:count] for method, of in CLEAR.items()}, unit=unit)
    _, differences = make(tmp_path)
    assert all(row[1].endswith("cannot be told") for row in differences.rows)
    assert differences.rows[0][1].startswith("+20.00 [" if count == 3 else "+19.50 [")
    assert "Too few partitions to tell: at least 3 are needed" in differences.caption
    assert set(differences.data["verdict"]) == {"cannot be told"}


def test_on_samples_that_are_the_same_for_all_nothing_helps(tmp_path: Path) -> None:
    """Personalised methods have rows of each client on the common test part."""
    header = "round,client_id,group,split,num_samples,loss,accuracy"
    for method, accuracy in (("local", 0.5), ("fedbn", 0.8)):
        for draw in range(4):
            run = run_of(tmp_path, method, 0, [0.3], **{"data.seed": draw})
            lines = (f"1,{client},,test,400,1,{accuracy + draw / 1e3}" for client in range(3))
            rows(run, "evaluations", header, *lines)
            of = pd.DataFrame({"client_id": range(3), "label": 0, "name": NAMES})
            of.assign(train_samples=9, test_samples=20).to_csv(run / "partition.csv", index=False)
    levels, differences = make(tmp_path)
    for table in (levels, differences):
        assert "the common test part, the same samples for all sites," in table.caption
        assert "own test samples by" not in table.caption
        assert set(table.data["split"]) == {"test"}
    assert set(differences.data["verdict"]) == {"cannot be told"}
    assert screen(tmp_path)[-1].startswith("Whom it helps is not known: that needs results on test")


def test_a_site_that_never_trained_is_marked_and_not_compared(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    for file in tmp_path.glob("*/final_clients.csv"):
        file.write_text(file.read_text().replace("\n1,0,", "\n1,1,"))
    levels, differences = make(tmp_path)
    assert levels.rows[1][0] == f"{NAMES[1]} (held out)"
    assert levels.rows[1][4].startswith("60.33")
    assert differences.rows[1] == [f"{NAMES[1]} (held out)", "\N{EN DASH}"]
    # the means are over the other two: 0.7, 0.705, 0.71
    assert "(70.50 %, mean over the participants)" in screen(tmp_path)[1]
    assert NAMES[1] not in screen(tmp_path)[2]


def screen(root: Path, score: str = "accuracy") -> list[str]:
    """The sentences of a report's first screen."""
    groups = of_runs(root, score)
    recorded = by_client(groups[""])
    found = by_setting(groups, measure=score if score in recorded else None)
    return answer.summary(outcome(groups, score, found))


def of_runs(root: Path, *scores: str) -> Facets:
    table = completed(summaries(find([root])[0]), scores)
    return {"": group(table, ("algorithm",), unit_among(table, ("algorithm",), None))}


def test_the_report_says_whom_federation_helps_and_harms(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    compared, result, whom = screen(tmp_path)
    assert compared == (
        "Compared: Local and FedAvg on digits, each trained 3 times with other random numbers, on "
        "3 divisions of the data into training and test samples (6 runs)."
    )
    # means over the sites 0.6667 0.6733 0.6733, against 0.6333 0.71 0.6767
    assert result == (
        "Local has the best accuracy on the participants' own test samples (67.33 %, mean over the "
        "participants); compared with others that **may be chance**."
    )
    assert whom == (
        f"Compared with training alone, FedAvg **helps** {NAMES[0]}; **harms** {NAMES[1]}; "
        f"for {NAMES[2]} it cannot be told."
    )
    assert "simulations" in answer.unknown(outcome(of_runs(tmp_path), "accuracy", {}), [])[0]


def test_approaches_of_the_same_verdicts_share_a_sentence(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, {"fedavg": CLEAR["fedavg"]})
    assert screen(tmp_path)[-1] == (
        f"Compared with training alone, FedAvg **helps** {NAMES[0]}; **harms** {NAMES[1]}; "
        f"for {NAMES[2]} it cannot be told. The same holds for FedAvg, fine-tuned."
    )


def test_training_seeds_alone_are_too_few_partitions(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, {"fedavg": [[0.9, 0.9, 0.9]] * 3}, unit="seed")
    compared, result, whom = screen(tmp_path)
    groups = of_runs(tmp_path, "accuracy")
    (means,) = outcome(groups, "accuracy", by_setting(groups)).tables(None).values()
    assert "Too few partitions to tell" in means.caption
    assert not [cell for row in means.rows for cell in row if "*" in cell]
    assert "Local; FedAvg; FedAvg, fine-tuned; on digits" in compared
    assert result == (
        "FedAvg, fine-tuned has the best accuracy on the participants' own test samples (90.00 %, "
        "mean over the participants), but all runs share one division of the data: too few "
        "partitions to tell whether that is more than its chance."
    )
    assert whom == (
        f"Whether any approach that trains together helps {NAMES[0]}, {NAMES[1]} and {NAMES[2]}, "
        "compared with training alone, cannot be told: too few partitions to tell."
    )


def test_the_first_figure_has_the_means_of_the_sentences(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR)
    groups = of_runs(tmp_path, "accuracy")
    (axes,) = score_figure.draw(outcome(groups, "accuracy", by_setting(groups)), []).figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    shown = dict(zip(names, (text.get_text() for text in axes.texts), strict=True))
    assert shown == {"Local": "67.33", "FedAvg": "67.11"}


# ---- other measures


@pytest.mark.parametrize(
    ("measure", "declared", "title", "mean", "difference"),
    [
        ("auc", None, "AUC by site (%)", "81.00 ± 2.48", "+20.00 [+17.52, +22.48] **helps**"),
        ("sensitivity@0.9", {"title": "sensitivity at 0.9", "unit": "%", "better": "up"},
         "Sensitivity at 0.9 by site (%)", "81.00 ± 2.48", "+20.00 [+17.52, +22.48] **helps**"),
        ("dose", {"title": "dose error", "unit": "", "better": "down"}, "Dose error by site",
         "0.8100 ± 0.0248", "+0.2000 [+0.1752, +0.2248] **harms**"),
        ("c_index", {"title": "C-index", "unit": "", "better": "up"}, "C-index by site",
         "0.8100 ± 0.0248", "+0.2000 [+0.1752, +0.2248] **helps**"),
        ("dice", {"unit": "%", "better": "up"}, "Dice by site (%)", "81.00 ± 2.48",
         "+20.00 [+17.52, +22.48] **helps**"),
    ],
)  # fmt: skip
def test_any_measure_by_site_in_its_unit_and_direction(
    measure: str, declared: Mapping[str, str] | None, title: str, mean: str, difference: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    sites(tmp_path, CLEAR, measure=measure, declared=declared)
    levels, differences = make(tmp_path, measure=measure)
    assert levels.title == title
    assert levels.rows[0][4] == mean
    assert differences.rows[0][1] == difference
    assert make(tmp_path)[0].title == title, "accuracy is empty"


def test_a_measure_that_no_run_has(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, measure="auc")
    for file in tmp_path.glob("*/final_clients.csv"):
        file.write_text(file.read_text().replace("1.0,,", "1.0,0.5,"))
    assert make(tmp_path)[0].title == "Accuracy by site (%)"
    problem = r"^measure 'auv'.*did you mean 'auc'.*: accuracy, auc, loss"
    with pytest.raises(AnalysisError, match=problem):
        make(tmp_path, measure="auv")
    with pytest.raises(AnalysisError, match="--measure auc: goes with --metric sites"):
        tables.make("accuracy", summaries(find([tmp_path])[0]), measure="auc")


def test_the_first_screen_is_in_the_measure_that_the_report_is_about(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, measure="auc")
    _, result, whom = screen(tmp_path, "auc")
    assert result.startswith("Local has the best AUC on the participants' own test samples (67.33")
    assert whom.startswith(f"Compared with training alone, FedAvg **helps** {NAMES[0]}; **harms**")
    assert "These runs have no macro-F1 by participant" in screen(tmp_path, "macro_f1")[1]


# ---- sites left out


def test_models_that_never_saw_a_site_stand_beside_those_that_did(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, left_out="")
    unseen = {"fedavg": [[0.7, 0.81, 0.5], [0.72, 0.82, 0.5], [0.71, 0.83, 0.5]]}
    worse = {"fedavg": [[0.3, 0.2, 0.1]] * 3, "local": [[0.1, 0.1, 0.1]] * 3}
    sites(tmp_path, {**worse, **unseen}, unseen, left_out=NAMES[0])
    sites(tmp_path, worse, left_out=NAMES[1])
    by = ("label", "data.heldout_clients")
    levels, differences = make(tmp_path, by=by)
    ends = ("", ", without the site", ", without the site, fine-tuned")
    approaches = ["Local", *(f"FedAvg{end}" for end in ends)]
    assert levels.head[3:] == [f"{name} ± 95 % CI" for name in approaches]
    shown = {row[0]: row[3:] for row in levels.rows}
    assert [cell[:5] for cell in shown[NAMES[0]]] == ["61.00", "81.00", "71.00", "71.00"]
    assert [cell[:5] for cell in shown[NAMES[1]]] == ["81.00", "60.33", "20.00", EMPTY]
    assert shown[NAMES[2]][2:] == [EMPTY, EMPTY], "no run held it out"
    assert "which never saw it" in levels.caption
    told = {row[0]: row[2] for row in differences.rows}
    # 0.10 0.10 0.10 above local: no spread, no test
    assert told[NAMES[0]] == "+10.00 cannot be told"
    groups = group(summaries(find([tmp_path])[0]), by, "partition")
    whole, others = split(groups, by[1:])
    found = outcome(whole, "accuracy", by_setting(whole, others))
    assert found.labels == ["local", "fedavg"], "joining is what the first screen is about"


def test_where_all_runs_hold_a_site_out_it_is_marked(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, left_out=NAMES[0])
    levels, differences = make(tmp_path)
    assert levels.rows[0][0] == differences.rows[0][0] == f"{NAMES[0]} (held out)"


# ---- the figure


def drawn(root: Path, score: str = "accuracy") -> list[Drawing]:
    groups = of_runs(root, score)
    return list(site_figure.drawings(outcome(groups, score, by_setting(groups))))


def test_the_figure_shows_each_sites_own_model_and_the_federated_one(tmp_path: Path) -> None:
    sites(tmp_path, CLEAR, {"fedavg": [[0.9, 0.9, 0.9], [0.91, 0.91, 0.91], [0.92, 0.92, 0.93]]})
    for file in tmp_path.glob("*/final_clients.csv"):
        file.write_text(file.read_text().replace("\n2,0,", "\n2,1,"))
    (figure,) = drawn(tmp_path)
    best, plain = figure.figure.axes
    titles = [axes.get_title(loc="left") for axes in (best, plain)]
    assert titles == ["FedAvg, fine-tuned", "FedAvg"]
    names = [label.get_text() for label in best.get_yticklabels()]
    assert names == [*NAMES[:2], f"{NAMES[2]} (held out)"]
    words = {text.get_text(): text.xy[1] for text in plain.texts}  # type: ignore[attr-defined]
    assert words == {"helps": 0, "harms": 1}, "as in the table"
    dots = {float(line.get_xdata()[0]) for line in plain.lines if line.get_marker() in "oD"}
    assert {61.0, 81.0, 60.0} <= {round(dot, 9) for dot in dots}
    assert "Nothing can be told" not in figure.caption
    assert "Held out: it never trained" in figure.caption


@pytest.mark.parametrize(("unit", "count"), [("partition", 2), ("seed", 3)])
def test_the_figure_of_too_few_partitions_has_no_verdict_and_says_why(
    unit: str, count: int, tmp_path: Path
) -> None:
    sites(tmp_path, {method: of[:count] for method, of in CLEAR.items()}, unit=unit)
    (figure,) = drawn(tmp_path)
    assert not figure.figure.axes[0].texts
    assert "Nothing can be told here: there are too few partitions" in figure.caption


def test_without_local_models_there_is_no_such_figure(tmp_path: Path) -> None:
    sites(tmp_path, {"fedavg": CLEAR["fedavg"]}, {"fedavg": CLEAR["fedavg"]})
    assert drawn(tmp_path) == []
