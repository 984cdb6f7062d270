"""``python -m benchmarks.listing``: how long ``fedsim runs`` takes over many run directories."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.core.rows import RoundRow
from fedsim.storage.run_dir import RunWriter


def write_run(path: Path, seed: int, rounds: int, finished: bool) -> None:
    """The files of a run that a list of runs reads."""
    store = RunWriter.create(path)
    config = RunConfig(seed=seed, train={"rounds": rounds})
    store.write("config.yaml", to_yaml(config))
    accuracies = [seed % 7 / 10 + r / (4 * rounds) for r in range(1, rounds + 1)]
    rows = [
        RoundRow(round=r, lr=0.01, cohort_size=5, dropped=0, train_loss=2 / r, test_accuracy=a)
        for r, a in enumerate(accuracies, 1)
    ]
    store.append("rounds", rows)
    if finished:
        names = ("final_test_accuracy", "best_test_accuracy")
        results = dict.fromkeys(names, accuracies[-1])
        store.write_summary({"run_id": path.name, "rounds": rounds, **results})


@click.command()
@click.option("--runs", default=500, show_default=True, help="Run directories.")
@click.option("--rounds", default=100, show_default=True, help="Rounds of each.")
@click.option("--repeats", default=5, show_default=True, help="Measurements; the median counts.")
def main(runs: int, rounds: int, repeats: int) -> None:
    """Times the command as a process of its own, interpreter start included."""
    command = [sys.executable, "-m", "fedsim", "runs"]
    for finished in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(runs):
                write_run(Path(folder, f"run-{number:04}"), number, rounds, finished)
            seconds = []
            for _ in range(repeats):
                begun = time.perf_counter()
                done = subprocess.run([*command, folder], check=True, capture_output=True)
                seconds.append(time.perf_counter() - begun)
            if done.stdout.count(b"\n") != runs + 1:
                raise SystemExit("fedsim runs did not list every run")
        kind = "finished" if finished else "interrupted"
        click.echo(f"{runs} {kind} runs of {rounds} rounds: {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
