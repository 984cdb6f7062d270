"""The study of docs/FEDERATIONS.md: tables from the archive, grids that fedsim can run."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from fedsim.config import experiments

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "FEDERATIONS.md").read_text()
spec = importlib.util.spec_from_file_location("federations", DOCS / "study" / "federations.py")
federations = importlib.util.module_from_spec(spec)
spec.loader.exec_module(federations)
archive = federations.archive


@pytest.mark.slow
def test_every_table_of_the_page_follows_from_the_archive():
    assert federations.rendered(PAGE) == PAGE
    assert {m[1] for m in federations.BLOCK.findall(PAGE)} == federations.GRIDS.keys()


@pytest.mark.parametrize("name", federations.GRIDS)
def test_the_archive_has_every_run_of_a_grid_once(name):
    runs = archive.table(f"federations/{name}.csv")
    axes = [*federations.GRIDS[name]["grid"], "data.seed", "seed"]
    assert not runs[axes].duplicated().any()
    assert len(runs) == math.prod(runs[axis].nunique() for axis in axes)
    assert runs["data.seed"].nunique() == 5
    assert runs["seed"].nunique() == 2


def test_the_curves_of_the_figure_are_those_of_the_runs():
    """No run has reached 80 % before its time; the end is that of the first run that ends."""
    runs = archive.table("federations/clocks_digits.csv", dtype={"data.alpha": str})
    curves = archive.table(federations.CURVES, dtype={"data.alpha": str})
    ways = list(curves.groupby(["waiting", "data.alpha"]))
    assert len(ways) == 2 * len(federations.WAITING)
    for (way, alpha), curve in ways:
        own = runs[(runs["waiting"] == federations.named(way)) & (runs["data.alpha"] == alpha)]
        assert len(own) == 10
        assert len(curve) == federations.POINTS
        before = curve[curve["second"] < 0.9999 * own["simulated_seconds_to_target"].min()]
        assert (before["mean"] < 0.8).all()
        end = curve.iloc[-1]
        assert end["second"] == pytest.approx(own["simulated_seconds"].min(), rel=1e-4)
        assert end["mean"] == pytest.approx(own["last10_test_accuracy"].mean(), abs=0.03)
    assert federations.FIGURE.is_file()
    assert f"study/{federations.FIGURE.name}" in PAGE


@pytest.mark.parametrize("name", federations.GRIDS)
def test_fedsim_reads_the_grid(name, tmp_path):
    federations.write_grids(tmp_path)
    axes = experiments.read(tmp_path / f"{name}.yaml").grid
    runs = archive.table(f"federations/{name}.csv")
    assert math.prod(len(axis.values) for axis in axes) == len(runs)


def test_a_cell_is_the_mean_over_partitions_with_its_t_interval():
    runs = pd.DataFrame(
        {"rule": "krum", "data.seed": [0, 0, 1, 1], "seed": [0, 1, 0, 1], "score": [1, 3, 5, 7]}
    )
    found = federations.over_partitions(federations.of(runs, "rule", "krum", "score"))
    assert found.mean == 4
    assert found.half == pytest.approx(stats.t.ppf(0.975, 1) * 2, rel=1e-12)


def test_ratios_have_a_geometric_mean_unless_a_run_missed_the_target():
    index = pd.MultiIndex.from_product([[0, 1], [0]], names=["data.seed", "seed"])
    assert federations.factor(pd.Series([2.0, 8.0], index)).startswith("4.0 (")
    assert federations.factor(pd.Series([2.0, None], index)) == ""
    assert federations.reached(pd.Series([2.0, None], index), "{:.0f}") == "1 of 2 runs"
