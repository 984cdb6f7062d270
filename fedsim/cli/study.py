"""``fedsim study``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli.common import make_importable, repeatable, tracebacks, trackers_of
from fedsim.cli.dry_run import check_dry_run, dry_run_options, show_estimate
from fedsim.cli.names import files
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
from fedsim.cli.sweep import show_ended
from fedsim.core.terminal import echo
from fedsim.core.text import counted

if TYPE_CHECKING:
    from fedsim.config.experiments import Settings
    from fedsim.studies.execute import EndedStudy
    from fedsim.studies.study import StudyPlan


@click.command(cls=SettingsCommand, defaults=OF_SEVERAL_RUNS)
@click.argument("file", metavar="FILE", shell_complete=files)
@set_any_option
@out_option(help="Directory of the study; runs/study-NAME by default.")
@dry_run_options
@parallel_option
@track_option
@accept_option
@verbose_option
@click.pass_context
def study(
    ctx: click.Context,
    /,
    file: str,
    out: str | None,
    dry_run: bool,
    measure: bool | None,
    gpu_price: float | None,
    parallel: Literal["auto"] | int,
    track: tuple[str, ...],
    accept_changed_code: bool,
    flags: Settings,
) -> None:
    """Tune methods on partitions with equal budgets, then compare them.

    FILE is a YAML file of settings with 'methods:' and 'partitions:' (rows 'NAME: {KEY: VALUE}'; of
    partitions also a list of seeds), 'search:' as in 'fedsim tune' (for one method under its name),
    'trials:' of each method on each partition, and 'seeds:' of the comparison. A key stands in one
    place: the search, a method or a partition.

    \b
      fedsim study launch/study_small.yaml --dry-run
      fedsim study launch/study_small.yaml --out runs/study
      fedsim table runs/study/runs --by label --out table.tex

    Each method is tuned on each partition by its validation part (DIR/tuning, DIR/chosen.csv),
    then trained with the chosen settings on training seeds that the tuning has not used
    (DIR/runs), and reported (DIR/report). Needs the extra 'tune'.

    After an interruption or a failure the same command continues. DIR/comparison.yaml is the
    comparison as a file for 'fedsim sweep'.
    """
    from fedsim.storage.directories import folder_of

    check_dry_run(dry_run, measure, gpu_price)
    folder = folder_of(out, "study", file)
    with repeatable(ctx, "the runs are", folder):
        from fedsim.config import study as study_files
        from fedsim.studies import study as studies

        read = study_files.read(Path(file))
        layers = [row.settings for row in (*read.partitions, *read.methods)]
        make_importable(read.experiment.settings, *layers, flags)
        trackers_of(track)  # refuses one that is not installed before anything starts
        plan = studies.make(read, flags, parallel)
        if plan.untuned:
            echo(f"not tuned, nothing to search: {', '.join(plan.untuned)}")
        if dry_run:
            _list(plan)
            configs = plan.configs
            show_estimate(configs, parallel, measure=measure is not False, gpu_price=gpu_price)
            return
        from fedsim.studies import execute

        how = execute.How(
            trackers=tuple(dict.fromkeys(track)),
            accept_changed_code=accept_changed_code,
            verbose=tracebacks(ctx),
        )
        ended = execute.study(plan, folder, Path(file).name, how)
        _show_chosen(ended)
        try:
            show_ended(ended, folder / studies.RUNS, _names(plan))
        finally:
            if len(ended.failed) < len(ended.runs):
                echo(f"wrote {execute.report(plan, folder)}")


def _list(plan: StudyPlan) -> None:
    """Prints what a study tunes, and the numbers of trials and runs."""
    for cell, search in plan.searches:
        keys = ", ".join(search.proposer.space)
        echo(f"{cell.title}: {counted(search.count, 'trial')} over {keys}")
    trials = sum(search.count for _, search in plan.searches)
    echo(f"tuning: {counted(trials, 'trial')}, {counted(plan.tuning_runs, 'run')}")
    seeds = ", ".join(map(str, plan.seeds))
    echo(
        f"comparison: {counted(plan.compared_runs, 'run')}, "
        f"{counted(len(plan.cells), 'row')} with training seeds {seeds}"
    )


def _names(plan: StudyPlan) -> dict[str, dict[str, str]]:
    """By configuration of the comparison: method and, where partitions have names, partition."""
    from fedsim.studies.sweep import plain

    return {
        f"method={plain(cell.name)}": {"method": cell.method}
        | ({"partition": cell.partition} if cell.partition else {})
        for cell in plan.cells
    }


def _show_chosen(ended: EndedStudy) -> None:
    """Prints what was chosen for each method and partition."""
    from fedsim.display.tables import show

    fixed = ("method", "partition", "trial", "metric", "value", "trials")
    named = any(row["partition"] for row in ended.chosen)
    shown = []
    for row in ended.chosen:
        cells = {"method": row["method"]} | ({"partition": row["partition"]} if named else {})
        cells |= {key: value for key, value in row.items() if key not in fixed}
        cells |= {str(row["metric"]): row["value"], "trials": row["trials"]}
        shown.append({key: _text(value) for key, value in cells.items()})
    echo("chosen on the validation part")
    show(shown)


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
