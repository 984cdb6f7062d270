"""The report: what is written, what is refused, and that the page needs nothing but itself."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from analysis.cli import main
from analysis.report import answer
from analysis.report import page as reports
from analysis.report.answer import outcome
from analysis.runs import find, group, summaries
from analysis.scores import completed
from analysis.tables.scores import scored
from tests.unit.analysis.run_files import PRESENT, rows, run_of, write_run

pytestmark = pytest.mark.integration

FIGURES = [
    "agreement", "class_auc", "classes", "clients", "confusion", "cosines", "curves",
    "decomposition", "groups", "headline", "partition_1", "phases",
]  # fmt: skip


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def values(page: str, key: str) -> list[str]:
    """The values of an attribute."""
    return re.findall(rf'\s{key}="([^"]*)"', page)


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods of two seeds with every table."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(root, "fedavg", seed, tables=PRESENT)
        write_run(root, "fedld", seed, tables=PRESENT)
        write_run(root, "fedld", seed, margin="none", tables=PRESENT)
    return root


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "new" / "report"
    result = invoke(runs, "--out", out, "--baseline", "fedavg", "--title", "Eyes & <b>ears</b>")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"wrote {out / 'report.html'}\n"
    return out


@pytest.fixture(scope="module")
def page(report: Path) -> str:
    return (report / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figure, which takes nine tenths of a report's time."""
    monkeypatch.setattr(reports, "_picture", lambda drawn, files: drawn)


# ---- what is written


@pytest.mark.slow
def test_numbers_of_the_page_are_those_of_the_runs(page: str, runs: Path) -> None:
    summaries = [pd.read_csv(file) for file in runs.glob("fedavg*/summary.csv")]
    final = pd.concat(summaries)["final_test_accuracy"]
    # t(0.975, 1) s / sqrt(2)
    half = 12.7062047362 * final.std() / 2**0.5
    assert f"{100 * final.mean():.2f} ± {100 * half:.2f}" in text_of(page)
    assert "6 finished runs in 3 groups over 2 seeds (0–1)" in text_of(page)  # noqa: RUF001
    assert "8 clients, 100 % of the clients in each round, 6 communication" in text_of(page)


@pytest.mark.slow
def test_the_same_runs_make_the_same_bytes(runs: Path, report: Path, tmp_path: Path) -> None:
    again = ("--baseline", "fedavg", "--title", "Eyes & <b>ears</b>")
    assert invoke(runs, "--out", tmp_path / "r", *again).exit_code == 0
    names = sorted(file.name for file in (report / "figures").iterdir())
    assert names == sorted(f"{name}{suffix}" for name in FIGURES for suffix in (".pdf", ".png"))
    for file in (f for f in report.rglob("*") if f.is_file()):
        assert (tmp_path / "r" / file.relative_to(report)).read_bytes() == file.read_bytes()


# ---- the page


@pytest.mark.slow
def test_the_page_loads_nothing(page: str) -> None:
    references = values(page, "src") + values(page, "href")
    assert len(references) > 10
    assert all(value.startswith(("data:", "#")) for value in references)
    assert not re.search(r"<(script|iframe|object|embed|base)|\s(on[a-z]+|srcset)=", page)
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import|//", style)


@pytest.mark.slow
def test_every_figure_has_words(page: str) -> None:
    images = values(page, "src")
    assert len(images) == len(FIGURES)
    assert all(value.startswith("data:image/png;base64,") for value in images)
    alts = values(page, "alt")
    assert len(alts) == len(images) == len(set(alts))
    assert text_of(page).count("How to read this.") == len(FIGURES)
    assert text_of(page).count("95 % t interval") > 5


@pytest.mark.slow
def test_the_page_begins_with_what_was_found(page: str) -> None:
    start = page[page.index("<header>") : page.index("</header>")]
    assert 'class="findings"' in start
    first = start[: start.index("<summary>Statistics")]
    plain = re.sub(r'base64,[^"]+|<details>.*?</details>', "", first, flags=re.DOTALL)
    assert not re.search(r"Holm|significant|p 0|detect|interval|±", plain)
    assert plain.count("<p>") == 3
    assert "Compared: FedAvg, FedLD and Principal aggregation only on digits, with 8" in plain
    assert "too few partitions to tell" in plain
    assert "Whom it helps is not known" in plain
    assert "Not known" in plain
    assert start.count("<img") == 1
    assert "highest final test accuracy" in start
    assert "No comparison with FedAvg can be tested: a test needs 3 common seeds" in start
    assert "No final model has collapsed" in start


# ---- refusals


def refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for part in parts:
        assert part in result.stderr


def test_runs_of_two_configs_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "fedavg", 0, alpha=0.5)
    write_run(tmp_path / "runs", "fedavg", 1, alpha=0.1, rounds=4)
    result = invoke(tmp_path / "runs", "--out", tmp_path / "r", "--by", "label")
    refused(result, "alpha (0.1, 0.5)", "rounds (4, 6)")
    assert not (tmp_path / "r").exists()


def test_a_folder_with_other_files_is_refused(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    refused(invoke(runs, "--out", tmp_path), str(tmp_path), "no report.html")
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    refused(invoke(runs, "--out", tmp_path / "notes.txt"), "no report.html")


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_earlier_report_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    out = tmp_path / "r"
    write_run(tmp_path / "runs", "fedavg", 0, tables=())
    assert invoke(tmp_path / "runs", "--out", out, "--title", "first").exit_code == 0
    (out / "tables" / "own.png").write_bytes(b"mine")
    assert invoke(tmp_path / "runs", "--out", out, "--title", "second").exit_code == 0
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "<h1>second</h1>" in text
    assert "<h1>first" not in text
    assert (out / "tables" / "own.png").read_bytes() == b"mine"


# ---- runs that fedsim made

OF_SWEEP = [*sorted({*FIGURES, "fig2"} - {"groups"}), "partition_2"]


@pytest.mark.slow
def test_a_sweep_of_fedsim_gives_every_figure_and_table(sweep_runs: Path, tmp_path: Path) -> None:
    by = ("--by", "algorithm", "--by", "alpha", "--baseline", "fedavg")
    done = invoke(sweep_runs, "--out", tmp_path, *by)
    assert done.exit_code == 0, done.output
    assert {file.stem for file in (tmp_path / "figures").iterdir()} == set(OF_SWEEP)
    tables = {file.stem for file in (tmp_path / "tables").glob("*.csv")}
    for metric in ("final", "best", "last10"):
        assert {f"accuracy_{metric}", f"accuracy_{metric}_by_alpha"} <= tables
    assert {"decomposition_last_train_cohort", "decomposition_mean_train_cohort"} <= tables
    final = pd.read_csv(tmp_path / "tables" / "accuracy_final.csv")
    runs = pd.read_csv(sweep_runs / "summary.csv")
    assert len(final) == 8
    assert final["mean"].mean() == pytest.approx(runs["final_test_accuracy"].mean())


# ---- sentences

CLASSES = "round,label,support,recall,precision"


def findings_of(root: Path, baseline: str | None = None, score: str = "accuracy") -> list[str]:
    groups = group(completed(summaries(find([root])[0]), [score]))
    table = scored(groups, score, "final", baseline)
    return answer.findings(outcome({"": groups}, score, {}), baseline, {"": table})


def runs_of(root: Path, **accuracies: tuple[float, ...]) -> None:
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            run_of(root, name, seed, [value])


def test_a_significant_difference_is_said(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.5, 0.51, 0.52), fedld=(0.6, 0.62, 0.61), moon=(0.4, 0.41, 0.43))
    first, second = findings_of(tmp_path, "fedavg")
    assert first == (
        "**FedLD has the highest final test accuracy**, 61.00 ± 2.48 % (mean over 3 seeds ± 95 % "
        "CI), significantly above each of the 2 others (Holm-corrected over them)."
    )
    # differences 0.10 0.11 0.09: p 0.0033; -0.10 -0.10 -0.09: p 0.0012, times 2
    assert second == (
        "Of 2 comparisons with FedAvg, 2 are significant (corrected over all of them): FedLD "
        "(+10.00 points, p 0.0033) and MOON (-9.67 points, p 0.0024). Power: with 3 seeds on one "
        "partition, differences of 2.67 (MOON) to 4.62 points (FedLD) are detected with 80 % "
        "probability (paired t test at level 0.05 / 2, if differences vary as in these runs)."
    )


def test_no_significant_difference_is_said(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.5, 0.6, 0.55), fedld=(0.6, 0.52, 0.6), moon=(0.1, 0.11, 0.1))
    (text,) = findings_of(tmp_path)
    assert text.startswith("FedLD has the highest final test accuracy, 57.33")
    assert text.endswith("; significantly above MOON, not significantly above FedAvg.")
    (one,) = findings_of(*runs_one_seed(tmp_path / "one"))
    assert "no test is possible" in one


def test_one_comparison_and_none_that_can_be_tested(tmp_path: Path) -> None:
    runs_of(tmp_path / "yes", fedavg=(0.5, 0.51, 0.52), fedld=(0.6, 0.62, 0.61))
    # differences 0.10 0.11 0.09: p 0.0033
    text = findings_of(tmp_path / "yes", "fedavg")[1]
    start = "The comparison with FedAvg is significant: FedLD (+10.00 points, p 0.0033). Power:"
    assert text.startswith(start)
    runs_of(tmp_path / "no", fedavg=(0.5, 0.6, 0.55), fedld=(0.6, 0.52, 0.6))
    text = findings_of(tmp_path / "no", "fedavg")[1]
    assert text.startswith("The comparison with FedAvg is not significant. Power:")
    assert findings_of(*runs_one_seed(tmp_path / "one"), "fedavg")[1] == (
        "No comparison with FedAvg can be tested: a test needs 3 common seeds whose differences "
        "vary."
    )
    groups = group(completed(summaries(find([tmp_path / "one"])[0]), ["accuracy"]))
    caption = scored(groups, "accuracy", "final", "fedavg").caption
    assert "over the seeds that both have, with its 95 % t interval. p is not" in caption
    assert "0 comparison" not in caption


def test_equal_means_have_no_leader(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.1, 0.2), fedld=(0.2, 0.1))
    (text,) = findings_of(tmp_path)
    assert text == "FedAvg and FedLD have the same final test accuracy: 15.00 %."
    runs_of(tmp_path, moon=(0.1, 0.1))
    (text,) = findings_of(tmp_path)
    assert text == "FedAvg and FedLD share the highest final test accuracy: 15.00 %."


def test_methods_without_all_runs_are_named_and_not_called_best(tmp_path: Path) -> None:
    runs_of(tmp_path / "above", fedavg=(0.7, 0.72, 0.1), fedld=(0.75, 0.78), moon=(0.5, 0.53, 0.0))
    first, second = findings_of(tmp_path / "above")
    assert first.startswith("FedAvg has the highest final test accuracy of the methods with all")
    # moon minus fedavg: -0.2 -0.19 -0.1, p 0.037; fedld has two seeds, which no test takes
    assert first.endswith("; significantly above MOON, not significantly above FedLD.")
    assert second == (
        "**Incomplete: FedLD (2 of 3 runs).** These methods lack the value of runs that others "
        "have: their means are over other runs than those of the others, and they are never called "
        "the best."
    )
    runs_of(tmp_path / "below", fedavg=(0.7, 0.72, 0.71, 0.1), fedld=(0.8, 0.81, 0.81))
    (first, _) = findings_of(tmp_path / "below")
    assert first.endswith("; significantly below FedLD.")
    runs_of(tmp_path / "none", fedavg=(0.7, 0.72), fedld=(0.7, math.nan))
    runs_of(tmp_path / "none/more", moon=(math.nan, 0.4))
    (tmp_path / "none/fedavg-0/summary.csv").unlink()
    first, second = findings_of(tmp_path / "none")
    assert first == "no method is ranked by final test accuracy: each lacks runs that others have."
    assert second.startswith("**Incomplete: FedAvg (1 of 2 runs), FedLD (1 of 2 runs) and MOON")


def runs_one_seed(root: Path) -> tuple[Path]:
    runs_of(root, fedavg=(0.5,), fedld=(0.6,))
    return (root,)


def test_a_collapse_is_said(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.5, 0.51, 0.52), fedld=(0.6, 0.62, 0.61))
    for folder in tmp_path.glob("*"):
        recall = (1, 0) if folder.name == "fedld-1" else (0.9, 0.4)
        lines = (f"1,{label},9,{value},1" for label, value in enumerate(recall))
        rows(folder, "classes", CLASSES, *lines)
    first, second = findings_of(tmp_path)
    assert first.endswith("It has collapsed in 1 of 3 runs.")
    assert "**" not in first
    assert second.startswith("**Collapsed: FedLD (1 of 3 runs).** These final models predict one")
    rows(tmp_path / "fedld-1", "classes", CLASSES, "1,0,9,0.9,1", "1,1,9,0.4,1")
    assert findings_of(tmp_path)[-1].startswith("No final model has collapsed: all have")
