"""fedsim on a cluster with GPUs that only Ray believes in: ``python -m tests.engine.fake_gpus
ADDRESS sweep ...`` does what ``fedsim sweep ...`` does there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray


def train_on_the_cpu() -> None:
    """Done first in each process that Ray starts: an actor does not look for the GPU it holds."""
    ray.get_gpu_ids = list


def connect(address: str) -> Any:
    """Joins the cluster."""
    hook = f"{__package__}.fake_gpus.train_on_the_cpu"
    root = str(Path(__file__).parents[2])  # a worker imports the hook before it knows our path
    environment = {"worker_process_setup_hook": hook, "env_vars": {"PYTHONPATH": root}}
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    return ray.init(address=address, runtime_env=environment, **quiet)


if __name__ == "__main__":
    connect(sys.argv.pop(1))
    from fedsim.cli import main

    main()
