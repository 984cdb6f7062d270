"""Tables of text: statistics in their cells, comparisons, layouts and files."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis import AnalysisError
from analysis.cli import main
from analysis.figures import clients as client_figures
from analysis.figures import matrix as drawn_matrix
from analysis.figures.grid import Drawing
from analysis.formats import PERCENT
from analysis.runs import Group, find, summaries
from analysis.scores import OTHERS
from analysis.stats import cells
from analysis.tables import layout, pairs, participation
from analysis.tables import scores as tables
from analysis.tables.layout import EMPTY, Table
from tests.unit.analysis.run_files import groups_of, rows, run_of

DECOMPOSITION = "round,split,scope,local_loss,shift_loss,aggregation_loss,global_loss"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three seeds of two methods, and one seed of a third."""
    for seed, (ours, theirs) in enumerate(((0.80, 0.70), (0.84, 0.73), (0.88, 0.79))):
        run_of(tmp_path, "fedld", seed, [0.9, ours])
        run_of(tmp_path, "fedavg", seed, [0.1, theirs])
    run_of(tmp_path, "my_own", 0, [0.5, 0.8402])
    return tmp_path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_table_against_a_baseline_by_hand(runs: Path) -> None:
    got = tables.scored(groups_of(runs), "accuracy", "final", "fedavg")
    # differences 0.10 0.11 0.09: mean 0.10, s = 0.01, half = 4.302653 * 0.01 / sqrt(3) = 0.0248414,
    # t = 0.1 / (0.01 / sqrt 3) = 17.32, p(2 degrees) = 0.003317; the only test, so Holm's is equal
    # 3.26404 s is detectable: power of t with 2 degrees at noncentrality 3.26404 sqrt(3)
    assert got.rows == [
        ["FedAvg", "3", "74.00 ± 11.38", "4.58", EMPTY, EMPTY, EMPTY, EMPTY],
        ["FedLD", "3", "84.00 ± 9.94", "4.00", "+10.00 ± 2.48", "0.0033", "0.0033 *", "3.26"],
        ["my_own", "1", "84.02", "n/a", "+14.02", "n/a", "n/a", "n/a"],
    ]  # fmt: skip
    assert "with 3 seeds on one partition, a difference of 3.26 points is detected" in got.caption
    assert "do not cover the choice of the partition" in got.caption
    assert "Holm: equal to p, as there is one comparison; * below 0.05." in got.caption
    assert "p is not available where there is only one common seed: my_own." in got.caption
    row = got.data.set_index("label").loc["fedld"]
    assert row[["n", "pairs"]].tolist() == [3, 3]
    assert row["p"] == pytest.approx(0.003317, abs=1e-6)
    assert row[["difference_low", "difference_high"]].tolist() == pytest.approx(
        [0.1 - 0.0248414, 0.1 + 0.0248414], abs=1e-7
    )


def test_holm_is_over_the_whole_table() -> None:
    def of(*values: float) -> pd.Series:
        return pd.Series(dict(enumerate(values)))

    base, near, far = of(0.1, 0.2, 0.3), of(0.1, 0.21, 0.32), of(0.21, 0.32, 0.415)
    found = cells({c: {"fedavg": base, "a": near, "b": far} for c in ("x", "y")}, "fedavg")
    by = {(cell.row, cell.column): cell for cell in found}
    small, large = (by[row, "x"].comparison for row in ("b", "a"))
    assert small is not None
    assert large is not None
    # p p' p p' with p < p': times 4 and 3 for the smaller pair, 2 and 1 for the larger
    assert by["b", "x"].adjusted == pytest.approx(4 * small.p)
    assert by["b", "y"].adjusted == pytest.approx(4 * small.p)
    assert by["a", "x"].adjusted == pytest.approx(2 * large.p)


def test_a_difference_over_fewer_seeds_says_so(tmp_path: Path) -> None:
    for seed in range(3):
        run_of(tmp_path, "fedld", seed, [0.7 + 0.1 * seed])
    for seed in range(2):
        run_of(tmp_path, "fedavg", seed, [0.6])
    caption = tables.scored(groups_of(tmp_path), "accuracy", "final", "fedavg").caption
    assert "Seeds in common where they are not all: FedLD 2 of 3." in caption
    other = tables.scored(groups_of(tmp_path), "accuracy", "final", "fedld").caption
    assert "in common where" not in other


def test_methods_by_a_setting(runs: Path) -> None:
    for seed in (0, 1):
        run_of(runs, "fedld", seed, [0.1, 0.2 + seed / 10], alpha=10.0)
    got, differences = tables.make(
        "accuracy", summaries(find([runs])[0]), ["algorithm"], "alpha", "fedavg", takes=["final"]
    )
    assert got.head == ["Method", "alpha=0.5 (± 95 % CI)", "alpha=10 (± 95 % CI)"]
    assert got.rows == [
        ["FedAvg", "74.00 ± 11.38 (n=3)", EMPTY],
        ["FedLD", "84.00 ± 9.94 (n=3) *", "25.00 ± 63.53 (n=2)"],
        ["my_own", "84.02 (n=1)", EMPTY],
    ]
    assert got.data["column"].tolist() == ["0.5"] * 3 + ["10"]
    assert differences.rows[0] == ["FedLD", "+10.00 ± 2.48 (0.0033) *"]
    assert differences.head == ["Method", "0.5: Difference ± 95 % CI (p)"]


def test_groups_of_images(runs: Path) -> None:
    header = "round,client_id,group,split,num_samples,loss,accuracy"
    for method, gap in (("fedavg", 0.0), ("fedld", 0.2)):
        for seed in (0, 1, 2):
            rows(
                runs / f"{method}-{seed}", "evaluations", header,
                f"2,,aligned,test,9,1,{0.9 - seed / 100}", "2,0,,test,9,1,0",
                f"2,,conflicting,test,9,1,{0.3 + gap + seed * gap / 10}",
            )  # fmt: skip
    (got,) = tables.image_groups(groups_of(runs), "fedavg")
    assert [row[:3] for row in got.rows] == [
        ["FedAvg", "aligned", "3"], ["FedLD", "aligned", "3"],
        ["FedAvg", "conflicting", "3"], ["FedLD", "conflicting", "3"],
    ]  # fmt: skip
    assert [row[3] for row in got.rows] == [
        "89.00 ± 2.48", "89.00 ± 2.48", "30.00 ± 0.00", "**52.00** ± 4.97",
    ]  # fmt: skip
    assert "the same difference for every seed: FedLD (aligned)" in got.caption
    # 0.20 0.22 0.24: t = 0.22 / (0.02 / sqrt 3) = 19.05, p(2 degrees) = 0.002743
    assert got.rows[3][5:8] == ["+22.00 ± 4.97", "0.0027", "0.0027 *"]
    result = invoke("table", runs, "--metric", "groups")
    assert "left out" in result.stderr
    assert "my_own-0: no rows in evaluations.csv" in result.stderr


def test_terms_of_the_loss(runs: Path) -> None:
    for seed in (0, 1):
        rows(
            runs / f"fedld-{seed}", "decomposition", DECOMPOSITION,
            "1,train,cohort,1,0.5,-0.25,1.25", f"2,train,cohort,{2 + seed},0.5,-0.75,1.75",
        )  # fmt: skip
    mean, last = tables.decomposition(groups_of(runs))
    # local: seeds 1.5 and 2, mean 1.75, half 12.7062 * 0.25 = 3.1766; constant terms: half 0
    assert mean.head == ["Method", "Local", "Shift", "Aggregation", "Global"]
    assert mean.rows == [
        ["FedLD", "1.7500 [-1.4266, 4.9266]", "0.5000 [0.5000, 0.5000]",
         "-0.5000 [-0.5000, -0.5000]", "1.5000 [1.5000, 1.5000]"],
    ]  # fmt: skip
    assert last.rows[0][1].startswith("2.5000 [")
    assert (mean.name, last.name) == (
        "decomposition_mean_train_cohort", "decomposition_last_train_cohort",
    )  # fmt: skip


def test_files(runs: Path, tmp_path: Path) -> None:
    made = tables.make("accuracy", summaries(find([runs])[0]), baseline="fedavg")
    latex = layout.latex(made)
    assert latex.count(r"\toprule") == 3
    for table in latex.split("\n\n"):
        commands = re.findall(r"\\(?:begin|end|caption|label)\b(?:\{(?:table|tabular)\})?", table)
        assert commands == [
            r"\begin{table}", r"\caption", r"\label", r"\begin{tabular}", r"\end{tabular}",
            r"\end{table}",
        ]  # fmt: skip
        plain = re.sub(r"\\[{}\\]", "", table)
        assert plain.count("{") == plain.count("}")
        assert len(re.findall(r"(?<!\\)\$", table)) % 2 == 0
        assert not re.search(r"(?<!\\)[%#]", table), "no comment"
        columns = re.search(r"tabular}\{([lr]+)\}", table)
        assert columns
        rows_of = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows_of} == {len(columns[1]) - 1}
    assert r"FedLD & 3 & 84.00 $\pm$ 9.94 & 4.00 & +10.00 $\pm$ 2.48 &" in latex
    assert r"0.0033 & 0.0033$^{*}$ & 3.26 \\" in latex
    assert r"my\_own & 1 & 84.02" in latex
    assert r"Accuracy (\%)" in latex
    said = dataclasses.replace(made[0], rows=[["`train.lr`", "weight λ", "1", "2", "3"]])
    assert r"\texttt{train.lr} & weight $\lambda$ &" in layout.latex([said])
    text = layout.markdown(made)
    assert text.count("### ") == 4, "three tables and their signs"
    assert r"| 0.0033 | 0.0033 \* |" in text
    assert r"comparison; \* below 0.05" in text
    back = pd.read_csv(io.StringIO(layout.csv(made)))
    assert back["table"].unique().tolist() == [
        "accuracy_final", "accuracy_best", "accuracy_last10",
    ]  # fmt: skip
    own = back[(back["table"] == "accuracy_last10") & (back["label"] == "fedld")]
    assert own["mean"].tolist() == [made[2].data["mean"].iloc[1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--baseline", "moon"), "baseline moon: nothing to compare with it; the runs are fedavg;"),
        (("--columns", "colour"), "no column colour"),
        (
            ("--columns", "alpha", "--metric", "groups"),
            "goes with accuracy, balanced_accuracy, macro_f1, auc, ece, loss, benign_test_accuracy",
        ),
        (("--metric", "groups"), "in no run evaluations.csv has rows of groups"),
        (("--metric", "epsilon"), "in no run rounds.csv has epsilon"),
        (("--metric", "decomposition"), "evaluation.decompose_every above 0"),
        (("--metric", "target"), "in no run summary.csv has target_accuracy; evaluation.target_"),
        (
            ("--metric", "pairs", "--baseline", "fedavg"),
            "--baseline fedavg: the table pairs compares each",
        ),
        (("--rope", "0.01"), "--rope: verdicts are of comparisons; name what to compare with"),
        (("--test", "bayes"), "--test bayes: needs --rope R"),
        (("--rope", "0.01", "--metric", "sites"), "--rope: the table sites has no verdicts"),
        (("--rope", "0"), "--rope 0: has to be a number above 0"),
    ],
)
def test_refusals(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke("table", runs, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_caption_and_label_of_a_paper(runs: Path, tmp_path: Path) -> None:
    asked = ["table", str(runs), "--baseline", "fedavg", "--caption", "Ours & 50 % more"]
    one = [*asked, "--at", "final", "--out", str(tmp_path / "t.tex"), "--label", "tab:main"]
    assert CliRunner().invoke(main, one).exit_code == 0
    text = (tmp_path / "t.tex").read_text(encoding="utf-8")
    assert "\\caption{Ours \\& 50 \\% more}\n\\label{tab:main}\n" in text
    three = [*asked, "--out", str(tmp_path / "t.tex"), "--label", "tab:main"]
    assert CliRunner().invoke(main, three).exit_code == 0
    text = (tmp_path / "t.tex").read_text(encoding="utf-8")
    labels = re.findall(r"\\label\{(.*)\}", text)
    assert labels == [f"tab:main-accuracy_{take}" for take in ("final", "best", "last10")]
    refused = CliRunner().invoke(main, ["table", str(runs), "--label", "x"])
    assert refused.exit_code == 2
    assert refused.output.count("\n") == 1


def measured(
    root: Path, method: str, seed: int, metric: str, *values: float, **other: object
) -> None:
    """A run whose metric differs between seeds, in every column that summary.csv may have."""
    numbers = {f"{when}{metric}": value for when, value in zip(("", "final_"), values, strict=True)}
    run = run_of(root, method, seed, [0.5 + seed / 10, 0.6], **other, **numbers)
    lines = (f"{t},0.5,{v}" for t, v in enumerate(values, 1))
    rows(run, "rounds", f"round,test_accuracy,{metric}", *lines)


@pytest.mark.parametrize("metric", list(OTHERS))
def test_what_comes_out_is_no_setting(tmp_path: Path, metric: str) -> None:
    """Attack, privacy and measures of one's own over seeds: mean (2 + 4) / 2 at the end."""
    for seed, alpha in itertools.product((1, 2), (0.1, 1.0)):
        for method in ("fedavg", "krum"):
            values, others = (0.1 * seed, 0.02 * seed), {"alpha": alpha, "sensitivity": seed}
            measured(tmp_path, method, seed, metric, *values, **others)
    by = ("--by", "label", "--by", "alpha")
    shown = invoke("table", tmp_path, "--metric", metric, "--at", "final", *by)
    assert shown.exit_code == 0, shown.stderr
    unit = OTHERS[metric].unit
    assert f"| FedAvg, alpha=0.1 | 2 | {unit.number(0.03)} ±" in shown.stdout
    ranked = invoke("table", "--ranks", tmp_path, "--metric", metric, "--at", "best", *by)
    assert ranked.exit_code == 0, ranked.stderr


def test_without_noise_epsilon_is_infinite(tmp_path: Path) -> None:
    for seed in (0, 1):
        run_of(tmp_path, "none", seed, [0.5], label="none")
        run_of(tmp_path, "zero", seed, [0.5], label="zero", **{"dp.level": "user"})
        run = run_of(tmp_path, "some", seed, [0.5], label="some", **{"dp.level": "user"})
        rows(run, "rounds", "round,test_accuracy,epsilon", "1,0.5,2.5")
        run = run_of(tmp_path, "samples", seed, [0.5], label="samples", **{"dp.level": "example"})
        lines = ("1,0,ok,1.5", "1,1,ok,3.5", "1,2,dropped,")
        rows(run, "clients", "round,client_id,status,epsilon", *lines)
    given = ("--metric", "epsilon", "--at", "final", "--baseline", "some")
    shown = invoke("table", tmp_path, *given)
    assert shown.exit_code == 0, shown.stderr
    for name, value in {"none": "infinity", "zero": "infinity", "some": "2.50 ± 0.00",
                        "samples": "3.50 ± 0.00"}.items():  # fmt: skip
        assert f"| {name} | 2 | {value} |" in shown.stdout
    assert "Incomplete" not in shown.stdout
    invoke("table", tmp_path, *given, "--out", tmp_path / "t.csv")
    table = pd.read_csv(tmp_path / "t.csv").set_index("label")
    assert table.loc["none", "mean"] == float("inf")
    drawn = invoke("curves", tmp_path, "--metric", "epsilon", "--out", tmp_path / "e.png")
    assert drawn.exit_code == 0, drawn.stderr


ATTACKS: dict[str, dict[str, object]] = {
    "nobody": {}, "z of 2": {"attack.name": "alie", "attack.scale": 2.0},
    "a flip": {"attack.name": "sign_flip"},
}  # fmt: skip


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    """A sweep of two rules by three attacks, whose names are in no alphabetical order."""
    points = {"trim": (0.9, 0.8, 0.7), "mean": (0.95, 0.5, 0.6)}
    names = []
    for (rule, values), seed in itertools.product(points.items(), (0, 1)):
        for (attack, given), value in zip(ATTACKS.items(), values, strict=True):
            given = dict.fromkeys(("attack.name", "attack.scale")) | given
            run = run_of(tmp_path, rule, seed, [value], label=rule, **given)
            names.append((run.name, {"rule": rule, "attack": attack}))
    written = {"runs": [n for n, _ in names], "rows": [rows for _, rows in names]}
    (tmp_path / "sweep.json").write_text(json.dumps(written))
    return tmp_path


def test_rules_by_attacks_have_the_names_and_the_order_of_the_file(matrix: Path) -> None:
    shown = invoke("table", matrix, "--columns", "attack", "--at", "final").stdout.splitlines()
    heads = [cell.strip().removesuffix(CI) for cell in shown[2].split("|")[1:-1]]
    assert heads == ["Method", "nobody", "z of 2", "a flip", "worst"]
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in shown[4:6]]
    assert cells == [
        ["trim", "90.00 ± 0.00", "80.00 ± 0.00", "70.00 ± 0.00", "70.00 ± 0.00"],
        ["mean", "95.00 ± 0.00", "50.00 ± 0.00", "60.00 ± 0.00", "50.00 ± 0.00"],
    ]
    grouped = invoke("table", matrix, "--at", "final")
    assert grouped.stderr == ("the runs differ in attack: grouped as with --by label --by attack\n")
    first = [line.split(" | ")[0] for line in grouped.stdout.splitlines()[4:10]]
    assert first == [f"| {rule}, attack={name}" for rule in ("trim", "mean") for name in ATTACKS]
    unnamed = invoke("table", matrix, "--columns", "attack.name", "--at", "final").stdout
    assert "attack.name=none" in unnamed
    turned = invoke("table", matrix, "--by", "attack", "--columns", "rule", "--at", "final").stdout
    first = [line[2:].split(" | ")[0] for line in turned.splitlines()[4:7]]
    assert first == [f"attack={name}" for name in ATTACKS]
    assert "worst" not in turned


def test_a_heat_map_of_rules_by_attacks(matrix: Path, tmp_path: Path) -> None:
    out = tmp_path / "h.svg"
    done = invoke("table", matrix, "--columns", "attack", "--out", out)
    assert done.exit_code == 0, done.stderr
    (made,) = tables.make("accuracy", table_of(matrix), columns="attack", takes=["final"])
    figure = drawn_matrix.figure(made, PERCENT)
    axes = figure.axes[0]
    (mesh,) = axes.collections
    wanted = [[90, 80, 70, 70], [95, 50, 60, 50]]
    np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(2, 4), wanted)
    assert [t.get_text() for t in axes.get_xticklabels()][-1] == "worst"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["trim", "mean"]
    assert {t.get_text(): t.get_color() for t in axes.texts}["95.00\n± 0.00"] == "white"
    for refused in (("--metric", "pairs"), ("--at", "final", "--at", "best")):
        done = invoke("table", matrix, "--columns", "attack", *refused, "--out", out)
        assert done.exit_code == 2
        assert "--columns with a figure: takes one --at" in done.stderr


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


def make_clients(root: Path, **options: object) -> list[tables.Table]:
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
    (table,) = make_clients(tmp_path)
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
    (table,) = make_clients(tmp_path)
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
    own_table, common_table = make_clients(tmp_path, baseline="fedavg")
    assert own_table.name == "clients_evaluated_own_test"
    assert [row[0] for row in own_table.rows] == ["FedAvg", "pFedLA"]
    assert "Compared: method minus FedAvg" in own_table.caption
    assert "Methods without these accuracies are left out: FedProx; FedBN." in own_table.caption
    assert common_table.title == "Accuracy by client on the common test part, last evaluation"
    assert [row[0] for row in common_table.rows] == ["FedBN", "pFedLA"]
    without = "Nothing is compared with FedAvg: it does not have these accuracies."
    assert without in common_table.caption
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
    (table,) = make_clients(tmp_path)
    assert table.name == "clients_evaluated_own_test"
    assert {row[0]: row[1] for row in table.rows} == {
        "FedAvg": "30.00", "FedBN": "85.00", "FedPAC": "85.00",
    }  # fmt: skip
    figure = client_figures.by_client({"": groups_of(tmp_path)})
    assert isinstance(figure, Drawing)
    assert "Accuracy of each client on its own test part" in figure.caption
    assert "Without such rows" not in figure.caption


def test_runs_without_any_are_refused(tmp_path: Path) -> None:
    run_of(tmp_path, "fedavg", 0, [0.3])
    with pytest.raises(AnalysisError, match=r"no run has accuracies by client; evaluation\.cl"):
        make_clients(tmp_path)


CLIENTS = "round,client_id,status,staleness\n1,0,ok,0\n1,2,ok,1\n2,0,ok,3\n2,3,dropped,\n3,0,ok,2\n"


def took_part(
    folder: Path, label: str = "fedavg", clients: str = CLIENTS, **settings: object
) -> Group:
    run = folder / label
    run.mkdir()
    (run / "clients.csv").write_text(clients)
    row = {"seed": 0, "path": str(run), "num_clients": 5, "algorithm": "fedavg", **settings}
    return Group(label, pd.DataFrame([row]))


def test_the_table_by_hand(tmp_path: Path) -> None:
    """Four of five clients may train: 0 0 1 3 rounds; Gini (3 * 3 + 1 * 1) / (4 * 4) = 10 / 16."""
    one = took_part(tmp_path)
    (tmp_path / "fedavg" / "env.json").write_text('{"heldout_clients": [4]}')
    assert participation.rounds_by_client([one])["fedavg"]["rounds"].tolist() == [0, 0, 1, 3]
    made = participation.table([one])
    (row,) = made.rows
    assert row[1:] == ["0.00", "1.00", "3.00", "50.00", "0.62"]


def test_runs_without_clients_are_an_error(tmp_path: Path) -> None:
    plain = took_part(tmp_path, clients="round,client_id,status\n")
    with pytest.raises(participation.AnalysisError, match=r"in no run clients\.csv has rows"):
        participation.table([plain])


def test_a_row_that_does_not_fit_a_page_is_broken() -> None:
    cell = "-10.36 [-18.53, -2.19] cannot be told"
    made = Table(name="", title="", caption="", head=(), rows=(), words=1, data=pd.DataFrame())
    for columns, wide in ((2, False), (3, True)):
        head, row = ["Site", *["FedAvg"] * columns], ["hungarian", *[cell] * columns]
        assert dataclasses.replace(made, head=head, rows=[row]).wide == wide
    assert dataclasses.replace(made, head=["x"] * 10).wide
