"""``--dry-run``: what several runs will take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from fedsim.cli.options import several_option
from fedsim.core.errors import ConfigError
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig

F = TypeVar("F", bound=Callable[..., Any])


def dry_run_options(function: F) -> F:
    """``--dry-run``, ``--no-measure`` and ``--gpu-price``."""
    price = several_option(
        "--gpu-price",
        type=click.FloatRange(min=0, max=1e9),
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
    from fedsim.display.board import duration
    from fedsim.display.tables import show
    from fedsim.engine.devices import trains_on_gpu
    from fedsim.studies.estimate import estimate

    total = estimate(configs, parallel, measure=measure)
    rows = []
    for kind in total.kinds:
        first, rounds = kind.runs[0], sorted(run.train.rounds for run in kind.runs)
        row = {
            "runs": str(kind),
            "number": str(len(rounds)),
            "rounds": " to ".join(map(str, dict.fromkeys([rounds[0], rounds[-1]]))),
        }
        if kind.measured is not None:
            row["s per round"] = f"{kind.measured.round:.2g}"
            row["s per evaluation"] = f"{kind.measured.evaluation:.2g}"
            row["time of a run"] = duration(kind.measured.seconds(first))
        if trains_on_gpu(first.engine):
            row |= gpu_rows(first, first.engine.gpus_per_client or 1.0)
        rows.append(row)
    echo()
    show(rows)
    at_once = f", {total.at_once} at once" if total.at_once > 1 else ""
    together = {"runs": f"{counted(len(configs), 'run')}{at_once}", "time": "not measured"}
    if total.seconds is not None and total.disk is not None:
        together |= {"time": duration(total.seconds), "disk": size(total.disk)}
    together["memory"] = f"{size(total.memory)}, and the data"
    if total.seconds is not None and (total.gpus or gpu_price is not None):
        hours = total.seconds / 3600 * total.gpus
        cost = "" if gpu_price is None else f", {hours * gpu_price:.2f} in all"
        together["GPU hours"] = f"{hours:.2f} ({counted(int(total.gpus), 'GPU')}){cost}"
    echo()
    show([{"": name, "estimate": text} for name, text in together.items()])


def size(count: float) -> str:
    """Bytes as ``12 MB`` or ``1.5 GB``."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
