"""Whole runs as a user starts them, on real data where the samples are there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pytest

from fedsim import algorithms
from tests.commands import clean_environment

pytestmark = pytest.mark.slow


def fedsim(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; Ray gets a short temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="fs", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-m", "fedsim", *arguments, "--out", str(out)],
            capture_output=True,
            text=True,
            env=clean_environment(RAY_TMPDIR=folder, FEDSIM_CACHE=str(out.parent / "cache")),
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def check(shared_data):
    """What the checker of run directories finds in one."""
    path = shared_data.parent / "tools" / "check_contract.py"
    if not path.is_file():
        pytest.skip(f"needs the checker {path}, which is not here")
    spec = importlib.util.spec_from_file_location("check_contract", path)
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)

    def violations(run: Path, *, rounds: int, clients: int, cohort: int) -> list[str]:
        return checker.check(run, rounds, clients, cohort, False)[0]

    return violations


@pytest.fixture(scope="module")
def main_job(tmp_path_factory):
    """The folder and the output of ``fedsim run``."""
    out = tmp_path_factory.mktemp("main") / "run"
    return out, fedsim("run", out=out)


def test_the_main_job(main_job):
    out, done = main_job
    assert "final test accuracy" in done.stdout
    assert str(out) in done.stdout.splitlines()[-1]
    assert done.stderr == ""
    rounds = pd.read_csv(out / "rounds.csv")
    assert rounds["round"].tolist() == list(range(1, 101))
    assert rounds["cohort_size"].eq(5).all()
    assert rounds["test_accuracy"].iloc[-1] > 0.6
    assert pd.read_csv(out / "partition.csv")["client_id"].nunique() == 50


def test_the_main_job_keeps_the_contract(main_job, check):
    assert check(main_job[0], rounds=100, clients=50, cohort=5) == []


def test_every_method_on_retinamnist_with_the_same_cohorts(shared_data, check, tmp_path):
    grid = tmp_path / "methods.yaml"
    grid.write_text(
        f"data: {{name: retinamnist, dir: '{shared_data / 'retinamnist'}', num_clients: 50}}\n"
        "train: {rounds: 3, sample_rate: 0.1}\n"
        f"grid: {{algorithm: [{', '.join(algorithms.names())}]}}\n"
    )
    fedsim("sweep", str(grid), out=tmp_path / "sweep")
    cohorts = set()
    for name in algorithms.names():
        run = tmp_path / "sweep" / f"algorithm={name}"
        assert check(run, rounds=3, clients=50, cohort=5) == []
        clients = pd.read_csv(run / "clients.csv")
        cohorts.add(tuple(map(tuple, clients[["round", "client_id"]].to_numpy())))
    assert len(cohorts) == 1


HOSPITALS = {"split_1": 5, "split_2": 5, "split_3": 5, "covid_fl": 6, "covid_cxr": 6}
"""The number of hospitals in each study."""


def test_resnet50_on_the_hospitals_data(shared_data, check, tmp_path):
    layout, sites = shared_data / "fedld-layout", shared_data / "covid-cxr"
    retina = "".join(
        f"    - {split}: {{data.name: retina, data.partition_file: {split}, "
        f"data.dir: '{layout}'}}\n"
        for split in ("split_1", "split_2", "split_3")
    )
    grid = tmp_path / "hospitals.yaml"
    grid.write_text(
        "data: {image_size: 32}\nmodel: {name: resnet50}\n"
        "train: {rounds: 1, sample_rate: 1.0}\n"
        f"grid:\n  study:\n{retina}"
        f"    - covid_fl: {{data.name: covid_fl, data.dir: '{layout}'}}\n"
        f"    - covid_cxr: {{data.name: covid_cxr, data.dir: '{sites}', "
        "data.partition: by_site}\n"
    )
    fedsim("sweep", str(grid), out=tmp_path / "sweep")
    for study, clients in HOSPITALS.items():
        run = tmp_path / "sweep" / f"study={study}"
        assert check(run, rounds=1, clients=clients, cohort=clients) == []
