"""Honest runs are verified wherever their work was done, and wherever it is done again."""

from __future__ import annotations

import pytest

import fedsim
from fedsim.audit.verify import verify
from tests.engine.chaos import SHARE
from tests.unit.audit.test_verify import small

pytestmark = [pytest.mark.ray, pytest.mark.slow]

KEPT = {"checkpoint_every": 1, "keep_every": 2}


@pytest.mark.parametrize("name", ["fedld", "scaffold", "fedbn", "fedpac", "centralized"])
def test_a_run_on_actors(name, shared_ray, tmp_path):
    on_ray = small(name, engine={"kind": "ray", "actors": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified
    assert verify(run, rounds=2).verified


def test_a_run_of_stacked_clients_on_actors(shared_ray, tmp_path):
    on_ray = small("scaffold", engine={"kind": "ray", "client_batch": 2} | SHARE | KEPT)
    run = fedsim.run(on_ray, tmp_path / "run", session=shared_ray).path
    assert verify(run, rounds="all").verified


@pytest.mark.parametrize(
    "sections",
    [
        {
            "clock": {"mode": "async", "samples_per_second": "lognormal(100, 1)"},
            "async": {"buffer": 2, "concurrency": 4},
        },
        {"attack": {"name": "sign_flip", "fraction": 0.25}},
        {"compress": {"name": "top_k", "fraction": 0.1}},
        {
            "dp": {"level": "user", "clip": 1.0, "noise_multiplier": 1.0},
            "fedavg": {"weights": "uniform"},
        },
    ],
    ids=lambda sections: next(iter(sections)),
)
def test_a_run_with_a_section(sections, tmp_path):
    run = fedsim.run(small(**sections), tmp_path / "run").path
    assert verify(run, rounds="all").verified
    assert verify(run, rounds=1).verified


def test_runs_of_a_parallel_sweep(tmp_path):
    experiment = {
        "data": {"num_clients": 8, "test_fraction": 0.9},
        "train": {"rounds": 4, "sample_rate": 0.25, "batch_size": 20, "lr": 0.02},
        "model": {"name": "mlp"},
        "grid": {"algorithm": ["fedavg", "scaffold"], "seed": [0, 1]},
    }
    out = tmp_path / "sweep"
    fedsim.sweep(experiment, out, parallel=2)
    for run in sorted(path.parent for path in out.glob("*/rounds.csv")):
        assert verify(run, rounds="all").verified
