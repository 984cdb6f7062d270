"""docs/RESULTS.md: every table is that of a committed file, every picture is there."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from fedsim.config import presets

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "RESULTS.md").read_text()
_SPEC = importlib.util.spec_from_file_location("include", DOCS / "results" / "include.py")
include = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(include)

STUDIES = sorted(path.name for path in (DOCS / "results").iterdir() if path.is_dir())


def test_the_tables_are_those_of_the_committed_files():
    assert include.BLOCK.findall(PAGE)
    assert include.included(PAGE) == PAGE


def test_every_picture_and_file_that_is_named_is_there():
    named = re.findall(r"\]\((?!http)([^)#]+)", PAGE)
    assert [name for name in named if not (DOCS / name).exists()] == []


def test_every_study_is_a_preset_with_its_runs():
    for study in STUDIES:
        assert f"fedsim sweep {study}" in PAGE
        summary = pd.read_csv(DOCS / "results" / study / "summary.csv")
        runs = {axis.name: len(axis.points) for axis in presets.load(study).grid}
        wanted = 1
        for points in runs.values():
            wanted *= points
        assert (len(summary), summary["seed"].nunique()) == (wanted, runs["seed"])
        assert runs["seed"] >= 3


def test_the_script_that_makes_them_is_shell():
    subprocess.run(["bash", "-n", DOCS / "results" / "make.sh"], check=True)


@pytest.mark.parametrize("study", [s for s in STUDIES if "fig2" in s or "table2" in s])
def test_the_terms_of_the_tables_add_up(study):
    """The identity also holds for the means over seeds, to what the CSV files hold."""
    for path in (DOCS / "results" / study).glob("decomposition_*.csv"):
        means = pd.read_csv(path).pivot_table(index="label", columns="column", values="mean")
        terms = means["local_loss"] + means["shift_loss"] + means["aggregation_loss"]
        assert (terms - means["global_loss"]).abs().max() < 1e-9
