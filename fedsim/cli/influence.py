"""``fedsim influence``."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli import options
from fedsim.cli.common import check_new_file, on_run, records, write_table
from fedsim.cli.names import files
from fedsim.core.terminal import echo
from fedsim.core.text import counted

if TYPE_CHECKING:
    import pandas as pd

measure_option = partial(click.option, cls=options.GroupedOption, group="What to measure")


@click.command(cls=options.SettingsCommand, takes=options.changeable, show_defaults=False)
@on_run()
@measure_option(
    "--rounds",
    default="all",
    show_default=True,
    metavar="LIST",
    help="Rounds, such as 1,4,8-10. Those between them are done again too.",
)
@measure_option(
    "--metric",
    default="step",
    show_default=True,
    metavar="NAME",
    help="What a client's influence is on: the step of the round, or a score of the model after "
    "it, such as val_loss.",
)
@measure_option(
    "--shapley/--no-shapley",
    default=True,
    show_default=True,
    help="Shapley values beside leave-one-out: exact for cohorts of at most 10 clients, else "
    "estimated from random orders.",
)
@measure_option(
    "--permutations",
    type=click.IntRange(2, 10**6),
    default=64,
    show_default=True,
    metavar="N",
    help="Random orders in each round, for cohorts of more than 10 clients.",
)
@options.files_option(
    "--out", metavar="FILE", shell_complete=files, help="A CSV file: a row per round and client."
)
@options.files_option(
    "--figure",
    metavar="FILE",
    shell_complete=files,
    help="A figure (.png, .pdf or .svg) of who helped and who hurt.",
)
@options.set_option(group="Engine", help="Another key of section engine. Repeatable.")
@options.accept_option
@options.format_option
@options.verbose_option
def influence(
    run: str,
    rounds: str,
    metric: str,
    out: str | None,
    figure: str | None,
    form: str,
    flags: options.Settings,
    **choices: Any,
) -> None:
    """Who helped and who hurt: the influence of each client on a run.

    The rounds are done again up to the server; its rule then aggregates the same updates without
    one client, or for every coalition of clients. RUN stays as it is. Positive is help: a longer
    way along the round's step, a lower loss, a higher accuracy, a better value of another measure.

    \b
      fedsim influence RUN
      fedsim influence RUN --metric val_loss --out influence.csv --figure who.png
      fedsim influence RUN --rounds 1-10 --no-shapley --format json
    """
    for flag, file in (("--out", out), ("--figure", figure)):
        if file is not None:
            check_new_file(Path(file), flag)
    if figure is not None and Path(figure).suffix not in (".png", ".pdf", ".svg"):
        raise click.UsageError(f"--figure {figure}: a figure is named .png, .pdf or .svg")
    from fedsim.audit.influence import influence as measured
    from fedsim.audit.influence import parse_rounds
    from fedsim.core.analysis import analysis

    rows = parse_rounds(rounds)
    frame = measured(run, rounds=rows, metric=metric, overrides=flags, **choices)
    drawing = analysis("influence")
    sums = drawing.summed(frame)
    if form == "json":
        parts = {"metric": metric, "clients": records(sums), "rounds": records(frame)}
        echo(json.dumps(parts, indent=2))
    else:
        _show(frame, sums, drawing.UNITS.get(metric, f"gain in {metric}"))
    if out is not None:
        write_table(frame, out, form)
    if figure is not None:
        drawing.draw(frame, Path(figure))
        echo(f"file  {figure}", err=form == "json")


def _show(frame: pd.DataFrame, sums: pd.DataFrame, gain: str) -> None:
    """The clients' sums, and what all gained together."""
    from fedsim.display.tables import show

    total = frame.groupby("round")["total"].first()
    echo(f"{gain}, {counted(len(total), 'round')}: {total.sum():.6g} by all clients together")
    show(
        [
            {
                "client": str(row["name"]) or str(row["client_id"]),
                "rounds": str(row["rounds"]),
                "leave-one-out": _number(row["leave_one_out"]),
                "Shapley": _number(row["shapley"], row["shapley_error"]),
            }
            for row in sums.to_dict("records")
        ]
    )


def _number(value: float, error: float = 0.0) -> str:
    """``+0.0123 +- 0.0045``; ``-`` where there is none."""
    if math.isnan(value):
        return "-"
    return f"{value:+.4g}" + (f" +- {error:.2g}" if error > 0 else "")
