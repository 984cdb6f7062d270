"""A small sweep of fedsim's own runs, with every table that a run can write."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.cli import main

SWEEP = """
data: {name: digits, num_clients: 4, partition: dirichlet}
model: {name: mlp}
train: {rounds: 3, sample_rate: 0.5, lr: 0.05, batch_size: 100}
evaluation: {decompose_every: 1, clients_every: 2, cosines: true}
engine: {kind: serial}
grid:
  data.alpha: [10, 0.1]
  method:
    - ce_mean: {algorithm: fedavg}
    - ce_principal: {algorithm: fedld, margin: none}
    - margin_mean: {algorithm: fedld, server: fedavg}
    - margin_principal: {algorithm: fedld}
  seed: [0, 1]
"""


@pytest.fixture(scope="session")
def sweep_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of 16 runs: both parts of FedLD on and off, two alphas, two seeds."""
    root = tmp_path_factory.mktemp("sweep")
    (root / "sweep.yaml").write_text(SWEEP)
    done = CliRunner().invoke(
        main, ["sweep", str(root / "sweep.yaml"), "--out", str(root / "runs"), "--parallel", "1"]
    )
    assert done.exit_code == 0, done.output
    return root / "runs"
