"""``fedsim sweep``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli.common import make_importable, repeatable, tracebacks, trackers_of
from fedsim.cli.dry_run import check_dry_run, dry_run_options, show_estimate
from fedsim.cli.names import preset_or_file
from fedsim.cli.options import (
    OF_SEVERAL_RUNS,
    SettingsCommand,
    accept_option,
    out_option,
    parallel_option,
    set_any_option,
    track_option,
    verbose_option,
)
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Experiment, Settings
    from fedsim.config.run import RunConfig
    from fedsim.studies.execute import Ended


Names = Mapping[str, Mapping[str, str]]
ALL_LISTED, LISTED = 1000, 20
"""``--dry-run`` checks and lists all runs up to this number; of more, so many."""


@click.command(cls=SettingsCommand, defaults=OF_SEVERAL_RUNS)
@click.argument("experiment", metavar="FILE|PRESET", shell_complete=preset_or_file)
@set_any_option
@out_option(help="Directory of the sweep; runs/sweep-NAME by default.")
@dry_run_options
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
    measure: bool | None,
    gpu_price: float | None,
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
      fedsim sweep my_grid.yaml --dry-run                 what it will take
      fedsim sweep my_grid.yaml --parallel 4              four runs at once

    As many runs as fit are executed at once ('--parallel auto'); results do not depend on that.
    Without a GPU, and unless an engine or a setting of Ray's is given, runs that fill the machine
    use the serial engine: one process each. So do runs one at a time on at most 8 cores.

    Each run has its own directory in DIR; DIR/summary.csv has a row per run, DIR/aggregate.csv
    mean, standard deviation and 95 % interval over the seeds. If 'data.seed' is in the grid as well
    they are over the partitions, each with the mean over its seeds, as in 'fedsim table --unit
    partition'. A run that fails does not stop the others. After an interruption or a failure the
    same command continues: finished runs are skipped, unfinished ones resume from their newest
    checkpoint.
    """
    from fedsim.storage.directories import folder_of

    check_dry_run(dry_run, measure, gpu_price)
    folder = folder_of(out, "sweep", experiment)
    with repeatable(ctx, "the runs are", folder):
        from fedsim.studies import sweep as sweeps

        loaded = sweeps.load(experiment)
        make_importable(loaded.settings, flags)
        if dry_run:
            configs = _list(loaded, flags, parallel)
            if configs:
                show_estimate(configs, parallel, measure=measure is not False, gpu_price=gpu_price)
            return
        from fedsim.display.progress import display
        from fedsim.studies import execute

        trackers_of(track)  # refuses one that is not installed before anything starts
        how = execute.How(
            trackers=tuple(dict.fromkeys(track)),
            accept_changed_code=accept_changed_code,
            verbose=tracebacks(ctx),
            displays=lambda: [display(final_table=False)],
        )
        ended = execute.sweep(loaded, flags, folder, parallel, how)
    show_ended(ended, folder, {run.group: {"configuration": run.title} for run in ended.runs})


def show_ended(ended: Ended, folder: Path, names: Names) -> None:
    """Prints the table of a sweep in a folder; ``names`` are those of :func:`show_aggregate`.

    Raises:
        FedsimError: a run failed.
    """
    if len(ended.failed) < len(ended.runs):
        import pandas as pd

        rounds = max(run.config.train.rounds for run in ended.runs)
        by = pd.read_csv(folder / "summary.csv", usecols=["best_by"])["best_by"].unique()
        show_aggregate(ended.table, rounds, names, by_validation="val" in by)
        echo(f"files: {folder}/summary.csv, {folder}/aggregate.csv")
    ended.check()


def _list(loaded: Experiment, flags: Settings, parallel: Literal["auto"] | int) -> list[RunConfig]:
    """Checks and lists the runs of a sweep; of a very large one the first, and returns none."""
    from fedsim.studies import sweep as sweeps

    count = sweeps.size(loaded, flags)
    shortened = count > ALL_LISTED
    runs = sweeps.expand(loaded, flags, LISTED if shortened else None, parallel)
    echo("\n".join(run.name for run in runs))
    if shortened:
        most = f"; a sweep has at most {sweeps.MOST_RUNS:,}" if count > sweeps.MOST_RUNS else ""
        echo(f"... the first {len(runs)} of {count:,} runs{most}")
    return [] if shortened else [run.config for run in runs]


COLUMNS = {
    "final %": "final_test_accuracy",
    "best %": "best_test_accuracy",
    "last10 %": "last10_test_accuracy",
    "final balanced %": "final_test_balanced_accuracy",
}
"""Of the final table: the metric of aggregate.csv; one that no run has is left out."""


def show_aggregate(
    table: pd.DataFrame,
    rounds: int,
    names: Names = MappingProxyType({}),
    *,
    by_validation: bool = False,
) -> None:
    """Prints the rows of aggregate.csv, with how many runs of each collapsed where any did.

    Args:
        table: aggregate.csv.
        rounds: of the longest run; the heading of the mean over the last ten says fewer, and for
            a single round, where it is the final accuracy, there is no such column.
        names: by configuration the cells that say what it is; without them, its own name.
        by_validation: whether the best round is chosen on the validation part, so that its test
            accuracy may be below the final one; the heading then says so.
    """
    from fedsim.display.tables import interval, show

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
        own = str(line["configuration"])
        named = names.get(own) or {"configuration": own}
        row = {key: cell or "-" for key, cell in named.items()} | {"n": str(line["n"])}
        for head, column in known.items():
            mean, half = line[f"{column}_mean"], line[f"{column}_ci95"]
            name = head.replace("last10", f"last{min(10, rounds)}")
            name = name.replace("best %", "best by val. %") if by_validation else name
            row[name] = interval(100 * mean, 100 * half, 2)
        if collapsed.any():
            row["collapsed"] = f"{count} of {line['runs']}" if count else "-"
        rows.append(row)
    show(rows)
    best, final = (table[f"{COLUMNS[head]}_mean"] for head in ("best %", "final %"))
    if (best < final).any():
        echo(
            "best: in the round that is best on the validation part, where test accuracy may be "
            "below that of the last round"
        )
    if collapsed.any():
        echo("collapsed: runs whose final balanced accuracy is at most that of chance, 1 / classes")
