"""``--dry-run``: what several runs will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fedsim.cli.options import several_option
from fedsim.core.machine import num_gpus
from fedsim.core.terminal import echo
from fedsim.core.text import counted, duration, megabytes

if TYPE_CHECKING:
    from fedsim.config.run import RunConfig
    from fedsim.studies.estimate import Measured

F = TypeVar("F", bound=Callable[..., Any])


def dry_run_options(function: F) -> F:
    """``--dry-run`` and ``--no-measure``."""
    unmeasured = several_option(
        "--no-measure", is_flag=True, help="As --dry-run, but train nothing and estimate no time."
    )
    dry = several_option(
        "--dry-run",
        is_flag=True,
        help="Only list the runs, with the estimated time, memory and GPU hours.",
    )
    return dry(unmeasured(function))


def show_estimate(
    configs: Sequence[RunConfig], parallel: Literal["auto"] | int, measured: bool = True
) -> None:
    """Prints what runs will take; with Ray one after the other, an upper bound."""
    from fedsim.display.tables import show
    from fedsim.studies import estimate
    from fedsim.studies.capacity import by_kind, local_runs, memory_of

    imports = time.process_time()  # of this process so far: what each process of a sweep will take
    kinds = by_kind(configs)
    addresses = {config.engine.address for config in configs if config.engine.kind == "ray"}
    at_once = 1 if addresses else local_runs(configs, parallel)
    rows, took = [], []
    for runs in kinds:
        one = estimate.measure(runs[0]) if measured else None
        rows.append(_row(runs, one))
        if one is not None:
            took += [one.seconds(run) for run in runs]
    echo()
    show(rows)
    side_by_side = f", {at_once} at once" if at_once > 1 else ""
    total = {"runs": f"{counted(len(configs), 'run')}{side_by_side}", "time": "not measured"}
    if took:
        seconds, gpus = imports + estimate.makespan(took, at_once), num_gpus()
        total["time"] = duration(seconds)
        if addresses - {None}:
            total["GPU hours"] = "not known: those of a cluster are not counted"
        elif gpus:
            total["GPU hours"] = f"{seconds / 3600 * gpus:.2f} ({counted(gpus, 'GPU')})"
    memory = at_once * max(memory_of(runs[0]) for runs in kinds)
    total["memory"] = f"{megabytes(memory)}, and the data"
    echo()
    show([{"": name, "estimate": text} for name, text in total.items()])


def _row(runs: Sequence[RunConfig], measured: Measured | None) -> dict[str, str]:
    """Runs of one kind: their number and rounds, and what was measured."""
    from fedsim.cli.doctor import gpu_rows
    from fedsim.engine.devices import trains_on_gpu

    first, rounds = runs[0], sorted(run.train.rounds for run in runs)
    method = f"{first.algorithm} + {first.server}" if first.server else first.algorithm
    row = {
        "runs": f"{method}, {first.data.name}, {first.model_name}, batch {first.train.batch_size}",
        "number": str(len(runs)),
        "rounds": " to ".join(map(str, dict.fromkeys([rounds[0], rounds[-1]]))),
    }
    if first.dp.level is not None or (first.attack.name is not None and measured is None):
        from fedsim.training.assemble import prepare  # imports torch, which takes seconds
        from fedsim.training.driver import checked_setup

        setup = checked_setup(first) if measured is None else prepare(first)  # which has warned
        if setup.budget is not None:
            row["noise"] = f"{setup.config.dp.noise:.4g}"
            row |= setup.budget.texts(rounds[-1])
    if measured is not None:
        row["s per round"] = f"{measured.round:.2g}"
        row["s per evaluation"] = f"{measured.evaluation:.2g}"
        row["time of a run"] = duration(measured.seconds(first))
    if trains_on_gpu(first.engine):
        row |= gpu_rows(first, first.engine.gpus_per_client or 1.0)
    return row
