"""``fedsim sweep``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli.common import folder_of, make_importable, repeatable, tracebacks, trackers_of
from fedsim.cli.names import preset_or_file
from fedsim.cli.options import (
    OF_SEVERAL_RUNS,
    GroupedOption,
    SettingsCommand,
    accept_option,
    out_option,
    parallel_option,
    set_any_option,
    track_option,
    verbose_option,
)
from fedsim.core.errors import FedsimError
from fedsim.core.plurals import counted
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Experiment, Settings
    from fedsim.engine.drivers import Drivers
    from fedsim.training.sweep import SweepRun


ALL_LISTED, LISTED = 1000, 20
"""``--dry-run`` checks and lists all runs up to this number; of more, so many."""


@click.command(cls=SettingsCommand, defaults=OF_SEVERAL_RUNS)
@click.argument("experiment", metavar="FILE|PRESET", shell_complete=preset_or_file)
@set_any_option
@out_option("Directory of the sweep; runs/sweep-NAME by default.")
@click.option(
    "--dry-run", is_flag=True, cls=GroupedOption, group="Files", help="Only list the runs."
)
@parallel_option
@track_option
@accept_option
@verbose_option
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    experiment: str,
    out: str | None,
    dry_run: bool,
    parallel: Literal["auto"] | int,
    track: tuple[str, ...],
    accept_changed_code: bool,
    flags: Settings,
) -> None:
    """Run a grid of experiments; finished runs are skipped.

    FILE is a YAML file of settings with a 'grid:' of lists; PRESET is a name of 'fedsim list
    presets'. Flags win over the file and replace an axis of the same key.

    \b
      fedsim sweep table3_small
      fedsim sweep table3_small --seed 0 --rounds 5       a quick look
      fedsim sweep table1_retina_split1 --data-dir data/ --gpus-per-client 0.2
      fedsim sweep my_grid.yaml --dry-run
      fedsim sweep my_grid.yaml --parallel 4              four runs at once

    As many runs as fit are executed at once ('--parallel auto'); results do not depend on that.
    Without a GPU, and unless an engine or a setting of Ray's is given, runs that fill the machine
    use the serial engine: one process each.

    Each run has its own directory in DIR; DIR/summary.csv has a row per run, DIR/aggregate.csv
    mean, standard deviation and 95 % interval over the seeds. If 'data.seed' is in the grid as well
    they are over the partitions, each with the mean over its seeds, as in 'fedsim table --unit
    partition'. A run that fails does not stop the others. After an interruption or a failure the
    same command continues: finished runs are skipped, unfinished ones resume from their newest
    checkpoint.
    """
    folder = folder_of(out, "sweep", experiment)
    with repeatable(ctx, "the runs are", folder):
        from fedsim.training import sweep as sweeps

        loaded = sweeps.load(experiment)
        make_importable(loaded.settings, flags)
        if dry_run:
            _list(loaded, flags, parallel)
            return
        from fedsim.core.machine import cores
        from fedsim.training import slots

        with ExitStack() as stack:
            some = sweeps.expand(loaded, flags, cores(), parallel, build=False)
            ahead = slots.start_ahead([run.config for run in some], parallel, stack)
            runs = sweeps.expand(loaded, flags, parallel=parallel)
            make = partial(slots.make_drivers, parallel=parallel, sessions=stack, ahead=ahead)
            trackers_of(track)  # refuses one that is not installed before anything starts
            table, failed = _run_missing(
                runs,
                folder,
                make,
                stack,
                tuple(dict.fromkeys(track)),
                tracebacks(ctx),
                accept_changed_code,
            )
    if len(failed) < len(runs):
        show_aggregate(table, max(run.config.train.rounds for run in runs))
        echo(f"files: {folder}/summary.csv, {folder}/aggregate.csv")
    if failed:
        raise FedsimError(
            f"{len(failed)} of {counted(len(runs), 'run')} failed (reasons above); the same "
            f"command tries {'them' if len(runs) > 1 else 'it'} again: {' '.join(failed)}"
        )


def _list(loaded: Experiment, flags: Settings, parallel: Literal["auto"] | int) -> None:
    """Checks and lists the runs of a sweep, of a very large one the first."""
    from fedsim.training import sweep as sweeps

    count = sweeps.size(loaded, flags)
    shortened = count > ALL_LISTED
    runs = sweeps.expand(loaded, flags, LISTED if shortened else None, parallel)
    echo("\n".join(run.name for run in runs))
    if shortened:
        most = f"; a sweep has at most {sweeps.MOST_RUNS:,}" if count > sweeps.MOST_RUNS else ""
        echo(f"... the first {len(runs)} of {count:,} runs{most}")


def _run_missing(
    runs: list[SweepRun],
    folder: Path,
    make: Callable[..., Drivers],
    stack: ExitStack,
    track: tuple[str, ...],
    verbose: bool,
    accept: bool,
) -> tuple[pd.DataFrame, list[str]]:
    """Does the runs that are not finished; the rows of aggregate.csv and the runs that failed."""
    from fedsim.core import files
    from fedsim.training import board, slots
    from fedsim.training import sweep as sweeps
    from fedsim.training.parallel import Follower, Here
    from fedsim.training.progress import display

    missing = sweeps.missing(runs, folder, accept_changed_code=accept)
    took = sweeps.seconds_of_groups(runs, folder)
    missing.sort(key=lambda run: -took.get(run.group, 0.0))  # the longest first
    configs = [run.config for run in missing]
    with ExitStack() as locked, stack:
        drivers = make(configs, callbacks=lambda: [display(final_table=False)])
        with files.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        locked.enter_context(files.lock(folder))
        if missing:
            echo(slots.introduction(_left(len(missing), len(runs)), drivers, configs))
        if isinstance(drivers, Here):
            follower: Follower = board.OneByOne([run.name for run in runs], verbose)
        else:
            shown = board.board_type()(
                total=len(runs),
                waiting=[run.name for run in missing],
                width=len(drivers.slots),
                group_of={run.name: run.group for run in runs}.__getitem__,
                took=took,
                verbose=verbose,
            )
            stack.callback(shown.close)
            follower = shown
        return sweeps.run_all(
            runs, missing, folder, drivers, follower, track, accept_changed_code=accept
        )


def _left(left: int, count: int) -> str:
    """``18 runs``, or ``3 of 18 runs left`` where the others are finished."""
    runs = counted(count, "run")
    return runs if left == count else f"{left} of {runs} left"


COLUMNS = {
    "final %": "final_test_accuracy",
    "best %": "best_test_accuracy",
    "last10 %": "last10_test_accuracy",
    "final balanced %": "final_test_balanced_accuracy",
}
"""Of the final table: the metric of aggregate.csv; one that no run has is left out."""


def show_aggregate(table: pd.DataFrame, rounds: int) -> None:
    """Prints the rows of aggregate.csv, with how many runs of each collapsed where any did.

    Args:
        table: aggregate.csv.
        rounds: of the longest run; the heading of the mean over the last ten says fewer, and for
            a single round, where it is the final accuracy, there is no such column.
    """
    from fedsim.training.tables import interval, show

    echo(
        "test accuracy in percent: mean +- half-width of its 95 % interval (t distribution over n "
        + (
            "partitions, each with the mean over its training seeds)"
            if (table["unit"] == "partition").any()
            else "seeds on one partition)"
        )
    )
    known = {head: c for head, c in COLUMNS.items() if table[f"{c}_mean"].notna().any()}
    if rounds == 1:
        known = {head: c for head, c in known.items() if not head.startswith("last10")}
    collapsed = table["collapsed"].fillna(0)
    rows = []
    for (_, line), count in zip(table.iterrows(), collapsed, strict=True):
        row = {"configuration": str(line["configuration"]) or "-", "n": str(line["n"])}
        for head, column in known.items():
            mean, half = line[f"{column}_mean"], line[f"{column}_ci95"]
            name = head.replace("last10", f"last{min(10, rounds)}")
            row[name] = interval(100 * mean, 100 * half, 2)
        if collapsed.any():
            row["collapsed"] = f"{count} of {line['runs']}" if count else "-"
        rows.append(row)
    show(rows)
    if collapsed.any():
        echo("collapsed: runs whose final balanced accuracy is at most that of chance, 1 / classes")
