"""``fedsim replay``."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsim.cli import options
from fedsim.cli.common import check_new_file, on_run, records, write_table
from fedsim.cli.names import files
from fedsim.core.terminal import echo

if TYPE_CHECKING:
    import pandas as pd

    from fedsim.audit.replay import Replay

CHANGE = "What to change"
ROUNDING = 1e-12
"""Relative; a client that trained in another way differs by more than single precision."""


rounds_option = partial(
    click.option, cls=options.GroupedOption, group="Rounds", type=click.IntRange(1, 10**9)
)


def client(text: str) -> int | str:
    """A client given as ``client:12``, ``client:NAME``, or without the word."""
    return options.number_or_name(text.removeprefix("client:"))


@click.command(
    cls=options.SettingsCommand,
    takes=lambda key: key in ("server", "margin") or options.changeable(key),
    more={"attack.name": "--attack"},
    show_defaults=False,
)
@on_run()
@rounds_option("--round", required=True, metavar="R", help="The first round.")
@rounds_option("--until", metavar="S", help="The last round; unset: the first one.")
@click.option(
    "--without",
    type=client,
    multiple=True,
    cls=options.GroupedOption,
    group=CHANGE,
    metavar="client:K|NAME",
    help="Leave a client out, given by number or by the name of its site or hospital; nobody takes "
    "its place. Repeatable.",
)
@options.set_option(
    group=CHANGE,
    help="Another setting: train.lr=0.1, fedgh.order=ascending. Keys of section evaluation hold "
    "for both sides: evaluation.decompose_every=1. Repeatable.",
)
@options.files_option(
    "--out", metavar="FILE", shell_complete=files, help="A CSV file with all quantities, by client."
)
@options.accept_option
@options.format_option
@options.verbose_option
def replay(
    run: str,
    round: int,
    until: int | None,
    without: tuple[int | str, ...],
    out: str | None,
    accept_changed_code: bool,
    form: str,
    flags: options.Settings,
) -> None:
    """Do rounds of a run again with one thing changed.

    Both sides start from the state of the run before round R; what the change replaces on the
    server starts afresh. RUN stays as it is. Without a change the rounds are compared with what the
    run wrote, byte for byte; the exit status is then 1 where they differ.

    \b
      fedsim replay RUN --round 3
      fedsim replay RUN --round 3 --without client:12
      fedsim replay RUN --round 3 --until 10 --server fedgh --out fedgh.csv
      fedsim replay RUN --round 3 --margin none --set evaluation.decompose_every=1
    """
    if out is not None:
        check_new_file(Path(out), "--out")
    from fedsim.audit.replay import replay as again
    from fedsim.config.keys import FREE

    made = again(
        run,
        round,
        until,
        without=without,
        settings={key: value for key, value in flags.items() if key not in FREE},
        overrides={key: value for key, value in flags.items() if key in FREE},
        accept_changed_code=accept_changed_code,
    )
    table = made.table
    if form == "json":
        about = {"changes": made.changes, "fresh": made.fresh, "unlike": made.unlike}
        echo(json.dumps({**about, "quantities": records(table)}, indent=2))
    else:
        _show(made, table)
    if out is not None:
        write_table(table, out, form)
    if made.unlike and not made.replayed:
        click.get_current_context().exit(1)


def _show(made: Replay, table: pd.DataFrame) -> None:
    """The quantities of all clients, round by round, and how many clients differ."""
    from fedsim.display.tables import show

    numbers = sorted(set(table["round"]))
    span = f"round {numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
    if not made.replayed:
        same = "is not what this machine computes" if made.unlike else "the same bytes again"
        echo(f"{made.unlike or span}: {same}")
        return
    echo(f"{span}: {', '.join(made.changes)}")
    for part in made.fresh:
        echo(f"starts afresh: {part}")
    for _, rows in table.groupby("round"):
        common = rows[rows["client_id"].isna()].rename(columns={"replayed": "replay"})
        same_rows = common["difference"] == 0
        differing = common[~same_rows].drop(columns="client_id").map(_text).astype(str)
        columns = list(map(str, differing))
        show([dict(zip(columns, row, strict=True)) for row in differing.to_numpy().tolist()])
        if same := ", ".join(common.loc[same_rows, "quantity"]):
            echo(f"the same: {same}")
        echo(of_clients(rows[rows["client_id"].notna()]))


def of_clients(rows: pd.DataFrame) -> str:
    """How many clients did the same on both sides, and which are on one side alone."""
    sides = rows.groupby("client_id")[["original", "replayed"]].count()
    alone = list(sides.index[(sides == 0).any(axis=1)])
    differs = rows["difference"].abs() > ROUNDING * rows["original"].abs()
    both = differs.groupby(rows["client_id"]).any().drop(alone)
    gone = f"; on one side alone: {', '.join(map(str, alone))}" if alone else ""
    return f"clients: {(~both).sum()} of {len(both)} trained the same{gone}"


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.6g}"
