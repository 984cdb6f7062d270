"""``python -m analysis``: tables and figures from run directories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import click
import pandas as pd

from analysis import asked, curves, formats, partition, report, select, style, table
from analysis.errors import AnalysisError
from analysis.runs import Group, find, group, summaries
from analysis.stats import TESTS, Test

P = ParamSpec("P")
FILE = click.Path(path_type=Path, dir_okay=False)
runs_argument = click.argument(
    "dirs", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
by_option = click.option(
    "--by", multiple=True, default=("algorithm",), show_default="algorithm", metavar="COLUMN",
    help="Column of summary.csv that tells the groups apart, algorithm with its server and margin; "
    "may be given several times.",
)  # fmt: skip


def plainly(command: Callable[P, None]) -> Callable[P, None]:
    """Bad input ends the command with one line and exit status 2."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except AnalysisError as error:
            click.echo(f"Error: {error}", err=True)
            raise click.exceptions.Exit(2) from error

    return wrapped


@click.group()
def main() -> None:
    """Tables and figures from the CSV files of run directories.

    A DIR is a run directory (it has a rounds.csv) or any folder above run directories.
    """


@main.command("curves")
@runs_argument
@click.option("--out", required=True, type=FILE, help="Figure to write: .png, .pdf or .svg.")
@by_option
@click.option(
    "--metric", "metrics", multiple=True, type=click.Choice(list(curves.METRICS)),
    default=("test_accuracy", "test_loss"), show_default="test_accuracy, test_loss",
    help="Column of rounds.csv, a panel each; may be given several times.",
)  # fmt: skip
@click.option(
    "--smooth", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="Moving mean over the last N evaluated rounds.",
)  # fmt: skip
@plainly
def curves_command(
    dirs: Sequence[Path], out: Path, by: Sequence[str], metrics: Sequence[str], smooth: int
) -> None:
    """Learning curves per method: mean and 95 % t interval over seeds."""
    style.save(curves.figure(_groups(dirs, by), metrics, smooth), out)
    click.echo(f"wrote {out}")


@main.command("partition")
@click.argument("source", metavar="DIR_OR_CSV", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=FILE, help="Figure to write: .png, .pdf or .svg.")
@plainly
def partition_command(source: Path, out: Path) -> None:
    """Training samples by client and class, from a partition.csv."""
    style.save(partition.figure(partition.load(source)), out)
    click.echo(f"wrote {out}")


@main.command("table")
@runs_argument
@click.option("--out", type=FILE, help="File to write: .md, .csv or .tex; else Markdown is shown.")
@by_option
@click.option(
    "--metric", "metrics", multiple=True, type=click.Choice(list(asked.TABLES)),
    default=tuple(table.METRICS), show_default=", ".join(table.METRICS),
    help="What the table shows; a table each, may be given several times.",
)  # fmt: skip
@click.option("--columns", metavar="COLUMN", help="Column of summary.csv: a column per value.")
@click.option("--baseline", metavar="METHOD", help="Compare with this method, over common seeds.")
@click.option(
    "--test", type=click.Choice(list(TESTS)), default="t", show_default=True,
    help="Paired test: Student's t, or Wilcoxon's signed ranks.",
)  # fmt: skip
@plainly
def table_command(
    dirs: Sequence[Path], out: Path | None, by: Sequence[str], metrics: Sequence[str],
    columns: str | None, baseline: str | None, test: Test,
) -> None:  # fmt: skip
    """Accuracies or loss terms per method: mean, spread and 95 % t interval over seeds."""
    _check(out, list(formats.FORMATS))
    request = asked.Request(_summaries(dirs), by, columns, baseline, test)
    tables = [one for metric in metrics for one in asked.TABLES[metric](request, metric)]
    for metric in metrics:
        for run in asked.left_out(request, metric):
            click.echo(f"left out {run}: no rows in {asked.FILES[metric]}.csv", err=True)
    if out is None:
        click.echo(formats.markdown(tables), nl=False)
        return
    out.write_text(formats.FORMATS[out.suffix](tables), encoding="utf-8", newline="\n")
    click.echo(f"wrote {out}")


@main.command("report")
@runs_argument
@click.option(
    "--out", required=True, type=click.Path(path_type=Path),
    help="Folder for report.html, figures/ and tables/: new, empty, or of an earlier report.",
)  # fmt: skip
@by_option
@click.option("--baseline", metavar="METHOD", help="Compare with this method, over common seeds.")
@click.option("--title", metavar="TEXT", help="Heading of the page.")
@plainly
def report_command(
    dirs: Sequence[Path], out: Path, by: Sequence[str], baseline: str | None, title: str | None
) -> None:
    """Every table and figure that the runs have, and one page of HTML that shows them."""
    report.told(report.write(dirs, out, by, baseline, title))


@main.command("select")
@runs_argument
@click.option(
    "--by", required=True, multiple=True, metavar="COLUMN",
    help="Column of summary.csv whose value is chosen; with several, their combination.",
)  # fmt: skip
@click.option(
    "--within", multiple=True, default=("algorithm",), show_default="algorithm", metavar="COLUMN",
    help="Column of summary.csv: a choice for each of its values; may be given several times.",
)  # fmt: skip
@click.option("--out", type=FILE, help="CSV file for the chosen values.")
@plainly
def select_command(
    dirs: Sequence[Path], by: Sequence[str], within: Sequence[str], out: Path | None
) -> None:
    """Chooses a hyperparameter by the mean validation accuracy over seeds."""
    _check(out, [".csv"])
    shown = select.choose(_summaries(dirs), by, within)
    click.echo(formats.markdown([shown]), nl=False)
    if out is not None:
        select.chosen(shown).to_csv(out, index=False, lineterminator="\n")
        click.echo(f"wrote {out}")


def _check(out: Path | None, suffixes: Sequence[str]) -> None:
    if out is not None and out.suffix not in suffixes:
        raise AnalysisError(f"{out}: a table is a file named {', '.join(suffixes)}")
    if out is not None and not out.parent.is_dir():
        raise AnalysisError(f"{out}: the folder {out.parent} does not exist")


def _summaries(dirs: Sequence[Path]) -> pd.DataFrame:
    finished, unfinished = find(dirs)
    for run in unfinished:
        click.echo(f"left out {run}: no summary.csv, the run has not finished", err=True)
    return summaries(finished)


def _groups(dirs: Sequence[Path], by: Sequence[str]) -> list[Group]:
    return group(_summaries(dirs), by)


if __name__ == "__main__":
    main(prog_name="python -m analysis")
