"""Starts the same workload in Flower's simulation, with the Python of Flower's own environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.bare import job_of
from benchmarks.workloads import Workload, run_config
from fedsim.core.errors import FedsimError
from fedsim.engine.ray.cluster import local_node
from fedsim.training.setup import prepare

ROOT = Path(__file__).resolve().parents[1]
WARM = 2
"""First rounds that are not counted: Flower's actors start in them."""


def flower_rounds(python: Path, workload: Workload, rounds: int) -> list[float]:
    """Seconds of each warm round of FedAvg in Flower, with as many actors as cores.

    Args:
        python: of an environment with ``flwr[simulation]`` and torch.
        workload: what is trained.
        rounds: timed rounds.

    Raises:
        FedsimError: the simulation failed; the message ends with its last line.
    """
    setup = prepare(run_config(workload, "fedavg", rounds))
    job, train = job_of(setup, "fedavg", 1, 1), setup.config.train
    known = {
        "model": job.model,
        "num_clients": workload.clients,
        "fraction": workload.cohort / workload.clients,
        "rounds": WARM + rounds,
        "cores": int(local_node().cpus),
        "batch_size": train.batch_size,
        "lr": train.lr,
        "momentum": train.momentum,
        "weight_decay": train.weight_decay,
    }
    with tempfile.TemporaryDirectory(prefix="fedsim-flower-") as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(known))
        np.savez(folder / "data.npz", x=job.x.numpy(), y=job.y.numpy(), clients=job.clients.numpy())
        # Flower's state stays in the folder, and its Ray knows nothing of ours
        env = os.environ | {
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        done = subprocess.run(
            [python, "-c", "from benchmarks.flower_app import main; main()", name],
            env={key: value for key, value in env.items() if key != "RAY_ADDRESS"},
            capture_output=True,
            text=True,
            check=False,
        )
        found = folder / "seconds.json"
        if done.returncode or not found.exists():
            said = (done.stderr or done.stdout).strip().splitlines()
            raise FedsimError(f"Flower's simulation ended with {done.returncode}: {said[-1:]}")
        seconds: list[float] = json.loads(found.read_text())
    return seconds[WARM:]
