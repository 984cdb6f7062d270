"""``python -m benchmarks.startup``: how long a command takes to start, beside bare scripts.

Each process of fedsim and each script are started in turns; a ratio is formed of each pair.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import click

from benchmarks.pairing import Spread
from benchmarks.processes import start_up

RAY = """
import os
os.environ.update(RAY_DEDUP_LOGS_SKIP_REGEX=".*", RAY_USAGE_STATS_ENABLED="0")
import ray
ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")

@ray.remote
class Actor:
    def ready(self):
        import torch

refs = [actor.ready.remote() for actor in [Actor.remote(), Actor.remote()]]
import torch, pandas
ray.get(refs)
print("ready", flush=True)
"""
"""Ray, two actors that import torch, and a driver that imports torch and pandas meanwhile."""

SERIAL = """
import importlib.util, pathlib
import numpy as np
import torch
from torch import nn

folder = pathlib.Path(importlib.util.find_spec("sklearn").origin).parent
file = folder / "datasets" / "data" / "digits.csv.gz"
table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
x, y = (table[:, :-1] / 8 - 1).view(-1, 1, 8, 8), table[:, -1].long()

def block(a, b):
    return [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]

model = nn.Sequential(*block(1, 16), nn.MaxPool2d(2), *block(16, 32), nn.MaxPool2d(2),
                      *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
params, start = list(model.parameters()), [p.detach().clone() for p in model.parameters()]
total = [torch.zeros_like(p) for p in start]
torch.set_num_threads(1)
for client in range(5):
    with torch.no_grad():
        torch._foreach_copy_(params, start)
    own = slice(29 * client, 29 * (client + 1))
    grads = torch.autograd.grad(nn.functional.cross_entropy(model(x[own]), y[own]), params)
    with torch.no_grad():
        torch._foreach_add_(params, grads, alpha=-0.01)
        torch._foreach_add_(total, params, alpha=0.2)
with torch.no_grad():
    torch._foreach_copy_(params, total)
    model.eval()
    accuracy = (model(x[-360:]).argmax(1) == y[-360:]).float().mean()
print(float(accuracy))
"""
"""A round of the default job as a script: five clients of 29 digits, one step each, and a test."""


def bare_ray() -> float:
    """Seconds until the bare script of Ray and torch is ready."""
    begun = time.perf_counter()
    command = [sys.executable, "-c", RAY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout is None or process.stdout.readline() != b"ready\n":
            raise SystemExit("the bare script of Ray failed")
        return time.perf_counter() - begun


def wall(*command: str) -> float:
    """Seconds of a whole process."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return time.perf_counter() - begun


def serial() -> float:
    """Seconds of a whole ``fedsim run`` of one round with the serial engine."""
    with tempfile.TemporaryDirectory(prefix="fedsim-startup-") as folder:
        options = ("--engine", "serial", "--rounds", "1", "--out", f"{folder}/run")
        return wall("-m", "fedsim", "run", *options)


Measured = tuple[str, tuple[float, ...], tuple[float, ...], float]
"""A case, fedsim's seconds, those of the script pair by pair, and the target of their ratio."""
CASES: dict[str, tuple[Callable[[], float], Callable[[], float], float]] = {
    "ray, first row": (lambda: start_up(["--rounds", "1"]), bare_ray, 1.15),
    "serial, one round": (serial, lambda: wall("-c", SERIAL), 1.3),
}
COMMANDS = {"--help": 0.3, "list algorithms": 1.0}
"""Commands without a run, and the seconds that they may take."""


def measure(repeats: int) -> Iterator[Measured]:
    """The cases of a run, in turns, after one of each that is not counted."""
    for case, (fedsim, bare, target) in CASES.items():
        pairs = [(fedsim(), bare()) for _ in range(repeats + 1)][1:]
        ours, theirs = zip(*pairs, strict=True)
        yield case, ours, theirs, target


@click.command()
@click.option("--repeats", default=5, show_default=True, help="Pairs; the median counts.")
def main(repeats: int) -> None:
    """Times fedsim's start beside bare scripts, process starts included."""
    for case, ours, theirs, target in measure(repeats):
        ratio = Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
        click.echo(
            f"{case}: {Spread.of(ours).median:.2f} s, script {Spread.of(theirs).median:.2f} s, "
            f"ratio {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), target {target:g}"
        )
    for command, target in COMMANDS.items():
        seconds = Spread.of([wall("-m", "fedsim", *command.split()) for _ in range(repeats)])
        click.echo(f"fedsim {command}: {seconds.median:.2f} s, target {target:g} s")


if __name__ == "__main__":
    main()
