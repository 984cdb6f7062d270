"""A run that is missing or has diverged never improves a method's place, and is always named.

FedLD is planted as the best of three methods, but for one hard run, which makes it the worst there.
Without this run its mean and its wins would be better than with it.
"""

from __future__ import annotations

import math
import shutil
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from analysis import ranks, stats
from analysis.cli import main
from analysis.facets import facets
from analysis.report import answer
from analysis.report.answer import outcome
from analysis.runs import find, group, summaries
from analysis.scores import completed
from analysis.tables import scores as tables
from tests.unit.analysis import test_budget
from tests.unit.analysis.run_files import run_of

SETTINGS, SEEDS = (1.0, 10.0), range(5)
HARD = "fedld-1.0-0-4"
"""The run that diverges."""
FATES = ("missing", "diverged", "no score", "infinite")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs, the hard one with an accuracy of 0.1."""
    root = tmp_path_factory.mktemp("whole")
    for alpha in SETTINGS:
        for seed in SEEDS:
            noise = 0.002 * (seed * 7 % 5) + alpha / 1000
            for name, level in (("fedavg", 0.60), ("fedprox", 0.61), ("fedld", 0.66)):
                value = level + noise + 0.001 * ((seed + len(name)) % 3)
                if name == "fedld" and (alpha, seed) == (1.0, 4):
                    value = 0.1
                run_of(root, name, seed, [value], alpha=alpha, **{"data.seed": 0})
    return root


@pytest.fixture(scope="module", params=FATES)
def lost(
    request: pytest.FixtureRequest, whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, but the hard run has no result, in one of the ways in which this happens."""
    root = tmp_path_factory.mktemp("lost") / "runs"
    shutil.copytree(whole, root)
    run = root / HARD
    summary = pd.read_csv(run / "summary.csv")
    if request.param == "missing":
        shutil.rmtree(run)
    elif request.param == "diverged":
        (run / "summary.csv").unlink()
        (run / "failure.json").write_text('{"error": "loss of client 3 is nan"}')
    else:
        value = math.nan if request.param == "no score" else math.inf
        scores = {c: value for c in summary.columns if c.endswith("test_accuracy")}
        summary.assign(**scores).to_csv(run / "summary.csv", index=False)
        rounds = pd.read_csv(run / "rounds.csv").assign(test_accuracy=value)
        rounds.to_csv(run / "rounds.csv", index=False)
    return root


TESTS = [stats.T, stats.Test("t", 0.01), stats.Test("bayes", 0.01)]


@cache
def made(root: Path, test: stats.Test) -> dict[tuple[str, str], stats.Cell]:
    frame = summaries(find([root])[0])
    (table, *_) = tables.make(
        "accuracy", frame, columns="alpha", baseline="fedavg", test=test, takes=["final"]
    )
    return {(cell.column, cell.row): cell for cell in table.cells}


@pytest.mark.parametrize("test", TESTS, ids=lambda test: f"{test.kind}-{test.rope}")
def test_in_tables_it_is_not_bold_and_has_no_verdict(
    whole: Path, lost: Path, test: stats.Test
) -> None:
    with_run, without = made(whole, test), made(lost, test)
    hard = ("1", "fedld")
    assert not with_run[hard].leads
    assert with_run["10", "fedld"].leads, "it would lead"
    assert not without[hard].leads
    assert without[hard].missing == 1
    if test.rope is not None:
        assert with_run["10", "fedld"].verdict == "higher"
        assert without[hard].verdict == "incomplete"
        others = {key: cell.verdict for key, cell in without.items() if key != hard}
        assert "incomplete" not in others.values()


@pytest.mark.slow
def test_in_the_headline_it_does_not_lead(whole: Path, lost: Path) -> None:
    def said(root: Path) -> list[str]:
        frame = completed(summaries(find([root])[0]), ["accuracy"])
        groups = group(frame, ("label", "alpha"))
        split = facets(groups, ["alpha"])
        table = tables.scored(groups, "accuracy", "final", None)
        return answer.findings(outcome(split, "accuracy", {}), None, {"": table})

    one, other = said(whole), said(lost)
    assert "FedLD has the highest final test accuracy" in one[1]
    assert "FedProx has the highest final test accuracy of the methods with all runs" in other[0]
    assert "Incomplete: FedLD (4 of 5 runs" in "".join(other)


@pytest.mark.slow
def test_in_ranks_it_is_last_in_the_block(whole: Path, lost: Path) -> None:
    by = ("label", "alpha")
    one = ranks.gather(summaries(find([whole])[0]), by)
    other = ranks.gather(summaries(find([lost])[0]), by)
    assert one.ranks["fedld"].tolist() == [3, 1]
    assert other.ranks["fedld"].tolist() == [3, 1]
    assert list(other.lacking) == ["fedld"]
    done = CliRunner().invoke(
        main, ["table", "--ranks", str(lost), "--by", "label", "--by", "alpha"]
    )
    assert "Ranked last for want of runs that others have: FedLD (" in done.output


def test_in_budgets_a_failed_trial_is_worse_than_any_result(tmp_path: Path) -> None:
    """The worst trial of three has diverged: the curve without it would be higher."""
    bad = [("complete", 0.1, 0.2), *test_budget.GOOD[1:]]
    one = test_budget.search(tmp_path / "a", bad)
    other = test_budget.search(tmp_path / "b", [("failed", None, None), *bad[1:]])
    done = CliRunner().invoke(main, ["table", "--budget", str(one), str(other)])
    # means of 20 80 60 and of 0 80 60; pairs 80 80 60 in both
    assert "| a | 3 | 0 | 53.33 | 73.33 | 80.00 |" in done.output
    assert "| b | 3 | 1 | 46.67 | 73.33 | 80.00 |" in done.output
    assert "count as 0: b (1 failed)." in done.output
