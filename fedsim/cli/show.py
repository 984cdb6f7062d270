"""``fedsim show``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from fedsim.cli.common import on_run
from fedsim.cli.options import format_option, verbose_option
from fedsim.core.terminal import echo


@click.command()
@on_run("runs", "[RUN]...", several=True, searches=True)
@format_option
@verbose_option
def show(runs: tuple[str, ...], form: str) -> None:
    """Show a run, a search, or in what several runs differ.

    RUN is a directory, by default the newest below runs/; the run may be unfinished. Of the
    settings those are shown that differ from the defaults. "best" is the value in the round with
    the best validation accuracy or, without a validation part, test accuracy, or primary measure of
    another task. Of a search by 'fedsim tune' its trials, the best one, and what that reached on
    fresh training seeds.

    Of several runs the settings are shown in which they differ, with the digests of the data and of
    the user's own code, and the results side by side. 'fedsim table' averages over seeds and tests
    differences.

    \b
      fedsim show runs/digits/fedld/RUN
      fedsim show runs/digits/fedld/RUN --format json
      fedsim show runs/digits/fedld/RUN runs/digits/fedavg/RUN
      fedsim show runs/tune-lr
    """
    from fedsim.cli import details, searches
    from fedsim.storage import directories

    search = directories.search_in(Path(runs[0])) if len(runs) == 1 else None
    if search is not None:
        if form == "json":
            echo(json.dumps(searches.details(search), indent=2))
        else:
            searches.show(search)
        return
    shown = [details.read(run) for run in runs]
    if form == "json":
        values = details.comparison(shown) if len(shown) > 1 else shown[0].values
        echo(json.dumps(values, indent=2))
    elif len(shown) > 1:
        details.show_comparison(shown)
    else:
        details.show(shown[0])
