"""``--dry-run``: what several runs will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fedsim.cli.options import several_option
from fedsim.core.errors import ConfigError
from fedsim.core.machine import num_gpus
from fedsim.core.terminal import echo
from fedsim.core.text import counted, duration, megabytes

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig
    from fedsim.studies.estimate import Measured

F = TypeVar("F", bound=Callable[..., Any])


def dry_run_options(function: F) -> F:
    """``--dry-run``, ``--no-measure`` and ``--gpu-price``."""
    price = several_option(
        "--gpu-price",
        type=click.FloatRange(min=0),
        metavar="PRICE",
        help="With --dry-run: price of one GPU for one hour, in any currency, to show the cost.",
    )
    measured = several_option(
        "--measure/--no-measure",
        default=None,
        help="With --dry-run: whether to train the first rounds of each kind of run to estimate "
        "the time.  [default: measure]",
    )
    dry = several_option(
        "--dry-run",
        is_flag=True,
        help="Only list the runs, with the estimated time, disk, memory and GPU hours.",
    )
    return dry(measured(price(function)))


def check_dry_run(dry_run: bool, measure: bool | None, gpu_price: float | None) -> None:
    """Refuses options of ``--dry-run`` without it by a ConfigError."""
    if not dry_run and (measure is not None or gpu_price is not None):
        flag = "--gpu-price" if measure is None else "--measure" if measure else "--no-measure"
        raise ConfigError(f"{flag}: has no effect without --dry-run")
    if gpu_price is not None and not math.isfinite(gpu_price):
        raise ConfigError(f"--gpu-price: {gpu_price:g} given; must be a finite number from 0")


def show_estimate(
    configs: Sequence[RunConfig],
    parallel: Literal["auto"] | int,
    *,
    measure: bool = True,
    gpu_price: float | None = None,
) -> None:
    """Prints what runs will take.

    With Ray the runs are taken one after the other, each on all that it may use: an upper bound.

    Args:
        configs: of all runs, at least one.
        parallel: how many at once.
        measure: whether rounds may be trained; without, there is no time.
        gpu_price: of a GPU for an hour, None: no cost is shown.

    Raises:
        FedsimError: a measured run failed, or a fraction of a GPU does not hold its training.
    """
    from fedsim.display.tables import show
    from fedsim.studies import estimate
    from fedsim.studies.capacity import local_runs, memory_of

    imports = time.process_time()  # of this process so far: what each process of a sweep will take
    kinds = estimate.by_kind(configs)
    addresses = {config.engine.address for config in configs if config.engine.kind == "ray"}
    at_once = 1 if addresses else local_runs(configs, parallel)
    rows, took, disk = [], [], 0.0
    for runs in kinds:
        measured = estimate.measure(runs[0]) if measure else None
        rows.append(_row(runs, measured))
        if measured is not None:
            took += [measured.seconds(run) for run in runs]
            disk += sum(map(measured.disk, runs))
    echo()
    show(rows)
    side_by_side = f", {at_once} at once" if at_once > 1 else ""
    total = {"runs": f"{counted(len(configs), 'run')}{side_by_side}", "time": "not measured"}
    if took:
        seconds = imports + estimate.makespan(took, at_once)
        total |= {"time": duration(seconds), "disk": megabytes(disk)}
        gpus = num_gpus()
        if addresses - {None}:
            total["GPU hours"] = "not known: those of a cluster are not counted"
        elif gpus or gpu_price is not None:
            hours = seconds / 3600 * gpus
            cost = "" if gpu_price is None else f", {hours * gpu_price:.2f} in all"
            total["GPU hours"] = f"{hours:.2f} ({counted(gpus, 'GPU')}){cost}"
    total["memory"] = (
        f"{megabytes(at_once * max(memory_of(runs[0]) for runs in kinds))}, and the data"
    )
    echo()
    show([{"": name, "estimate": text} for name, text in total.items()])


def _row(runs: Sequence[RunConfig], measured: Measured | None) -> dict[str, str]:
    """Runs of one kind: their number and rounds, and what was measured."""
    first, rounds = runs[0], sorted(run.train.rounds for run in runs)
    method = f"{first.algorithm} + {first.server}" if first.server else first.algorithm
    row = {
        "runs": f"{method}, {first.data.name}, {first.model_name}, batch {first.train.batch_size}",
        "number": str(len(runs)),
        "rounds": " to ".join(map(str, dict.fromkeys([rounds[0], rounds[-1]]))),
    }
    if measured is not None:
        row["s per round"] = f"{measured.round:.2g}"
        row["s per evaluation"] = f"{measured.evaluation:.2g}"
        row["time of a run"] = duration(measured.seconds(first))
    return row
