"""``fedsim tune``."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli import searches
from fedsim.cli.common import make_importable, repeatable, tracebacks, trackers_of
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
from fedsim.core.searches import METRICS, PRUNERS, SAMPLERS
from fedsim.core.terminal import echo
from fedsim.core.text import counted

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.config.experiments import Settings
    from fedsim.display.board import Board
    from fedsim.storage.trials import Trial
    from fedsim.studies.parallel import Drivers
    from fedsim.studies.search import SearchPlan
    from fedsim.studies.tune import Tuning

MOST_RUNS = 10_000
"""The number in :data:`fedsim.studies.sweep.MOST_RUNS`."""
search_option = partial(click.option, cls=GroupedOption, group="Search")


@click.command(cls=SettingsCommand, defaults=OF_SEVERAL_RUNS)
@click.argument("experiment", metavar="FILE|PRESET", shell_complete=preset_or_file)
@search_option(
    "--trials",
    type=click.IntRange(1, MOST_RUNS),
    metavar="N",
    help="Number of trials; the same command with a larger number continues the search.  [default: "
    "25; with --sampler grid all]",
)
@search_option(
    "--by",
    type=click.Choice(METRICS),
    metavar="METRIC",
    default="val_accuracy",
    show_default=True,
    help="Metric on the validation part: val_accuracy, val_balanced_accuracy, val_auc (maximised) "
    "or val_loss (minimised).",
)
@search_option(
    "--sampler",
    type=click.Choice(SAMPLERS),
    default="tpe",
    show_default=True,
    help="How trials are proposed; grid: all combinations of choice(...) and int(...).",
)
@search_option(
    "--sampler-seed",
    type=click.IntRange(0, 2**64 - 1),
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of the sampler; --seed is that of training.",
)
@search_option(
    "--pruner",
    type=click.Choice(PRUNERS),
    default="median",
    show_default=True,
    help="Stops bad trials early. median: below the median of complete trials, after a quarter of "
    "the rounds; asha: all but the best third, after a ninth and a third of the rounds.",
)
@search_option(
    "--confirm",
    type=click.IntRange(1, MOST_RUNS),
    metavar="K",
    help="Train the K best trials again on fresh training seeds; the best of those that finish on "
    "all of them is best.yaml.",
)
@search_option(
    "--search",
    "searched",
    multiple=True,
    metavar="KEY=FORM",
    help="Search over a key, as in the section 'search:' of a file. Repeatable.",
)
@set_any_option
@out_option(help="Directory of the search; runs/tune-NAME by default.")
@parallel_option
@track_option
@accept_option
@verbose_option
@click.pass_context
def tune(
    ctx: click.Context,
    /,
    experiment: str,
    trials: int | None,
    by: str,
    sampler: str,
    sampler_seed: int,
    pruner: str,
    confirm: int | None,
    searched: tuple[str, ...],
    out: str | None,
    parallel: Literal["auto"] | int,
    track: tuple[str, ...],
    accept_changed_code: bool,
    flags: Settings,
) -> None:
    """Search hyperparameters by the validation part, with Optuna.

    FILE is a YAML file of settings with a section 'search:' of lines 'KEY: FORM', where FORM is
    uniform(a, b), loguniform(a, b), int(a, b) or choice(a, b, ...); PRESET is a name of 'fedsim
    list presets'. A flag takes the place of a searched key. What trials are compared under (data,
    evaluation, seeds, clock, attack, participation, communication, privacy) is not searched. Needs
    the extra 'tune'.

    \b
      fedsim tune my_search.yaml --trials 40 --confirm 3
      fedsim tune table3_small -a fedld --val-fraction 0.1 --search 'train.lr=choice(0.01, 0.1)'
      fedsim tune my_search.yaml --sampler grid --by val_loss --parallel 4

    A trial is a run for each training seed, those of 'grid: {seed: [0, 1, 2]}' or --seed. Its value
    is the mean over them of the metric after the last evaluated round. The test part is not
    used. A trial with a run that diverges counts as failed, and the search continues.

    DIR has trials.csv, best.yaml (for 'fedsim run --config' and 'fedsim sweep') and the runs of
    each trial; 'fedsim report DIR' plots the search. After an interruption the same command
    continues, and trials.csv is the same as without the interruption.
    """
    from fedsim.storage.directories import folder_of

    folder = folder_of(out, "tune", experiment)
    with repeatable(ctx, "the search is", folder):
        from fedsim.config.search import from_flags
        from fedsim.core import files
        from fedsim.studies import sweep as sweeps
        from fedsim.studies.search import make_plan
        from fedsim.studies.tune import Tuning

        loaded = sweeps.load(experiment)
        make_importable(loaded.settings, flags)
        plan = make_plan(
            loaded,
            flags,
            from_flags(searched),
            by=by,
            sampler=sampler,
            pruner=pruner,
            sampler_seed=sampler_seed,
            count=trials,
            parallel=parallel,
        )
        trackers_of(track)  # refuses one that is not installed before anything starts
        Tuning(plan, folder).check_trials(accept_changed_code)  # refused before it is made
        with ExitStack() as stack:
            with files.writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.lock(folder))
            chosen = tuple(dict.fromkeys(track))
            search = Tuning(plan, folder, chosen, accept_changed_code)
            confirmed = _search(stack, search, min(confirm or 0, plan.count), tracebacks(ctx))
    _show(search, confirmed, confirm is not None)


def _search(stack: ExitStack, search: Tuning, confirm: int, verbose: bool) -> pd.DataFrame | None:
    """Runs the trials, then the best ones on fresh seeds; returns the table of these."""
    from fedsim.identity.resume import is_complete
    from fedsim.storage.trials import best
    from fedsim.studies import capacity
    from fedsim.studies import confirm as confirming

    names, plan = search.names, search.plan
    count = len(names)
    if names:
        count += confirm * len(confirming.fresh_seeds(plan))
    else:
        again = confirming.runs_of(plan, best(search.ended, plan.proposer.by)[:confirm])
        folder = search.out / confirming.FOLDER
        count += sum(not is_complete(run.config, folder / run.name) for run in again)
        nothing = "" if count else "; nothing to do"
        echo(f"{counted(len(search.ended), 'trial')} done already{nothing}")
    configs = list(islice(cycle(plan.examples), count))
    drivers = capacity.make_drivers(configs, plan.parallel, stack)
    if names:
        echo(capacity.introduction(_left(search), drivers, configs))
    with ExitStack() as shown:
        search.run(drivers, _board(shown, names, drivers, plan, verbose))
    leaders = best(search.ended, plan.proposer.by)[:confirm]
    return _confirm(search, leaders, drivers, verbose) if leaders else None


def _left(search: Tuning) -> str:
    """``25 trials of 2 runs``, or ``15 of 25 trials left``."""
    plan, left = search.plan, len(search.names) // len(search.plan.seeds)
    trials = counted(plan.count, "trial")
    seeds = f" of {len(plan.seeds)} runs" if len(plan.seeds) > 1 else ""
    return f"{trials}{seeds}" if left == plan.count else f"{left} of {trials}{seeds} left"


def _confirm(
    search: Tuning, leaders: list[Trial], drivers: Drivers, verbose: bool
) -> pd.DataFrame | None:
    """Trains the best trials on fresh seeds; None where no run finished."""
    from fedsim.studies import confirm
    from fedsim.studies import sweep as sweeps

    plan, folder = search.plan, search.out / confirm.FOLDER
    runs = confirm.runs_of(plan, leaders)
    accept = search.accept_changed_code
    missing = sweeps.missing(runs, folder, accept_changed_code=accept)
    if missing:
        numbers = ", ".join(str(trial.number) for trial in leaders)
        seeds = ", ".join(map(str, confirm.fresh_seeds(plan)))
        echo(f"training trials {numbers} again with the fresh seeds {seeds}")
    with ExitStack() as shown:
        board = _board(shown, [run.name for run in missing], drivers, plan, verbose)
        table, failed = sweeps.run_all(
            runs,
            missing,
            folder,
            drivers,
            board,
            search.trackers,
            accept_changed_code=accept,
        )
    if failed:
        echo(f"failed on fresh seeds: {' '.join(failed)}", err=True)
    finished = [run.name for run in runs if run.name not in failed]
    if not finished:
        return None
    return confirm.write_confirmed(plan, search.out, leaders, finished, table)


def _board(
    stack: ExitStack, names: list[str], drivers: Drivers, plan: SearchPlan, verbose: bool
) -> Board:
    """The display of the runs, which does not show test metrics."""
    from fedsim.display.board import board_type

    shown = board_type()(
        total=len(names),
        waiting=list(names),
        width=len(drivers.slots),
        group_of=lambda _: "",
        verbose=verbose,
        metric=plan.proposer.by,
        lines=False,
    )
    stack.callback(shown.close)
    return shown


def _show(search: Tuning, confirmed: pd.DataFrame | None, confirm: bool) -> None:
    """Prints the best trial, and how the others ended.

    Args:
        search: all of it.
        confirmed: the table of the best trials on fresh seeds, if any run of them finished.
        confirm: whether there should be one.

    Raises:
        FedsimError: no trial is complete, or none on the fresh seeds.
    """
    from fedsim.storage.trials import best

    ended, by, folder = search.ended, search.plan.proposer.by, search.out
    states = Counter(trial.state for trial in ended)
    counts = ", ".join(f"{states[s]} {s}" for s in ("complete", "pruned", "failed") if states[s])
    leaders = best(ended, by)
    if not leaders:
        reason = next((f": {trial.error}" for trial in ended if trial.error), "")
        raise FedsimError(f"{folder}: no trial is complete ({counts}){reason}")
    echo(f"{counted(len(ended), 'trial')}: {counts}")
    seeds = search.plan.seeds
    over = f" (mean over {len(seeds)} training seeds)" if len(seeds) > 1 else ""
    searches.show_best(by, leaders[0].number, leaders[0].value or 0.0, leaders[0].params, over)
    written = ["trials.csv", "best.yaml"]
    if confirmed is not None:
        searches.show_confirmed(by, confirmed.to_dict("records"))
        chosen = leaders[0].number if confirmed["failed"].iloc[0] else confirmed["trial"].iloc[0]
        echo(f"best.yaml has trial {chosen}")
        written.append("confirm.csv")
    echo("files: " + ", ".join(f"{folder}/{name}" for name in written))
    if confirm and (confirmed is None or confirmed["failed"].iloc[0]):
        raise FedsimError(
            f"{folder}: none of the best trials finished on all fresh seeds with a finite {by}; "
            f"best.yaml has trial {leaders[0].number}, the best of the search, which is not "
            "confirmed: search a narrower space, or confirm more trials with a larger --confirm"
        )
