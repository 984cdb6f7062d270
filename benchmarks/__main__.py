"""``python -m benchmarks``: measures what is asked for, prints the table and saves it.

``python -m benchmarks gpu`` is a command of its own, :mod:`benchmarks.gpu`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import decomposition, gpu, peers, processes, report, serverstep, startup
from benchmarks.pairing import Pairs, Spread, compare
from benchmarks.profiles import profile
from benchmarks.report import Result, of_pairs, of_step
from benchmarks.workloads import METHODS, WORKLOADS, run_config
from fedsim.core.errors import FedsimError
from fedsim.display.tables import show
from fedsim.training.assemble import prepare

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    ", checkpoint_every=0": {"checkpoint_every": 0},
}
"""Per suffix of the case's name the engine settings that differ from a user's defaults."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    repeats: int
    quick: bool
    data_dir: Path | None
    peers: Mapping[str, Path]


def _paired(name: str, key: str, target: float) -> Callable[[Options], Iterator[Result]]:
    """A workload with both methods, as a user runs it and without checkpoints."""

    def measure(options: Options) -> Iterator[Result]:
        for method in METHODS:
            for suffix, engine in VARIANTS.items():
                pairs = compare(WORKLOADS[key], method, options.repeats, **engine)
                yield of_pairs(name, method + suffix, pairs, target if not suffix else None)
        yield from _peers(name, key, options)

    return measure


def _peers(name: str, key: str, options: Options) -> Iterator[Result]:
    """FedAvg in other simulators beside fedsim without checkpoints, which they do not write."""
    workload = WORKLOADS[key]
    for peer, python in options.peers.items():
        ours = Spread.of(compare(workload, "fedavg", options.repeats, checkpoint_every=0).fedsim)
        case = f"{peers.PEERS[peer].title}, fedavg"
        try:
            theirs = peers.peer_rounds(peer, python, workload, options.repeats * workload.block)
        except FedsimError as error:
            yield Result(name, case, skipped=f"failed: {error}", failed=True)
            continue
        ratio = Spread.of([seconds / ours.median for seconds in theirs])
        yield Result(
            name, case, "ms", 1e3 * Spread.of(theirs).median,
            1e3 * ours.median, "fedsim", ratio, details={"seconds_per_round": theirs},
        )  # fmt: skip


def _w4(options: Options) -> Iterator[Result]:
    """10,000 clients beside 1,000, a hundred sampled of each; whole runs take turns."""
    for method in METHODS:
        runs: dict[str, list[Pairs]] = {"w4_1000": [], "w4_10000": []}
        for _ in range(max(2, options.repeats // 2)):
            for key, pairs in runs.items():
                pairs.append(compare(WORKLOADS[key], method, 2))
        few, many = ([Spread.of(p.fedsim).median for p in pairs] for pairs in runs.values())
        ratio = Spread.of([b / a for a, b in zip(few, many, strict=True)])
        yield Result(
            "W4", method, "ms", 1e3 * Spread.of(many).median, 1e3 * Spread.of(few).median,
            "1,000 clients", ratio, 1.3,
        )  # fmt: skip
        merged = Pairs(
            tuple(s for p in runs["w4_10000"] for s in p.fedsim),
            {
                label: tuple(s for p in runs["w4_10000"] for s in p.bare[label])
                for label in runs["w4_10000"][0].bare
            },
            runs["w4_10000"][-1].phases,
        )
        yield of_pairs("W4", method, merged, None)


def _w5(options: Options) -> Iterator[Result]:
    """100,000 clients beside 10,000, 1,000 and 100 sampled: cost of a client, and memory."""
    each: dict[str, list[float]] = {"w4_10000": [], "w5": []}
    for _ in range(max(2, options.repeats // 4)):
        for key, seconds in each.items():
            pairs = compare(WORKLOADS[key], "fedavg", 2)
            seconds.append(Spread.of(pairs.fedsim).median / WORKLOADS[key].cohort)
    few, many = each.values()
    ratio = Spread.of([b / a for a, b in zip(few, many, strict=True)])
    yield Result(
        "W5", "fedavg, a client of a round", "us", 1e6 * Spread.of(many).median,
        1e6 * Spread.of(few).median, "W4, 10,000 clients", ratio, 1.5,
    )  # fmt: skip
    cases = {"fedavg": [], "scaffold": ["--set", "engine.state_memory=0.05"]}
    for method, more in cases.items():
        arguments = [*processes.run_arguments(WORKLOADS["w5"], method, 30), *more]
        peak = processes.peak_memory(arguments, tree=True)
        yield Result(
            "W5", f"{method}, process tree", "GiB", peak.tree / 2**30, target=6.0,
            details={"driver_bytes": peak.driver},
        )  # fmt: skip


def _a1(options: Options) -> Iterator[Result]:
    sizes = serverstep.SIZES[:1] if options.quick else serverstep.SIZES
    for step in serverstep.measure(options.repeats, sizes=sizes):
        yield of_step(step, 4.0)
        if step.tables:
            case = f"K for the tables, m = {step.m}, d = {step.d / 1e6:.1f} M"
            yield Result("A1", case, "ms", 1e3 * Spread.of(step.tables).median)


def _d1(options: Options) -> Iterator[Result]:
    """Decomposing a round's loss, beside rounds of the same run without that."""
    for case, turns in decomposition.measure(5 * options.repeats):
        yield Result(
            "D1", case, "ms", 1e3 * Spread.of(turns.decomposed).median,
            1e3 * Spread.of(turns.plain).median, "rounds without it", turns.ratio, 2.0,
            details={"seconds": asdict(turns)},
        )  # fmt: skip


def _memory(options: Options) -> Iterator[Result]:
    """The driver in W3 beside the driver in W1: what the model's size adds, in models."""
    size = prepare(run_config(WORKLOADS["w3"], "fedavg", 1)).initial.nbytes
    for method in METHODS:
        peaks = {
            key: processes.peak_memory(
                processes.run_arguments(WORKLOADS[key], method, 4), tree=False
            ).driver
            for key in ("w1", "w3")
        }
        own = (peaks["w3"] - peaks["w1"]) / size
        yield Result(
            "driver memory in W3", method, "models", own, target=3.0,
            against="beyond W1's driver", details={"peak_bytes": peaks},
        )  # fmt: skip


def _m1(options: Options) -> Iterator[Result]:
    """1,000 clients, 100 a round: the whole process tree."""
    arguments = processes.run_arguments(WORKLOADS["m1"], "fedld", 3)
    case = "fedld, MNIST-sized"
    if options.data_dir is not None:
        arguments = [
            *("--algorithm", "fedld", "--dataset", "mnist", "--data-dir", str(options.data_dir)),
            *("--clients", "1000", "--sample-rate", "0.1", "--rounds", "3"),
            *("--set", "data.min_samples=1"),
        ]
        case = "fedld, mnist"
    peak = processes.peak_memory(arguments, tree=True)
    yield Result(
        "M1", case, "GiB", peak.tree / 2**30, target=8.0, details={"driver_bytes": peak.driver}
    )


def _s1(options: Options) -> Iterator[Result]:
    """From the start of the process to the first row, on the digits, beside bare scripts."""
    for case, ours, theirs, target in startup.measure(min(5, options.repeats)):
        ratio = Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
        medians = Spread.of(ours).median, Spread.of(theirs).median
        details = {"seconds": ours, "script": theirs}
        yield Result("S1", case, "s", *medians, "script", ratio, target, details=details)


BENCHMARKS: dict[str, Callable[[Options], Iterator[Result]]] = {
    "W1": _paired("W1", "w1", 1.8),
    "W2": _paired("W2", "w2", 1.05),
    "W3": _paired("W3", "w3", 1.15),
    "W4": _w4,
    "W5": _w5,
    "A1": _a1,
    "D1": _d1,
    "MEM": _memory,
    "M1": _m1,
    "S1": _s1,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS), case_sensitive=False))
@click.option("--repeats", type=click.IntRange(2), help="Blocks of each side; default 8.")
@click.option("--quick", is_flag=True, help="Fewer repeats, small sizes: a look, not a figure.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/benchmarks.json"),
              show_default=True, help="All as JSON; the table as CSV beside it.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True), help="MNIST, for M1.")
@click.option("--peers", "names_of_peers", metavar="NAME[,NAME]", default="",
              help="Other simulators beside W1 to W3: flower, pfl.")  # fmt: skip
@click.option("--flower-python", type=click.Path(path_type=Path, exists=True),
              help="Python of an environment with flwr[simulation] and torch.")  # fmt: skip
@click.option("--pfl-python", type=click.Path(path_type=Path, exists=True),
              help="Python of an environment with pfl and torch.")  # fmt: skip
@click.option("--profiles", is_flag=True, help="Profile every workload, not those that miss.")
def main(
    names: tuple[str, ...],
    repeats: int | None,
    quick: bool,
    out: Path,
    data_dir: Path | None,
    names_of_peers: str,
    flower_python: Path | None,
    pfl_python: Path | None,
    profiles: bool,
) -> None:
    """Measures fedsim beside a bare PyTorch loop; without NAMES everything."""
    pythons = {"flower": flower_python, "pfl": pfl_python}
    chosen = dict[str, Path]()
    for peer in filter(None, names_of_peers.split(",")):
        if peer not in pythons:
            raise click.BadParameter(f"{peer!r} given; allowed: flower, pfl", param_hint="--peers")
        python = pythons[peer]
        if python is None:
            raise click.UsageError(f"--peers {peer} needs --{peer}-python")
        chosen[peer] = python
    options = Options(repeats or (3 if quick else 8), quick, data_dir, chosen)
    facts, results = report.machine_facts(), list[Result]()
    for name in names or BENCHMARKS:
        for result in BENCHMARKS[name](options):
            click.echo(f"{result.benchmark} {result.case}: {result.cells()['measured']}", err=True)
            results.append(result)
            report.save(results, facts | {"load_average_at_end": os.getloadavg()}, out)
    show([result.cells() for result in results], "fedsim beside the bare loop")
    wanted = {r.benchmark for r in results if profiles or r.missed} & {"W1", "W2", "W3"}
    for name in sorted(wanted):
        for method in METHODS:
            path = out.with_name(f"{out.stem}-{name}-{method}.txt")
            path.write_text(profile(WORKLOADS[name.lower()], method), encoding="utf-8")
            click.echo(f"profile: {path}")
    click.echo(f"saved: {out} and {out.with_suffix('.csv')}")
    if any(result.failed for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    on_gpu = sys.argv[1:2] == ["gpu"]
    try:
        gpu.main(sys.argv[2:], "python -m benchmarks gpu") if on_gpu else main()
    except FedsimError as error:
        raise SystemExit(f"benchmarks: {error}") from error
