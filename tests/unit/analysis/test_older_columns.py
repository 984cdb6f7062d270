"""Summaries of older runs, whose options of data sets had other names."""

from __future__ import annotations

from pathlib import Path

from run_files import groups_of, run_of

OLD = {"data.correlation": 0.9, "data.synthetic_beta": 0.0}


def test_older_runs_are_grouped_with_those_of_today(tmp_path: Path) -> None:
    run_of(tmp_path, "fedld", 0, [0.5], dataset="shortcut", **OLD)
    run_of(tmp_path, "fedld", 1, [0.5], dataset="shortcut", **{"shortcut.correlation": 0.9})
    run_of(tmp_path, "fedld", 2, [0.5], dataset="shortcut", **OLD | {"data.correlation": 0.5})
    for name in ("data.correlation", "shortcut.correlation"):
        groups = groups_of(tmp_path, "algorithm", name)
        assert [group.label for group in groups] == [
            "fedld, shortcut.correlation=0.5",
            "fedld, shortcut.correlation=0.9",
        ]
        assert [len(group.runs) for group in groups] == [1, 2]


def test_options_that_had_no_effect_are_no_difference(tmp_path: Path) -> None:
    run_of(tmp_path, "fedld", 0, [0.5], **OLD)
    run_of(tmp_path, "fedld", 1, [0.5])
    (group,) = groups_of(tmp_path)
    assert len(group.runs) == 2
