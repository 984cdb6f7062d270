"""``fedsim sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli.common import make_importable, show_notes, show_traceback
from fedsim.cli.names import preset_or_file
from fedsim.cli.options import (
    GroupedOption,
    SettingsCommand,
    out_option,
    set_any_option,
    track_option,
    verbose_option,
)
from fedsim.core.errors import FedsimError, exit_status

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Settings
    from fedsim.config.run import RunConfig
    from fedsim.training.sweep import SweepRun


ALL_LISTED, LISTED = 1000, 20
"""``--dry-run`` checks and lists all runs up to this number; of more, so many."""


@click.command(cls=SettingsCommand)
@click.argument("experiment", metavar="FILE|PRESET", shell_complete=preset_or_file)
@set_any_option
@out_option("Directory of the sweep; runs/sweep-NAME by default.")
@click.option(
    "--dry-run", is_flag=True, cls=GroupedOption, group="Files", help="Only list the runs."
)
@track_option
@verbose_option
@click.pass_context
def sweep(
    ctx: click.Context,
    /,
    experiment: str,
    out: str | None,
    dry_run: bool,
    track: tuple[str, ...],
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

    Each run has its own directory in DIR; DIR/summary.csv has a row per run, DIR/aggregate.csv
    mean, standard deviation and 95 % interval over the seeds. A run that fails does not stop the
    others. After an interruption or a failure the same command continues: finished runs are
    skipped, unfinished ones resume from their newest checkpoint.
    """
    from fedsim.training import sweep as sweeps

    name, loaded = sweeps.load(experiment)
    make_importable(loaded.settings, flags)
    count = sweeps.size(loaded, flags)
    shortened = dry_run and count > ALL_LISTED
    runs = sweeps.expand(loaded, flags, first=LISTED if shortened else None)
    folder = Path(out) if out else Path("runs") / f"sweep-{name}"
    if dry_run:
        click.echo("\n".join(run.name for run in runs))
        if shortened:
            most = f"; a sweep has at most {sweeps.MOST_RUNS:,}" if count > sweeps.MOST_RUNS else ""
            click.echo(f"... the first {len(runs)} of {count:,} runs{most}")
        return
    _run_missing(ctx, runs, folder, list(dict.fromkeys(track)))


def _run_missing(
    ctx: click.Context, runs: list[SweepRun], folder: Path, track: Sequence[str]
) -> None:
    from fedsim.training import driver, resume, signals
    from fedsim.training import sweep as sweeps
    from fedsim.training.progress import display
    from fedsim.training.trackers import tracker

    for name in track:
        tracker(name)  # refuses one that is not installed before anything starts
    sweeps.check_out(runs, folder)
    missing = [run for run in runs if not resume.is_complete(run.config, folder / run.name)]
    on_ray = [run.config.engine for run in missing if run.config.engine.kind == "ray"]
    session = None

    def start(config: RunConfig, out: Path) -> None:
        shown = display(final_table=False)
        callbacks = [shown, *(tracker(name) for name in track)]
        ray = session if config.engine.kind == "ray" else None
        try:
            if resume.can_resume(config, out):
                driver.resume(out, resume.placement(config), callbacks, ray, progress=False)
            else:
                driver.run(config, out, callbacks, ray, progress=False)
        except FedsimError as error:
            show_traceback(ctx, error)
            raise
        finally:
            shown.close()

    try:
        with signals.handled(), ExitStack() as sessions:
            if on_ray:
                from fedsim.engine.ray.pool import Session

                session = sessions.enter_context(Session(on_ray[0]))
            table, failed = sweeps.run_all(runs, folder, start)
    except KeyboardInterrupt as interrupt:
        click.echo(f"interrupted; the runs are in {folder}, the same command continues", err=True)
        show_notes(interrupt)
        ctx.exit(exit_status(interrupt))
    if len(failed) < len(runs):
        show_aggregate(table)
        click.echo(f"files: {folder}/summary.csv, {folder}/aggregate.csv")
    if failed:
        raise FedsimError(
            f"{len(failed)} of {len(runs)} runs failed; the same command tries them again: "
            + " ".join(failed)
        )


COLUMNS = {
    "final %": "final_test_accuracy",
    "best %": "best_test_accuracy",
    "last10 %": "last10_test_accuracy",
    "final balanced %": "final_test_balanced_accuracy",
}
"""Of the final table: the metric of aggregate.csv; one that no run has is left out."""


def show_aggregate(table: pd.DataFrame) -> None:
    """Prints the rows of aggregate.csv, with how many runs of each collapsed where any did."""
    from fedsim.training.tables import show

    click.echo(
        "test accuracy in percent: mean +- half-width of its 95 % interval (t distribution over n "
        "seeds)"
    )
    known = {head: c for head, c in COLUMNS.items() if table[f"{c}_mean"].notna().any()}
    collapsed = table["collapsed"].fillna(0)
    rows = []
    for (_, line), count in zip(table.iterrows(), collapsed, strict=True):
        row = {"configuration": str(line["configuration"]) or "-", "n": str(line["n"])}
        for head, column in known.items():
            mean, half = line[f"{column}_mean"], line[f"{column}_ci95"]
            interval = f" +- {100 * half:.2f}" if half == half else ""
            row[head] = f"{100 * mean:.2f}{interval}" if mean == mean else "-"
        if collapsed.any():
            row["collapsed"] = f"{count} of {line['n']}" if count else "-"
        rows.append(row)
    show(rows)
    if collapsed.any():
        click.echo(
            "collapsed: runs whose final balanced accuracy is at most that of chance, 1 / classes"
        )
