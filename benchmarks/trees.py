"""``python -m benchmarks.trees OLD``: this checkout beside another one, in turns.

Both checkouts do the same work in processes of their own, block by block: old, new, new, old, ...
While one works the other waits, so both see the same machine minute by minute; a ratio is formed
of each pair of blocks. The workloads and the way they are timed are this file's, so that the old
checkout needs only the functions that are called here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

import fedsim
from benchmarks import serverstep
from benchmarks.pairing import Spread
from benchmarks.workloads import WORKLOADS, run_config

ROOT = Path(__file__).resolve().parents[1]
RUNS: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "w1": ("w1", {}, 10),
    "w1 serial": ("w1", {"kind": "serial"}, 10),
    "w1 stacked": ("w1", {"client_batch": 10}, 15),
    "w2": ("w2", {}, 2),
    "w3": ("w3", {}, 1),
    "w4": ("w4_1000", {}, 5),
    "w5": ("w5", {}, 2),
}
"""Runs of FedAvg by name: workload, engine, rounds of a block."""
STEPS = {f"a1 {method} {m}": (method, m) for method in serverstep.METHODS for m in (5, 50)}
"""Server steps of 2.4 M parameters by name: method, clients."""
COMMANDS = {
    "start ray": ("run", "--rounds", "1"),
    "start serial": ("run", "--rounds", "1", "--engine", "serial"),
    "start list": ("list", "algorithms"),
}
"""Whole commands by name."""
ALL = (*RUNS, *STEPS, *COMMANDS)


@dataclass
class Turns(fedsim.Callback):
    """Gives the turn away after every block of rounds; the first of a block is not timed."""

    reads_files = False

    block: int
    done: int = 0
    begun: float = 0.0

    def on_round_end(self, round: int, rows: Mapping[str, object]) -> None:
        """Starts a block's clock, or ends it and waits."""
        now = time.perf_counter()
        self.done += 1
        position = (self.done - 1) % (1 + self.block)
        if position == 0:
            self.begun = now
        elif position == self.block:
            give((now - self.begun) / self.block)


def give(seconds: float) -> None:
    """Says how long a block took, and waits for the next turn."""
    click.echo(seconds)
    sys.stdin.readline()


def do(name: str, blocks: int) -> None:
    """Does the blocks of a case in this process, with the checkout that is imported."""
    if name in STEPS:
        method, m = STEPS[name]
        rows = serverstep.updates(m, serverstep.SIZES[0])
        for _ in range(blocks):
            give(min(serverstep.timed(partial(serverstep.step, method, rows)) for _ in range(3)))
    elif name in COMMANDS:
        for _ in range(blocks):
            give(serverstep.timed(partial(command, COMMANDS[name])))
    else:
        key, engine, block = RUNS[name]
        config = run_config(WORKLOADS[key], "fedavg", blocks * (1 + block) + 1, **engine)
        with tempfile.TemporaryDirectory(prefix="fedsim-trees-") as folder:
            fedsim.run(config, Path(folder) / "run", [Turns(block)], progress=False)


def command(arguments: Sequence[str]) -> None:
    """Runs a command of fedsim to its end."""
    with tempfile.TemporaryDirectory(prefix="fedsim-trees-") as folder:
        out = ["--out", f"{folder}/run"] if arguments[0] == "run" else []
        given = [sys.executable, "-m", "fedsim", *arguments, *out]
        subprocess.run(given, check=True, capture_output=True)


def in_turns(name: str, trees: Sequence[Path], blocks: int) -> Iterator[tuple[float, ...]]:
    """Seconds of a block in each checkout, pair by pair; a first one is not counted."""
    given = [sys.executable, "-P", __file__, "--only", name, "--blocks", str(blocks), "--work"]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*given, tree], cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )
            for tree in trees
        ]  # fmt: skip
        for process in processes:
            _seconds(process)
        for block in range(1, blocks):
            spent = {}
            for process in processes[:: 1 if block % 2 else -1]:
                _next(process)
                spent[process.pid] = _seconds(process)
            yield tuple(spent[process.pid] for process in processes)
        for process in processes:
            _next(process)


def _next(process: subprocess.Popen[str]) -> None:
    if process.stdin is None:
        raise ValueError("the process has no pipe")
    process.stdin.write("\n")
    process.stdin.flush()


def _seconds(process: subprocess.Popen[str]) -> float:
    said = process.stdout.readline() if process.stdout else ""
    if not said:
        raise SystemExit("a checkout ended before its blocks were done")
    return float(said)


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, metavar="CASE", help=f"Of {', '.join(ALL)}; by default all.")
@click.option("--blocks", default=21, show_default=True, help="Of each case; the first warms up.")
@click.option("--work", is_flag=True, hidden=True, help="Do a case here, at each line of input.")
def main(old: Path, only: tuple[str, ...], blocks: int, work: bool) -> None:
    """Seconds of this checkout over those of OLD."""
    names = only or ALL
    if unknown := set(names) - set(ALL):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; must be of {', '.join(ALL)}")
    if work:
        do(names[0], blocks)
        return
    for name in names:
        pairs = list(in_turns(name, (old.resolve(), ROOT), blocks))
        ratio = Spread.of([new / before for before, new in pairs])
        before, new = (1e3 * Spread.of(seconds).median for seconds in zip(*pairs, strict=True))
        click.echo(
            f"{name}: {before:.2f} ms, now {new:.2f} ms, "
            f"ratio {ratio.median:.3f} (quartiles {ratio.low:.3f} to {ratio.high:.3f})"
        )


if __name__ == "__main__":
    main()
