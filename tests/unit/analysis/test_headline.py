"""The beginning of a report, small multiples, and what figures say about classes and sites."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import QuadMesh

from analysis import paired, series
from analysis.figures import classes, curves, style
from analysis.figures import scores as score_figure
from analysis.report import answer
from analysis.report.outcome import outcome
from analysis.runs import find, group, summaries
from analysis.scores import completed
from analysis.stats import FEWEST
from analysis.tables.scores import scored
from tests.unit.analysis.run_files import groups_of, rows, run_of, write_run
from tests.unit.analysis.test_figures import drawn

CLASSES = "round,label,support,recall,precision"


def found(root: Path, baseline: str | None = None, score: str = "accuracy") -> list[str]:
    groups = group(completed(summaries(find([root])[0]), [score]))
    table = scored(groups, score, "final", baseline)
    return answer.findings(outcome({"": groups}, score, {}), baseline, {"": table})


def runs_of(root: Path, **accuracies: tuple[float, ...]) -> None:
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            run_of(root, name, seed, [value])


def test_a_significant_difference_is_said(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.5, 0.51, 0.52), fedld=(0.6, 0.62, 0.61), moon=(0.4, 0.41, 0.43))
    first, second = found(tmp_path, "fedavg")
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
    (text,) = found(tmp_path)
    assert text.startswith("FedLD has the highest final test accuracy, 57.33")
    assert text.endswith("; significantly above MOON, not significantly above FedAvg.")
    (one,) = found(*runs_one_seed(tmp_path / "one"))
    assert "no test is possible" in one


def test_one_comparison_and_none_that_can_be_tested(tmp_path: Path) -> None:
    runs_of(tmp_path / "yes", fedavg=(0.5, 0.51, 0.52), fedld=(0.6, 0.62, 0.61))
    # differences 0.10 0.11 0.09: p 0.0033
    told = found(tmp_path / "yes", "fedavg")[1]
    start = "The comparison with FedAvg is significant: FedLD (+10.00 points, p 0.0033). Power:"
    assert told.startswith(start)
    runs_of(tmp_path / "no", fedavg=(0.5, 0.6, 0.55), fedld=(0.6, 0.52, 0.6))
    told = found(tmp_path / "no", "fedavg")[1]
    assert told.startswith("The comparison with FedAvg is not significant. Power:")
    assert found(*runs_one_seed(tmp_path / "one"), "fedavg")[1] == (
        "No comparison with FedAvg can be tested: a test needs 3 common seeds whose differences "
        "vary."
    )
    groups = group(completed(summaries(find([tmp_path / "one"])[0]), ["accuracy"]))
    caption = scored(groups, "accuracy", "final", "fedavg").caption
    assert "over the seeds that both have, with its 95 % t interval. p is not" in caption
    assert "0 comparison" not in caption


@pytest.mark.parametrize("test", [paired.T, paired.Test("bayes", 0.001)])
def test_two_seeds_are_bold_in_no_table_and_significant_in_no_sentence(
    test: paired.Test, tmp_path: Path
) -> None:
    # differences 0.3000 and 0.3001: a t test over the two would have p 0.0001
    runs_of(tmp_path, fedavg=(0.5, 0.51), fedld=(0.8, 0.8101))
    groups = group(completed(summaries(find([tmp_path])[0]), ["accuracy"]))
    table = scored(groups, "accuracy", "final", "fedavg", test)
    assert not [cell for row in table.rows for cell in row if "**" in cell or "*" in cell]
    assert f"Nothing is bold here: a test needs {FEWEST} seeds" in table.caption
    if not test.bayes:
        told = outcome({"": groups}, "accuracy", {})
        assert "no test is possible" in answer.findings(told, None, {"": table})[0]
        assert "too few partitions to tell" in answer.summary(told)[1]


def test_equal_means_have_no_leader(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.1, 0.2), fedld=(0.2, 0.1))
    (text,) = found(tmp_path)
    assert text == "FedAvg and FedLD have the same final test accuracy: 15.00 %."
    runs_of(tmp_path, moon=(0.1, 0.1))
    (text,) = found(tmp_path)
    assert text == "FedAvg and FedLD share the highest final test accuracy: 15.00 %."


def test_methods_without_all_runs_are_named_and_not_called_best(tmp_path: Path) -> None:
    runs_of(tmp_path / "above", fedavg=(0.7, 0.72, 0.1), fedld=(0.75, 0.78), moon=(0.5, 0.53, 0.0))
    first, second = found(tmp_path / "above")
    assert first.startswith("FedAvg has the highest final test accuracy of the methods with all")
    # moon minus fedavg: -0.2 -0.19 -0.1, p 0.037; fedld has two seeds, which no test takes
    assert first.endswith("; significantly above MOON, not significantly above FedLD.")
    assert second == (
        "**Incomplete: FedLD (2 of 3 runs).** These methods lack the value of runs that others "
        "have: their means are over other runs than those of the others, and they are never called "
        "the best."
    )
    runs_of(tmp_path / "below", fedavg=(0.7, 0.72, 0.71, 0.1), fedld=(0.8, 0.81, 0.81))
    (first, _) = found(tmp_path / "below")
    assert first.endswith("; significantly below FedLD.")
    runs_of(tmp_path / "none", fedavg=(0.7, 0.72), fedld=(0.7, math.nan))
    runs_of(tmp_path / "none/more", moon=(math.nan, 0.4))
    (tmp_path / "none/fedavg-0/summary.csv").unlink()
    first, second = found(tmp_path / "none")
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
    first, second = found(tmp_path)
    assert first.endswith("It has collapsed in 1 of 3 runs.")
    assert "**" not in first
    assert second.startswith("**Collapsed: FedLD (1 of 3 runs).** These final models predict one")
    rows(tmp_path / "fedld-1", "classes", CLASSES, "1,0,9,0.9,1", "1,1,9,0.4,1")
    assert found(tmp_path)[-1].startswith("No final model has collapsed: all have")


def test_the_first_figure_shows_means_seeds_and_the_guess(tmp_path: Path) -> None:
    runs_of(tmp_path, fedavg=(0.5, 0.7), fedld=(0.9, 0.98))
    for folder in tmp_path.glob("*"):
        rows(folder, "classes", CLASSES, "1,0,30,0.9,1", "1,1,10,0.4,1")
    groups = group(completed(summaries(find([tmp_path])[0]), ()))
    shown = score_figure.draw(outcome({"": groups}, "accuracy", {}), [])
    (axes,) = shown.figure.axes
    seeds = [line for line in axes.lines if line.get_marker() == "|" and len(line.get_xdata()) == 2]
    assert [sorted(line.get_xdata()) for line in seeds[:2]] == [
        pytest.approx([50, 70]), pytest.approx([90, 98]),
    ]  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["60.00", "94.00"]
    # 30 of 40 samples are of class 0
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"] == [75]
    # 94 +- 12.7 * 4 ends at 100 per cent, 60 +- 127 at 0
    ends = [path.vertices[:, 0] for c in axes.collections for path in c.get_paths()]
    assert [list(end) for end in ends] == [[0, 100], [pytest.approx(43.175, abs=1e-3), 100]]
    assert "FedAvg 60.00; FedLD 94.00" in shown.alt


def test_many_methods_become_small_multiples(tmp_path: Path) -> None:
    labels = ["fedavg", "fedld", "fedgh", "moon"]
    for name in labels:
        for seed in (0, 1):
            write_run(tmp_path, name, seed, tables=())
    rounds = {"": series.values(groups_of(tmp_path), "rounds", ["test_accuracy", "test_loss"])}
    accuracy, loss = map(
        drawn,
        curves.draw(rounds, "accuracy", "seed", style.lines(["fedld", "fedavg", "fedgh", "moon"])),
    )
    assert (accuracy.name, loss.name) == ("curves", "curves_loss")
    axes = [one for one in accuracy.figure.axes if one.get_visible()]
    titles = [one.get_title(loc="left") for one in axes]
    assert titles == ["FedAvg", "FedGH", "FedLD", "MOON"]
    assert [len(one.lines) for one in axes] == [4] * 4
    assert {one.get_ylim() for one in axes} == {axes[0].get_ylim()}
    for one in axes:
        (band,) = one.collections
        ends = band.get_paths()[0].vertices[:, 1]
        assert 0 <= ends.min() <= ends.max() <= 100
    assert all(name in accuracy.alt for name in titles)


def test_confusion_is_the_share_of_each_class_over_seeds(tmp_path: Path) -> None:
    header = "round,label,prediction,count"
    for seed, lines in enumerate((("2,0,0,8", "2,1,0,1", "2,1,1,3"), ("2,0,1,5", "2,1,1,9"))):
        folder = run_of(tmp_path, "fedld", seed, [0.5, 0.5])
        rows(folder, "confusion", header, "1,1,0,100", *lines)
        (folder / "env.json").write_text(json.dumps({"classes": ["no", "yes"]}))
    shown = drawn(classes.confusion({"": groups_of(tmp_path)}))
    axes = shown.figure.axes[0]
    (mesh,) = (c for c in axes.collections if isinstance(c, QuadMesh))
    # class 0: (100 + 0) / 2 right; class 1: 1 of 4 and 0 of 9 taken for 0
    assert np.asarray(mesh.get_array()).ravel().tolist() == [50, 50, 12.5, 87.5]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["no", "yes"]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["no", "yes"]
    assert "most often confused: no as yes (50 %)" in shown.alt
