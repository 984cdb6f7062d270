"""``fedsim show`` and ``fedsim compare``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedsim.cli.names import folders
from fedsim.cli.options import format_option, verbose_option
from fedsim.core.errors import ConfigError
from fedsim.core.terminal import echo


@click.command()
@click.argument("run", metavar="RUN", shell_complete=folders)
@format_option
@verbose_option
def show(run: str, form: str) -> None:
    """Show one run: its settings, results and curves; or a search: its best trials.

    RUN is its directory; the run may be unfinished. Of the settings those are shown that differ
    from the defaults. "best" is the value in the round with the best validation accuracy or,
    without a validation part, test accuracy. Of a search by 'fedsim tune': how its trials ended,
    the best one, its file best.yaml, and what it reached on fresh training seeds.

    \b
      fedsim show runs/digits/fedld/RUN
      fedsim show runs/digits/fedld/RUN --format json
      fedsim show runs/tune-lr
    """
    from fedsim.cli import details, searches
    from fedsim.storage import directories

    search = directories.search_in(Path(run))
    if search is not None:
        if form == "json":
            echo(json.dumps(searches.details(search), indent=2))
        else:
            searches.show(search)
    elif form == "json":
        echo(json.dumps(details.read(run).values, indent=2))
    else:
        details.show(details.read(run))


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN RUN...", shell_complete=folders)
@format_option
@verbose_option
def compare(runs: tuple[str, ...], form: str) -> None:
    """Compare runs: the settings in which they differ, and their results.

    The runs may be of different methods, data sets and versions of fedsim. Beside the settings, the
    digests of the data and of the user's own code are compared. A setting that a method or data set
    does not have is "-". To average over seeds and to test differences use 'fedsim table'.

    \b
      fedsim compare runs/digits/fedld/RUN runs/digits/fedavg/RUN
    """
    from fedsim.cli import details

    if len(runs) < 2:
        raise ConfigError(f"RUN: at least two are needed, {len(runs)} given")
    compared = [details.read(run) for run in runs]
    if form == "json":
        echo(json.dumps(details.comparison(compared), indent=2))
    else:
        details.show_comparison(compared)
