"""``fedsim sweep``, ``tune`` and ``study``: many runs, by what their file holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import click

from fedsim.cli import options, searches
from fedsim.cli.common import make_importable, repeatable, tracebacks, trackers_of
from fedsim.cli.dry_run import dry_run_options, show_estimate
from fedsim.cli.names import preset_or_file
from fedsim.core.errors import ConfigError, FedsimError
from fedsim.core.measures import CONSTANT, Measures
from fedsim.core.rows import WHEN, metric_column
from fedsim.core.searches import PRUNERS, SAMPLERS
from fedsim.core.terminal import echo
from fedsim.core.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Experiment, Settings
    from fedsim.studies.execute import Outcome
    from fedsim.studies.plan import Plan

Names = Mapping[str, Mapping[str, str]]
MOST_RUNS = 10_000
"""The number in :data:`fedsim.config.experiments.MOST_RUNS`."""
search_option = partial(click.option, cls=options.GroupedOption, group="Search", default=None)


def of_several_runs(kind: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function of experiment, context, flags and options."""
    decorators = (
        click.argument("experiment", metavar="FILE|PRESET", shell_complete=preset_or_file),
        options.set_any_option,
        options.out_option(help=f"Directory of the results; runs/{kind}-NAME by default."),
        dry_run_options,
        options.parallel_option,
        options.track_option,
        options.accept_option,
        options.verbose_option,
        click.pass_context,
    )

    def command(function: Callable[..., Any]) -> click.Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        cls, defaults = options.SettingsCommand, options.OF_SEVERAL_RUNS
        return click.command(cls=cls, defaults=defaults)(function)

    return command


@of_several_runs("sweep")
def sweep(ctx: click.Context, /, **parameters: Any) -> None:
    """Run a grid of experiments; finished runs are skipped.

    FILE is a YAML file of settings with a 'grid:' of lists; PRESET is a name of 'fedsim list
    presets'. Flags win over the file and replace an axis of the same key. A file with 'search:' is
    done as by 'fedsim tune', one with 'methods:' as by 'fedsim study'.

    \b
      fedsim sweep table3_small --seed 0 --rounds 5       a quick look
      fedsim sweep table1_retina_split1 --data-dir data/ --gpus-per-client 0.2
      fedsim sweep my_grid.yaml --dry-run                 what it will take

    As many runs as fit are executed at once; results do not depend on that. Without a GPU, runs
    that fill the machine use the serial engine unless another is given.

    DIR/summary.csv has a row per run, DIR/aggregate.csv mean, standard deviation and 95 % interval
    over the seeds, or over the partitions if 'data.seed' is in the grid. A run that fails does not
    stop the others. Afterwards the same command continues: unfinished runs resume from their
    newest checkpoint.
    """
    _do(ctx, **parameters)


@search_option(
    "--trials",
    type=click.IntRange(1, MOST_RUNS),
    metavar="N",
    help="Number of trials; a larger one continues the search.  [default: 25; of a grid all]",
)
@search_option(
    "--by",
    metavar="METRIC",
    help="Metric on the validation part: val_accuracy, val_balanced_accuracy, val_auc, val_loss, "
    "or val_NAME of another measure of the task, as val_rmse.  [default: the primary one]",
)
@search_option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    help="How trials are proposed; grid: all combinations of choice(...) and int(...).  [default: "
    "tpe]",
)
@search_option(
    "--sampler-seed",
    type=click.IntRange(0, 2**64 - 1),
    metavar="N",
    help="Seed of the sampler; --seed is that of training.  [default: 0]",
)
@search_option(
    "--pruner",
    type=click.Choice(PRUNERS),
    help="Stops bad trials early: below the median, or, of asha, all but the best third.  "
    "[default: median]",
)
@search_option(
    "--confirm",
    type=click.IntRange(1, MOST_RUNS),
    metavar="K",
    help="Train the K best trials again on fresh training seeds; best.yaml is the best on them.",
)
@search_option(
    "--search",
    "searched",
    multiple=True,
    metavar="KEY=FORM",
    help="Search over a key, as in the section 'search:' of a file. Repeatable.",
)
@of_several_runs("tune")
def tune(ctx: click.Context, /, **parameters: Any) -> None:
    """Search hyperparameters by the validation part, with Optuna.

    FILE is a YAML file of settings with a section 'search:' of lines 'KEY: FORM', where FORM is
    uniform(a, b), loguniform(a, b), int(a, b) or choice(a, b, ...). A flag takes the place of a
    searched key. Needs the extra 'tune'.

    \b
      fedsim tune my_search.yaml --trials 40 --confirm 3
      fedsim tune table3_small -a fedld --val-fraction 0.1 --search 'train.lr=choice(0.01, 0.1)'

    A trial is a run for each training seed, those of 'grid: {seed: [0, 1, 2]}' or --seed. Its value
    is the mean over them of the metric after the last evaluated round. The test part is not used.

    DIR has trials.csv, best.yaml (for 'fedsim run --config') and the runs of each trial; 'fedsim
    report DIR' plots the search. After an interruption the same command continues to the same
    trials.csv.
    """
    _do(ctx, "tune", **parameters)


@of_several_runs("study")
def study(ctx: click.Context, /, **parameters: Any) -> None:
    """Tune methods on partitions with equal budgets, then compare them.

    FILE is a YAML file of settings with 'methods:' and 'partitions:' (rows 'NAME: {KEY: VALUE}'; of
    partitions also a list of seeds), 'search:' as in 'fedsim tune' (for one method under its name),
    'trials:' of each method on each partition, and 'seeds:' of the comparison. Needs the extra
    'tune'.

    \b
      fedsim study launch/study_small.yaml --out runs/study
      fedsim table runs/study/runs --by label --out table.tex

    Each method is tuned on each partition by its validation part (DIR/tuning, DIR/chosen.csv),
    then trained with the chosen settings on training seeds that the tuning has not used
    (DIR/runs), and reported (DIR/report). After an interruption or a failure the same command
    continues.
    """
    _do(ctx, "study", **parameters)


def _do(
    ctx: click.Context,
    kind: str | None = None,
    *,
    experiment: str,
    flags: Settings,
    out: str | None,
    dry_run: bool,
    no_measure: bool,
    parallel: Literal["auto"] | int,
    track: tuple[str, ...],
    accept_changed_code: bool,
    searched: Sequence[str] = (),
    **budget: Any,
) -> None:
    """Does what the file says, which must be of this ``kind``; ``budget`` is of the search."""
    place: tuple[str, Path] | None = None
    with repeatable(ctx, lambda: place):
        from fedsim.storage.directories import folder_of
        from fedsim.studies import execute
        from fedsim.studies import plan as plans

        loaded = _load(experiment, kind, searched, budget)
        folder = folder_of(out, loaded.kind, experiment)
        place = "the search is" if loaded.kind == "tune" else "the runs are", folder
        rows = (*loaded.partitions, *loaded.methods)
        make_importable(loaded.settings, *(row.settings for row in rows), flags)
        trackers_of(track)  # refuses one that is not installed before anything starts
        plan = plans.make(loaded, flags, parallel, Path(experiment).name)
        if plan.untuned:
            echo(f"not tuned, nothing to search: {', '.join(plan.untuned)}")
        if dry_run or no_measure:
            _list(plan)
            show_estimate(plan.configs, parallel, measured=not no_measure)
            return
        from fedsim.display.progress import display

        run_options = execute.RunOptions(
            trackers=tuple(dict.fromkeys(track)),
            accept_changed_code=accept_changed_code,
            verbose=tracebacks(ctx),
            displays=lambda: [display(final_table=False)] if plan.grid else [],
        )
        outcome = execute.run(plan, folder, run_options)
        if loaded.kind == "study":
            _show_study(plan, outcome, folder)
    if loaded.kind == "tune":
        _show_search(outcome, folder, confirm=loaded.confirm > 0)
    if plan.grid:
        names = {run.group: {"configuration": run.title} for run in outcome.runs}
        _show_ended(outcome, folder, names)


def _load(
    name: str, kind: str | None, searched: Sequence[str], budget: Mapping[str, Any]
) -> Experiment:
    """The file or preset with the options of the search; refuses one of another kind."""
    from fedsim.config.search import from_flags
    from fedsim.studies import sweep as sweeps

    loaded = sweeps.load(name)
    loaded = replace(
        loaded,
        search={**loaded.search, **from_flags(searched)},
        **{key: value for key, value in budget.items() if value is not None},
    )
    if kind in (None, loaded.kind):
        return loaded
    if kind == "study":
        raise ConfigError(f"{name}: a study needs 'methods:', lines 'NAME: {{algorithm: ...}}'")
    if loaded.kind == "study":
        raise ConfigError(f"{name}: is the file of a study, see 'fedsim study --help'")
    raise ConfigError(
        f"{name}: there is nothing to search: give a section 'search:' with lines such as "
        "'train.lr: loguniform(0.001, 1)' in the file, or --search KEY=FORM"
    )


def _list(plan: Plan) -> None:
    """Prints the runs of a grid, or what is tuned, and the numbers of trials and runs."""
    if plan.grid:
        echo("\n".join(run.name for run in plan.grid))
        return
    for _, search in plan.searches:
        title = f"{search.title}: " if search.title else ""
        echo(f"{title}{counted(search.count, 'trial')} over {', '.join(search.proposer.space)}")
    trials = sum(search.count for _, search in plan.searches)
    echo(f"tuning: {counted(trials, 'trial')}, {counted(plan.tuning_runs, 'run')}")
    if plan.file.methods:
        seeds = ", ".join(map(str, plan.seeds))
        runs, rows = len(plan.cells) * len(plan.seeds), counted(len(plan.cells), "row")
        echo(f"comparison: {counted(runs, 'run')}, {rows} with training seeds {seeds}")


def _show_search(outcome: Outcome, folder: Path, *, confirm: bool) -> None:
    """Prints the search; fails where no trial is confirmed, if any was to be."""
    from fedsim.storage.directories import search_in

    (tuning,) = outcome.tunings
    best = tuning.leaders[0]
    search = search_in(folder)
    if search is not None:
        searches.show(search)
    rows = [] if outcome.confirmed is None else outcome.confirmed.to_dict("records")
    written = ["trials.csv", "best.yaml", *(["confirm.csv"] if rows else [])]
    echo("files: " + ", ".join(f"{folder}/{name}" for name in written))
    if confirm and (not rows or rows[0]["failed"]):
        raise FedsimError(
            f"{folder}: none of the best trials finished on all fresh seeds with a finite metric; "
            f"best.yaml has trial {best.number}, the best of the search, which is not "
            "confirmed: search a narrower space, or confirm more trials with a larger --confirm"
        )


def _show_study(plan: Plan, outcome: Outcome, folder: Path) -> None:
    """Prints what was chosen, the table of the comparison, and where the report is."""
    from fedsim.display.tables import show
    from fedsim.studies import execute
    from fedsim.studies import plan as plans
    from fedsim.studies import sweep as sweeps

    echo("chosen on the validation part")
    rows = plans.chosen_rows(plan, plans.best_trials(plan, outcome.tunings))
    show([{key: _text(value) for key, value in row.items()} for row in rows])
    names = {
        f"method={sweeps.plain(cell.name)}": {"method": cell.method}
        | ({"partition": cell.partition} if cell.partition else {})
        for cell in plan.cells
    }
    try:
        _show_ended(outcome, folder / plans.RUNS, names)
    finally:
        if len(outcome.failed) < len(outcome.runs):
            echo(f"wrote {execute.report(plan, folder)}")


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_ended(outcome: Outcome, folder: Path, names: Names) -> None:
    """Prints the table of the runs in a folder; fails where a run did."""
    if outcome.table is not None and len(outcome.failed) < len(outcome.runs):
        import pandas as pd

        from fedsim.storage.status import environment

        rounds = max(run.config.train.rounds for run in outcome.runs)
        by = pd.read_csv(folder / "summary.csv", usecols=["best_by"])["best_by"].unique()
        records = [environment(folder / run.name) for run in outcome.runs]
        measures = {one.task: one for one in map(Measures.of, records)}
        show_aggregate(
            outcome.table, rounds, names, [*measures.values()], by_validation="val" in by
        )
        echo(f"files: {folder}/summary.csv, {folder}/aggregate.csv")
    outcome.check()


COLUMNS = {
    "final %": "final_test_accuracy",
    "best %": "best_test_accuracy",
    "last10 %": "last10_test_accuracy",
    "final balanced %": "final_test_balanced_accuracy",
}
"""Of the final table: the metric of aggregate.csv; one that no run has is left out."""


def columns_of(measures: Measures) -> dict[str, tuple[str, float]]:
    """By heading the metric of aggregate.csv and a factor; of classes :data:`COLUMNS`."""
    if measures.of_classes:
        return {head: (column, 100.0) for head, column in COLUMNS.items()}
    first, scores = measures.primary, measures.scores
    takes = [(first, when) for when in WHEN]
    takes += [(name, "final") for name, score in scores.items() if score.takes and name != first]
    columns = {}
    for name, when in takes:
        percent = scores[name].unit == "%"
        head = f"{when} {scores[name].title}{' %' * percent}"
        columns[head] = metric_column("test", name, when), 100.0 if percent else 1.0
    return columns


def show_aggregate(
    table: pd.DataFrame,
    rounds: int,
    names: Names = MappingProxyType({}),
    measures: Sequence[Measures] = (Measures(),),
    *,
    by_validation: bool = False,
) -> None:
    """Prints the rows of aggregate.csv, by configuration named by some cells or by itself.
    ``rounds`` are those of the longest run. With ``by_validation`` the best round is chosen on the
    validation part, so that its test accuracy may be below the final one."""
    from fedsim.display.tables import interval, show

    units = "seeds on one partition)"
    if (table["unit"] == "partition").any():
        units = "partitions, each with the mean over its training seeds)"
    titles = [m.title + " in percent" * (m.scores[m.primary].unit == "%") for m in measures]
    echo(
        f"test {' and '.join(titles)}: mean +- half-width of its 95 % interval (t distribution "
        f"over n {units}"
    )
    every = [item for one in measures for item in columns_of(one).items()]
    present = table.columns[table.notna().any()]
    columns = {h: c for h, c in every if f"{c[0]}_mean" in present}
    if rounds == 1:
        columns = {head: c for head, c in columns.items() if not head.startswith("last10")}
    last, best = f"last{min(10, rounds)}", "best by val." if by_validation else "best"
    collapsed = table["collapsed"].fillna(0)
    rows = []
    for (_, line), count in zip(table.iterrows(), collapsed, strict=True):
        configuration = str(line["configuration"])
        named = names.get(configuration) or {"configuration": configuration}
        row = {key: cell or "-" for key, cell in named.items()} | {"n": str(line["n"])}
        for head, (column, factor) in columns.items():
            mean, half = line[f"{column}_mean"], line[f"{column}_ci95"]
            shown = head.replace("last10", last).replace("best", best)
            row[shown] = interval(factor * mean, factor * half, 4 if factor == 1 else 2)
        if collapsed.any():
            row["collapsed"] = f"{count} of {line['runs']}" if count else "-"
        rows.append(row)
    show(rows)
    for one in measures:
        best_mean, final = (table[f"{one.column('test', when)}_mean"] for when in ("best", "final"))
        if (best_mean > final if one.lowest else best_mean < final).any():
            echo(
                f"best: in the round that is best on the validation part, where test {one.title} "
                f"may be {'above' if one.lowest else 'below'} that of the last round"
            )
    if collapsed.any():
        chance = "runs whose final balanced accuracy is at most that of chance, 1 / classes"
        classes = all(one.of_classes for one in measures)
        echo(f"collapsed: {chance if classes else f'runs whose final model is {CONSTANT}'}")
