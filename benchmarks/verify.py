"""What verifying costs, and how far apart processors are: ``python -m benchmarks.verify``.

Processor time of whole commands, of one run and of the verification of single rounds of it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import click

KERNELS = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}


def command(*args: str, **environment: str) -> tuple[float, str]:
    """Processor seconds of a command of fedsim, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "fedsim", *args],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return spent, done.stdout


@click.command()
@click.option("--rounds", default=100, show_default=True)
@click.option("--every", default=5, show_default=True, help="Rounds between checkpoints that stay.")
@click.option("--algorithm", default="fedld", show_default=True)
@click.option("--model", default="cnn", show_default=True)
@click.option("--epochs", default=20, show_default=True, help="Local epochs.")
@click.option("--kernels/--no-kernels", default=True, help="Verify with others, too.")
def main(
    rounds: int, every: int, algorithm: str, model: str, epochs: int, *, kernels: bool
) -> None:
    """Verifies single rounds of a run, and all of them with the kernels of an old processor."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        settings = [
            f"engine.keep_every={every}",
            f"model.name={model}",
            f"train.local_epochs={epochs}",
        ]
        flags = [word for key in settings for word in ("--set", key)]
        whole, _ = command(
            *("run", "-a", algorithm, "--engine", "serial", "--rounds", str(rounds)),
            *(*flags, "--out", run),
        )
        click.echo(f"run of {rounds} rounds: {whole:.1f} s of processor time")
        shares = []
        for seed in range(5):
            spent, _ = command("verify", run, "--rounds", "1", "--seed", str(seed))
            shares.append(spent / whole)
        text = ", ".join(f"{share:.3f}" for share in shares)
        click.echo(f"verify --rounds 1, as a share of the run: {text}")
        if not kernels:
            return
        _, told = command("verify", run, "--rounds", "all", "--format", "json", **KERNELS)
        (found,) = json.loads(told)["runs"]
        click.echo(f"all rounds with {KERNELS}: largest {found['largest']:.2g}")
        click.echo(f"  differences beyond the tolerance: {found['differences']}")


if __name__ == "__main__":
    main()
