"""Whole runs as a user starts them, on real data where the samples are there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from fedsim import algorithms

pytestmark = [pytest.mark.slow, pytest.mark.ray]


def fedsim(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command line; Ray gets a short temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fedsim", "run", *arguments, "--out", str(out)],
            capture_output=True,
            text=True,
            env={**os.environ, "RAY_TMPDIR": folder, "FEDSIM_CACHE": str(out.parent / "cache")},
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done


def violations(shared_data: Path, run: Path, **expected: int) -> list[str]:
    """What the contract's checker says of a run directory."""
    path = shared_data.parent / "tools" / "check_contract.py"
    if not path.is_file():
        pytest.skip(f"needs the checker {path}, which is not here")
    spec = importlib.util.spec_from_file_location("check_contract", path)
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    asked = dict.fromkeys(("rounds", "clients", "cohort")) | expected
    return checker.check(run, asked["rounds"], asked["clients"], asked["cohort"], False)[0]


def test_the_main_job(tmp_path):
    done = fedsim(out=tmp_path / "run")
    assert "final test accuracy" in done.stdout
    assert str(tmp_path / "run") in done.stdout.splitlines()[-1]
    assert done.stderr == ""
    rounds = pd.read_csv(tmp_path / "run" / "rounds.csv")
    assert rounds["round"].tolist() == list(range(1, 101))
    assert rounds["cohort_size"].eq(5).all()
    assert rounds["test_accuracy"].iloc[-1] > 0.6
    assert pd.read_csv(tmp_path / "run" / "partition.csv")["client_id"].nunique() == 50


def test_the_main_job_keeps_the_contract(shared_data, tmp_path):
    fedsim("--rounds", "20", out=tmp_path / "run")
    assert violations(shared_data, tmp_path / "run", rounds=20, clients=50, cohort=5) == []


def test_every_method_on_retinamnist_with_the_same_cohorts(shared_data, tmp_path):
    cohorts = set()
    for name in algorithms.names():
        out = tmp_path / name
        folder = str(shared_data / "retinamnist")
        protocol = ("--clients", "50", "--sample-rate", "0.1", "--alpha", "0.5", "--rounds", "3")
        fedsim("-a", name, "-d", "retinamnist", "--data-dir", folder, *protocol, out=out)
        assert violations(shared_data, out, rounds=3, clients=50, cohort=5) == []
        clients = pd.read_csv(out / "clients.csv")
        cohorts.add(tuple(map(tuple, clients[["round", "client_id"]].to_numpy())))
    assert len(cohorts) == 1


@pytest.mark.parametrize(
    ("dataset", "folder", "clients", "extra"),
    [
        ("retina", "fedld-layout", 5, ("--set", "data.partition_file=split_1")),
        ("retina", "fedld-layout", 5, ("--set", "data.partition_file=split_2")),
        ("retina", "fedld-layout", 5, ("--set", "data.partition_file=split_3")),
        ("covid_fl", "fedld-layout", 6, ()),
        ("covid_cxr", "covid-cxr", 6, ("--partition", "by_site")),
    ],
)
def test_resnet50_on_the_hospitals_data(dataset, folder, clients, extra, shared_data, tmp_path):
    out = tmp_path / "run"
    small = ("--model", "resnet50", "--set", "data.image_size=32", "--sample-rate", "1")
    where = ("-d", dataset, "--data-dir", str(shared_data / folder))
    fedsim(*where, *small, *extra, "--rounds", "1", out=out)
    assert violations(shared_data, out, rounds=1, clients=clients, cohort=clients) == []
