"""``fedsim reproduce``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli import options
from fedsim.cli.common import make_importable, repeatable, tracebacks
from fedsim.cli.dry_run import dry_run_options, show_estimate
from fedsim.cli.names import published_tables
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo
from fedsim.core.text import counted, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedsim.audit.published import Job, Result, Table


ALLOWED = ("data.dir", "model.weights", "evaluation.batch_size")
"""Keys of ``--set`` beside those of section engine."""


@click.command(
    cls=options.SettingsCommand,
    # where files are, and how runs are done; others belong to the table
    takes=lambda key: key in ("data.dir", "model.weights") or key.startswith("engine."),
    show_defaults=False,
    defaults=options.OF_SEVERAL_RUNS,
)
@click.argument("name", required=False, shell_complete=published_tables)
@options.several_option("--list", "listed", is_flag=True, help="Show all tables and their cost.")
@options.several_option(
    "--job",
    type=click.Choice(["scaled", "full"]),
    metavar="scaled|full",
    help="scaled: other data or a smaller network, tests claims alone; full: the protocol of the "
    "paper.  [default: scaled where there is one]",
)
@options.set_option(
    group="Files and settings",
    help="Set a key of the machine: those of section engine, data.dir, model.weights, "
    "evaluation.batch_size. Repeatable.",
)
@options.out_option(help="Directory of the job; runs/reproduce-NAME-JOB by default.")
@dry_run_options
@options.parallel_option
@options.verbose_option
@click.pass_context
def reproduce(
    ctx: click.Context,
    /,
    name: str | None,
    listed: bool,
    job: str | None,
    out: str | None,
    dry_run: bool,
    no_measure: bool,
    parallel: Literal["auto"] | int,
    flags: options.Settings,
) -> None:
    """Test a published table: a verdict on each number and claim.

    NAME is one of 'fedsim reproduce --list'. The job is a sweep of a preset, which the same command
    continues; its directory then has values.csv (what each run gave) and verdicts.csv.

    \b
      fedsim reproduce --list
      fedsim reproduce fedld_fig2 --dry-run
      fedsim reproduce fedld_fig2 --data-dir data/retinamnist
      fedsim reproduce fedld_table1_retina --job full --data-dir data/ --gpus-per-client 0.2

    A number is confirmed where the 90 % interval of the difference ours - published lies inside a
    margin fixed beforehand, contradicted where its 95 % interval lies outside, else not decidable.
    A claim that one method is above another is tested by a paired t test, with Holm's correction.
    """
    if listed:
        _list()
        return
    table, chosen = _table(name, job)
    for key, setting in flags.items():
        if key not in ALLOWED and not key.startswith("engine."):
            raise ConfigError(
                f"{setting.origin}: a table is tested with its own settings; allowed are those of "
                f"section engine, {', '.join(ALLOWED)}"
            )
    echo(f"{table.title} ({table.source})")
    from fedsim.audit import published
    from fedsim.display.progress import display
    from fedsim.storage.directories import folder_of
    from fedsim.studies import execute, plan
    from fedsim.studies import sweep as sweeps

    folder = folder_of(out, "reproduce", f"{table.name}-{chosen.name}")
    runs = f"{counted(chosen.runs, 'run')} of the preset {chosen.preset}"
    echo(f"{chosen.name} job: {runs}; data: {chosen.data}")
    with repeatable(ctx, lambda: ("the runs are", folder)):
        make_importable(chosen.experiment.settings, flags)
        if dry_run or no_measure:
            planned = sweeps.expand(chosen.experiment, flags, parallel=parallel)
            echo("\n".join(run.name for run in planned))
            show_estimate([run.config for run in planned], parallel, measured=not no_measure)
            return
        run_options = execute.RunOptions(
            verbose=tracebacks(ctx), displays=lambda: [display(final_table=False)]
        )
        ended = execute.run(plan.make(chosen.experiment, flags, parallel), folder, run_options)
        show_results(table, chosen, published.write(table, chosen, ended.runs, folder))
        echo(f"files: {folder}/{published.VALUES}, {folder}/{published.VERDICTS}")
        ended.check()


def _table(name: str | None, job: str | None) -> tuple[Table, Job]:
    """The table and its job of these names, by default the first."""
    from fedsim.audit import published

    if name is None:
        raise ConfigError("NAME is missing; 'fedsim reproduce --list' shows the tables")
    table = published.load(name)
    if not table.jobs:
        raise ConfigError(f"{name}: not testable here: {table.missing}")
    job = job or next(iter(table.jobs))
    if job not in table.jobs:
        raise ConfigError(f"--job {job}: {table.name} has the job {', '.join(table.jobs)}")
    return table, table.jobs[job]


def _list() -> None:
    """Prints all tables with their jobs."""
    from fedsim.audit import published
    from fedsim.display.tables import show

    rows = []
    for table in map(published.load, published.names()):
        if not table.jobs:
            row = {"table": table.name, "job": "-", "tests": _tests(table.numbers, ())}
            rows.append(row | {"runs": "-", "time": "not testable here"})
        for job in table.jobs.values():
            time = "not measured" if job.seconds is None else duration(job.seconds)
            row = {"table": table.name, "job": job.name, "tests": _tests(*table.tested(job))}
            rows.append(row | {"runs": str(job.runs), "time": time})
    show(rows)
    echo("time: on two busy cores")


def _tests(numbers: Sequence[object], claims: Sequence[object]) -> str:
    """``18 numbers, 15 claims``."""
    parts = {"number": numbers, "claim": claims}
    return ", ".join(counted(len(each), noun) for noun, each in parts.items() if each) or "-"


def show_results(table: Table, job: Job, results: Sequence[Result]) -> None:
    """Prints the verdicts of a job."""
    from fedsim.audit.published import counts
    from fedsim.display.tables import show

    tested = [part for parts in table.tested(job) for part in parts]
    shown = [r for r in results if r.result in tested]
    echo(f"unit: {table.unit}; equivalence margin {table.margin:g}; {job.data}")
    show([result.cells for result in shown])
    reasons = Counter(r.verdict.reason for r in results if r.result not in tested)
    for reason, count in reasons.items():
        echo(f"not testable here: {counted(count, 'number')} ({reason})")
    if job.about:
        echo(f"{job.name} job: {job.about}")
    words = counts(result.verdict.word for result in shown)
    echo("; ".join(f"{count} {word}" for word, count in words.items()))
