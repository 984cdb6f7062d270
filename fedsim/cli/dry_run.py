"""``--dry-run``: what runs will take, before they begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fedsim.cli.options import several_option
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo
from fedsim.core.text import counted, duration, megabytes

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig
    from fedsim.studies.estimate import Estimate

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
        help="With --dry-run: whether to train a few rounds of each kind of run to estimate the "
        "time.  [default: measure]",
    )
    dry = several_option(
        "--dry-run",
        is_flag=True,
        help="Only list the runs, with the estimated time, disk, memory and GPU hours.",
    )
    return dry(measured(price(function)))


def check_dry_run(dry_run: bool, measure: bool | None, gpu_price: float | None) -> None:
    """Refuses options of ``--dry-run`` without it, and a price without end, by a ConfigError."""
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

    Args:
        configs: of all runs, at least one.
        parallel: how many at once.
        measure: whether rounds may be trained.
        gpu_price: of a GPU for an hour, None: no cost is shown.

    Raises:
        FedsimError: a measured run failed, or a fraction of a GPU does not hold its training.
    """
    from fedsim.cli.doctor import gpu_rows
    from fedsim.display.tables import show
    from fedsim.engine.devices import trains_on_gpu
    from fedsim.studies.estimate import estimate

    found = estimate(configs, parallel, measure=measure)
    rows = []
    for shape in found.shapes:
        least, most = min(shape.rounds), max(shape.rounds)
        row = {
            "runs": str(shape),
            "number": str(len(shape.rounds)),
            "rounds": str(most) if least == most else f"{least} to {most}",
        }
        if shape.measured is not None:
            row["s per round"] = f"{shape.measured.train + shape.measured.other:.2g}"
            row["s per evaluation"] = f"{shape.measured.evaluate:.2g}"
            row["time of a run"] = duration(shape.measured.seconds(shape.config))
        engine = shape.config.engine
        if trains_on_gpu(engine):
            row |= gpu_rows(shape.config, engine.gpus_per_client or 1.0)
        rows.append(row)
    echo()
    show(rows)
    for shape in found.shapes:
        shortened = {} if shape.measured is None else shape.measured.shortened
        for key, (done, wanted) in shortened.items():
            scaled = "not scaled" if key.endswith("iterations") else "scaled"
            echo(
                f"{shape}: measured with {key}={done} in place of {wanted:,}, its time is {scaled}"
            )
    echo()
    show([{"": name, "estimate": text} for name, text in totals(found, len(configs), gpu_price)])


def totals(found: Estimate, runs: int, gpu_price: float | None) -> list[tuple[str, str]]:
    """Name and value of what all runs take together."""

    at_once = f", {found.at_once} at once" if found.at_once > 1 else ""
    rows = [("runs", f"{counted(runs, 'run')}{at_once}")]
    rows.append(("time", "not measured" if found.seconds is None else duration(found.seconds)))
    rows.append(("disk", megabytes(found.disk)))
    rows.append(("memory", f"{megabytes(found.memory)}, and the data"))
    if found.gpu_hours is not None and (found.gpus or gpu_price is not None):
        hours = f"{found.gpu_hours:.2f} ({counted(int(found.gpus), 'GPU')})"
        cost = "" if gpu_price is None else f", {found.gpu_hours * gpu_price:.2f} in all"
        rows.append(("GPU hours", hours + cost))
    return rows
