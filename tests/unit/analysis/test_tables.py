"""Tables of text: statistics in their cells, comparisons, layouts and files."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis.cli import main
from analysis.runs import find, summaries
from analysis.scores import OTHERS
from analysis.stats import cells
from analysis.tables import layout
from analysis.tables import scores as tables
from analysis.tables.layout import EMPTY
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
        "accuracy",
        summaries(find([runs])[0]),
        ["algorithm"],
        "alpha",
        "fedavg",
        takes=["final"],
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
    ],
)
def test_refusals(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke("table", runs, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def attacked(root: Path, algorithm: str, seed: int, *success: str, **settings: object) -> None:
    run = run_of(root, algorithm, seed, [0.5] * len(success), **settings)
    lines = (f"{t},0.5,{rate},{t}.5" for t, rate in enumerate(success, start=1))
    rows(run, "rounds", "round,test_accuracy,attack_success_rate,epsilon", *lines)


@pytest.mark.slow
def test_success_of_attacks_and_epsilon(tmp_path: Path) -> None:
    for seed, (ours, theirs) in enumerate((("0.1", "0.7"), ("0.2", "0.9"), ("0.3", "0.8"))):
        attacked(tmp_path, "krum", seed, "0.5", ours, alpha=1)
        attacked(tmp_path, "fedavg", seed, "0.5", theirs, alpha=1)
    given = ("--metric", "attack_success_rate", "--at", "final")
    shown = invoke("table", tmp_path, *given).stdout
    # mean 0.2, s = 0.1, half = 4.302653 * 0.1 / sqrt(3) = 0.24841
    assert "| krum | 3 | **20.00** ± 24.84 |" in shown
    assert "### Final attack success rate" in shown
    assert "in per cent, lower is better, after the last round" in shown
    assert "**20.00** ± 24.84" in invoke("table", tmp_path, *given, "--columns", "alpha").stdout
    found = invoke("table", tmp_path, "--metric", "epsilon", "--baseline", "fedavg").stdout
    assert "### Epsilon of the last 10 rounds" in found
    assert found.count("| 2.50 ± 0.00 |") == 2
    drawn = tmp_path / "success.png"
    for metric in ("attack_success_rate", "epsilon"):
        assert invoke("curves", tmp_path, "--metric", metric, "--out", drawn).exit_code == 0


HARD = (0.70, 0.72, 0.69, 0.71, 0.10)


@pytest.fixture
def incomplete(tmp_path: Path) -> Path:
    """Five partitions of fedavg; fedprox, five points below, lacks the hardest, not finished."""
    for part, value in enumerate(HARD):
        run_of(tmp_path, "fedavg", 0, [value], **{"data.seed": part})
        lower = run_of(tmp_path, "fedprox", 0, [value - 0.05 - part / 1000], **{"data.seed": part})
    (lower / "summary.csv").unlink()
    return tmp_path


@pytest.mark.slow
def test_what_is_missing_stands_in_every_format(incomplete: Path, tmp_path: Path) -> None:
    """The means are 58.4 and 65.35; on the four common partitions fedprox is below."""
    last = f"{incomplete / 'fedprox-4-0'}"
    methods = "runs: FedProx (4 of 5)."
    unfinished = f"Left out: 1 run (no summary.csv, the run has not finished): {last}."
    shown = invoke("table", incomplete, "--unit", "partition", "--at", "final")
    assert shown.exit_code == 0, shown.output
    assert "| FedAvg | 5 | 1 | **58.40**" in shown.stdout
    assert "| FedProx | 4 | 1 | 65.35" in shown.stdout
    assert (
        "Bold: the highest mean among the methods with all runs, where it differs" in shown.stdout
    )
    assert methods in shown.stdout
    assert shown.stdout.count(unfinished) == 2  # of the scores, and of their variances
    for suffix in (".md", ".tex"):
        out = tmp_path / f"t{suffix}"
        invoke("table", incomplete, "--unit", "partition", "--out", out)
        assert methods in out.read_text()
        assert unfinished in out.read_text().replace("\\_", "_")
    invoke("table", incomplete, "--unit", "partition", "--at", "final", "--out", tmp_path / "t.csv")
    data = pd.read_csv(tmp_path / "t.csv").iloc[:2]
    assert data["missing"].tolist() == [0, 1]
    assert data["leads"].tolist() == [True, False]


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
    rows(
        run,
        "rounds",
        f"round,test_accuracy,{metric}",
        *(f"{t},0.5,{v}" for t, v in enumerate(values, 1)),
    )


@pytest.mark.parametrize("metric", list(OTHERS))
def test_what_comes_out_is_no_setting(tmp_path: Path, metric: str) -> None:
    """Attack, privacy and measures of one's own over seeds: mean (2 + 4) / 2 at the end."""
    for seed, alpha in itertools.product((1, 2), (0.1, 1.0)):
        for method in ("fedavg", "krum"):
            measured(
                tmp_path,
                method,
                seed,
                metric,
                0.1 * seed,
                0.02 * seed,
                alpha=alpha,
                sensitivity=seed,
            )
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
