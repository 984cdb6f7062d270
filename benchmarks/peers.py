"""The same workloads in other simulators, each with the Python of an environment of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bare import job_of
from benchmarks.workloads import Workload, run_config
from fedsim.core.errors import FedsimError
from fedsim.engine.ray.cluster import local_node
from fedsim.training.assemble import prepare

ROOT = Path(__file__).resolve().parents[1]
WARM = 2
"""First rounds that are not counted: a simulator's processes start in them."""


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    Args:
        title: as in the table.
        start: arguments of its Python before the folder of the job; ``{cores}`` is a number.
        package: what its environment needs beside torch and torchvision.
    """

    title: str
    start: tuple[str, ...]
    package: str


PEERS: Mapping[str, Peer] = {
    "flower": Peer(
        "Flower's simulation",
        ("-c", "from benchmarks.peers_flower import main; main()"),
        "flwr[simulation]",
    ),
    "pfl": Peer(
        "pfl-research, a process per core",
        (
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={cores}"),
            *("-m", "benchmarks.peers_pfl"),
        ),
        "pfl",
    ),
}
"""The simulators by their names on the command line."""


def error_of(said: str) -> str:
    """The line of an output that names an error, the last of such; else the last with a word.

    torchrun ends with a frame of ``=`` around a report of its own, after the process's traceback.
    """
    lines = [line.strip() for line in said.splitlines()]
    words = [line for line in lines if re.search(r"\w{3}", line)]
    named = [
        line for line in words if re.match(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b", line)
    ]
    own = [line for line in named if "ChildFailedError" not in line]
    return (own or named or words or [""])[-1]


def peer_rounds(
    name: str, python: Path, workload: Workload, rounds: int, *, train: Any = None,
    device: str = "cpu",
) -> list[float]:  # fmt: skip
    """Seconds of each warm round of FedAvg in another simulator, with as many processes as cores.

    Args:
        name: of ``PEERS``.
        python: of an environment with its package, torch and torchvision.
        workload: what is trained.
        rounds: timed rounds.
        train: keys of section ``train`` beside the workloads'.
        device: of pfl's processes; on ``cuda`` there is one.

    Raises:
        FedsimError: the simulation failed; the message ends with the line that names the error.
    """
    peer, cores = PEERS[name], int(local_node().cpus) if device == "cpu" else 1
    setup = prepare(run_config(workload, "fedavg", rounds, train=train))
    job, sgd = job_of(setup, "fedavg", 1, 1), setup.config.train
    known = {
        "model": job.model,
        "num_clients": workload.clients,
        "cohort": workload.cohort,
        "rounds": WARM + rounds,
        "cores": cores,
        "device": device,
        "batch_size": sgd.batch_size,
        "lr": sgd.lr,
        "momentum": sgd.momentum,
        "weight_decay": sgd.weight_decay,
    }
    with tempfile.TemporaryDirectory(prefix=f"fedsim-{name}-") as temporary:
        folder = Path(temporary)
        (folder / "job.json").write_text(json.dumps(known))
        np.savez(folder / "data.npz", x=job.x.numpy(), y=job.y.numpy(), clients=job.clients.numpy())
        # Flower's state stays in the folder, and its Ray knows nothing of ours
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        arguments = [argument.replace("{cores}", str(cores)) for argument in peer.start]
        done = subprocess.run(
            [python, *arguments, temporary],
            env={key: value for key, value in env.items() if key != "RAY_ADDRESS"},
            capture_output=True,
            text=True,
            check=False,
        )
        result = folder / "seconds.json"
        if done.returncode or not result.exists():
            reason = error_of(done.stderr) or error_of(done.stdout) or "it says nothing"
            raise FedsimError(f"{peer.title} ended with status {done.returncode}: {reason}")
        seconds: list[float] = json.loads(result.read_text())
    return seconds[WARM:]
