"""``python -m analysis``: tables and figures from run directories."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import click

from analysis import curves, partition, style, table
from analysis.errors import AnalysisError
from analysis.runs import Group, find, group, summaries

P = ParamSpec("P")
FILE = click.Path(path_type=Path, dir_okay=False)
runs_argument = click.argument(
    "dirs", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
by_option = click.option(
    "--by", multiple=True, default=("algorithm",), show_default="algorithm", metavar="COLUMN",
    help="Column of summary.csv that tells the groups apart; may be given several times.",
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
@plainly
def table_command(dirs: Sequence[Path], out: Path | None, by: Sequence[str]) -> None:
    """Final, best and last-10 accuracy per method, mean and standard deviation over seeds."""
    if out is not None and out.suffix not in table.FORMATS:
        raise AnalysisError(f"{out}: a table is a file named {', '.join(table.FORMATS)}")
    if out is not None and not out.parent.is_dir():
        raise AnalysisError(f"{out}: the folder {out.parent} does not exist")
    rows = table.summarise(_groups(dirs, by))
    if out is None:
        click.echo(table.markdown(rows), nl=False)
        return
    out.write_text(table.FORMATS[out.suffix](rows), encoding="utf-8", newline="\n")
    click.echo(f"wrote {out}")


def _groups(dirs: Sequence[Path], by: Sequence[str]) -> list[Group]:
    finished, unfinished = find(dirs)
    for run in unfinished:
        click.echo(f"left out {run}: no summary.csv, the run has not finished", err=True)
    return group(summaries(finished), by)


if __name__ == "__main__":
    main(prog_name="python -m analysis")
