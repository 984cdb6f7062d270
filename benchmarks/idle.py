"""How long each core is idle during an asynchronous run, ``python -m benchmarks.idle``.

The clock is the operating system's, so nothing else may run on the machine. Round 1 starts the
actors and does not count, nor does the last one, with the evaluation.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
import psutil

import fedsim
from benchmarks.workloads import WORKLOADS, run_config
from fedsim.config.run import RunConfig


@dataclass
class Idle(fedsim.Callback):
    """Idle seconds of each core, and the time, after every round."""

    seconds: list[tuple[float, ...]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)

    def on_round_end(self, round: int, rows: Mapping[str, object]) -> None:
        """Reads the counters."""
        self.seconds.append(tuple(core.idle for core in psutil.cpu_times(percpu=True)))
        self.at.append(time.perf_counter())

    def shares(self) -> list[float]:
        """Of each core, from the end of the first round to that of the last but one."""
        wall = self.at[-2] - self.at[0]
        ends = zip(self.seconds[0], self.seconds[-2], strict=True)
        return [(after - before) / wall for before, after in ends]


@click.command()
@click.option("--workload", default="w2", show_default=True, help="Of benchmarks/workloads.py.")
@click.option("--rounds", default=60, show_default=True, help="Steps of the server.")
@click.option("--mode", default="async", show_default=True, help="sync or async.")
def main(workload: str, rounds: int, mode: str) -> None:
    """Idle share of each core in rounds of five updates, ten clients at a time."""
    plain = run_config(WORKLOADS[workload], "fedavg", rounds, kind="ray").model_dump()
    plain["clock"] |= {"samples_per_second": "lognormal(100, 1)", "mode": mode}
    if mode == "async":
        plain["async"] = {"buffer": 5, "concurrency": 10}
    idle = Idle()
    with tempfile.TemporaryDirectory() as folder:
        fedsim.run(RunConfig(**plain), Path(folder) / "run", [idle], progress=False)
    cores = ", ".join(f"{100 * share:.1f} %" for share in idle.shares())
    seconds = (idle.at[-2] - idle.at[0]) / (rounds - 2)
    click.echo(f"{mode}: cores idle {cores}; {seconds:.3f} s a round")


if __name__ == "__main__":
    main()
