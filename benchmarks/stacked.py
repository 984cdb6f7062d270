"""``python -m benchmarks.stacked``: clients that train as one model, beside one by one.

Runs with and without ``engine.client_batch`` take turns; within each run a bare PyTorch loop does
the same rounds between fedsim's, where there is one for the work. Ratios are formed run by run.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

import fedsim
from benchmarks import peers, report
from benchmarks.bare import Bare, job_of
from benchmarks.pairing import Spread, Turns
from benchmarks.report import Result
from benchmarks.workloads import METHODS, WORKLOADS, run_config
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import FedsimError
from fedsim.display.tables import show
from fedsim.engine.ray.pool import Session
from fedsim.training.assemble import prepare

BLOCKS = 3
"""Blocks of rounds in a run."""
SERIAL = {"kind": "serial", "checkpoint_every": 0}
RAY = {"checkpoint_every": 0}


@dataclass(frozen=True)
class Case:
    """Work to measure.

    Args:
        name: W1, ...
        title: method and engine.
        workload: key of a workload; None for the main job, what ``fedsim run`` alone does.
        engine: keys of section ``engine`` beside ``client_batch``.
        phase: of the rounds; ``total`` for whole rounds.
        beside_one: the most that stacked over one by one shall be.
        beside_bare: the most that stacked over the bare loop shall be; None where there is none.
        sample_rate: of the main job; workloads have their own.
    """

    name: str
    title: str
    method: str
    workload: str | None
    engine: dict[str, Any]
    phase: str
    block: int
    beside_one: float | None = None
    beside_bare: float | None = None
    sample_rate: float = 0.1

    def config(self, rounds: int, batch: int | str) -> RunConfig:
        """The run."""
        engine = self.engine | {"client_batch": batch}
        if self.workload is not None:
            return run_config(WORKLOADS[self.workload], self.method, rounds, **engine)
        train = {"rounds": rounds, "sample_rate": self.sample_rate}
        return RunConfig(algorithm=self.method, train=train, engine=engine)


CASES = (
    *(Case("W1", f"{m}, serial", m, "w1", SERIAL, "train", 20, None, 0.7) for m in METHODS),
    *(Case("W1", f"{m}, Ray", m, "w1", RAY, "total", 20) for m in METHODS),
    *(Case("W4", f"{m}, serial", m, "w4_10000", SERIAL, "train", 10) for m in METHODS),
    Case("main job", "fedld, serial", "fedld", None, SERIAL, "train", 20, 0.5),
    Case("main job", "fedld, all 50 clients, serial", "fedld", None, SERIAL, "train", 5,
         sample_rate=1.0),
    Case("main job", "fedld, Ray", "fedld", None, RAY, "train", 20),
)  # fmt: skip
"""Training phases in one process, and whole rounds on Ray."""


@dataclass
class Sides:
    """Seconds per round, a median of each run."""

    one: list[float] = field(default_factory=list)
    stacked: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


def seconds(
    case: Case, batch: int | str, bare: Bare | None, session: Session | None
) -> tuple[float, list[float]]:
    """A run's seconds of the phase, the median of its blocks, and those of the bare loop."""
    turns = Turns([] if bare is None else [bare], case.block, BLOCKS)
    with tempfile.TemporaryDirectory(prefix="fedsim-benchmark-") as folder:
        config = case.config(turns.rounds, batch)
        shared = None if case.engine.get("kind") == "serial" else session
        store = fedsim.run(config, Path(folder) / "run", [turns], shared, progress=False)
        timings = store.read("timings")
    timed = timings[(timings["phase"] == case.phase) & timings["round"].isin(turns.timed)]
    spent = timed.sort_values("round")["seconds"].to_numpy().reshape(BLOCKS, case.block)
    return float(statistics.median(spent.mean(axis=1))), [
        seconds for of_client in turns.bare.values() for seconds in of_client
    ]


def measure(case: Case, repeats: int, session: Session | None) -> Sides:
    """Runs one by one and stacked in turns."""
    sides = Sides()
    with ExitStack() as stack:
        bare = None
        if case.workload is not None and case.phase == "train":
            setup = prepare(case.config(1, 1))
            bare = stack.enter_context(Bare("1 process", job_of(setup, case.method, 1, 1), 1))
        for _ in range(repeats):
            sides.one.append(seconds(case, 1, bare, session)[0])
            spent, beside = seconds(case, "auto", bare, session)
            sides.stacked.append(spent)
            sides.bare += [statistics.median(beside)] if beside else []
    return sides


def lines(case: Case, sides: Sides) -> Iterator[Result]:
    """The lines of the table."""
    batch = prepare(case.config(1, "auto")).config.engine.client_batch
    title = f"{case.title}, {case.phase}, client_batch {batch}"
    median = 1e3 * Spread.of(sides.stacked).median
    for others, against, target in (
        (sides.one, "one by one", case.beside_one),
        (sides.bare, "bare loop, 1 process", case.beside_bare),
    ):
        if others:
            ratio = [a / b for a, b in zip(sides.stacked, others, strict=True)]
            yield Result(
                case.name, title, "ms", median, 1e3 * Spread.of(others).median, against,
                Spread.of(ratio), target, details={"seconds": sides.__dict__},
            )  # fmt: skip


def beside_flower(python: Path, sides: Sequence[float]) -> Result:
    """Whole rounds of W1 with fedavg on Ray, stacked, beside Flower's simulation."""
    workload, ours = WORKLOADS["w1"], statistics.median(sides)
    theirs = peers.peer_rounds("flower", python, workload, 3 * workload.block)
    ratio = Spread.of([ours / seconds for seconds in theirs])
    return Result(
        "W1", "fedavg, Ray, whole rounds, stacked", "ms", 1e3 * ours,
        1e3 * Spread.of(theirs).median, "Flower's simulation", ratio, 1 / 35,
        details={"seconds": theirs},
    )  # fmt: skip


@click.command()
@click.argument("names", nargs=-1)
@click.option("--repeats", type=click.IntRange(1), default=4, show_default=True,
              help="Runs of each side.")  # fmt: skip
@click.option("--engine", type=click.Choice(["serial", "ray"]), help="Only this engine.")
@click.option("--flower-python", type=click.Path(path_type=Path, exists=True),
              help="Python of an environment with flwr[simulation] and torch.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/stacked.json"),
              show_default=True, help="All as JSON; the table as CSV beside it.")  # fmt: skip
def main(
    names: tuple[str, ...],
    repeats: int,
    engine: str | None,
    flower_python: Path | None,
    out: Path,
) -> None:
    """Measures stacked clients; NAMES are W1, W4 and 'main job', by default all."""
    cases = [
        case
        for case in CASES
        if case.name in (names or (case.name,))
        and case.engine.get("kind", "ray") == (engine or case.engine.get("kind", "ray"))
    ]
    results: list[Result] = []
    with ExitStack() as stack:
        on_ray = any("kind" not in case.engine for case in cases)
        session = stack.enter_context(Session(EngineConfig())) if on_ray else None
        for case in cases:
            sides = measure(case, repeats, session)
            results += lines(case, sides)
            if flower_python is not None and case.title == "fedavg, Ray":
                results.append(beside_flower(flower_python, sides.stacked))
            report.save(results, report.machine_facts(), out)
    show([result.cells() for result in results], "stacked clients")
    click.echo(f"saved: {out} and {out.with_suffix('.csv')}")


if __name__ == "__main__":
    try:
        main()
    except FedsimError as error:
        raise SystemExit(f"benchmarks: {error}") from error
