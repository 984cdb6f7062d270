"""``fedsim verify``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from fedsim.cli.common import make_run_importable, on_run
from fedsim.cli.options import (
    GroupedCommand,
    GroupedOption,
    WordOrNumber,
    accept_option,
    format_option,
    verbose_option,
)
from fedsim.core.errors import exit_status
from fedsim.core.terminal import echo
from fedsim.core.text import counted
from fedsim.training.signals import handled

if TYPE_CHECKING:
    from fedsim.audit.recorded import Difference
    from fedsim.audit.verify import Verification
    from fedsim.studies.verify import Drawn

what_option = partial(click.option, cls=GroupedOption, group="What is verified")


@click.command(cls=GroupedCommand)
@on_run("path", "[RUN|SWEEP]", sweeps=True, importable=False)
@what_option(
    "--rounds",
    type=WordOrNumber("all", 9),
    default=3,
    show_default=True,
    metavar="N|all",
    help="Number of rounds that are drawn and done again, of each run.",
)
@what_option(
    "--sample",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of finished runs that are drawn of a sweep.",
)
@what_option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed of the draw; unset: a new one, which is printed.",
)
@what_option(
    "--data-dir",
    metavar="DIR",
    help="Where the runs' data are on this machine, if not where they were.",
)
@what_option(
    "--allow-code",
    is_flag=True,
    help="Also run the functions (module:function, FILE.py:function) that the runs name, with your "
    "rights. Without it such a run is refused, the functions are named, and none is imported.",
)
@accept_option
@format_option
@verbose_option
def verify(
    path: str,
    rounds: int | Literal["all"],
    sample: int,
    seed: int | None,
    data_dir: str | None,
    form: str,
    accept_changed_code: bool,
    allow_code: bool,
) -> None:
    """Do rounds of a run again and compare everything byte for byte.

    RUN is a run directory, finished or not, by default the newest below runs/; of a SWEEP some runs
    are drawn. Each drawn round starts from the nearest earlier checkpoint, and all rounds on the
    way are compared, too. Nothing is written into RUN, and code that it names is run with
    --allow-code alone. On another kind of processor, or with other versions of torch and NumPy, a
    run is never verified, but consistent within what rounding explains, which is no proof.

    Exit status: 0 verified or consistent, 1 something differs (the first difference is named), 2
    not possible.

    \b
      fedsim verify runs/digits/fedld/RUN
      fedsim verify runs/digits/fedld/RUN --rounds all
      fedsim verify runs/sweep-table3_small --sample 3 --seed 7
      fedsim verify runs/retinamnist/fedld/RUN --data-dir ~/data/retina
    """
    ctx = click.get_current_context()
    from fedsim.studies import verify as proofs

    try:
        with handled():  # so that no temporary folder stays after SIGTERM
            wanted = proofs.drawn(Path(path), sample=sample, seed=seed)
            if allow_code:
                for run in wanted.runs:
                    make_run_importable(run)
            found = []
            for each in wanted.verified(
                rounds=rounds,
                data_dir=data_dir,
                accept_changed_code=accept_changed_code,
                allow_code=allow_code,
            ):
                found.append(each)
                if form == "table":
                    _show(each, path if wanted.runs == (wanted.folder,) else each.run.name)
            table = wanted.tables(found)
            if form == "json":
                echo(json.dumps(_values(wanted, found, table), indent=2))
            else:
                _show_sweep(wanted, table)
    except KeyboardInterrupt as interrupt:
        echo("interrupted", err=True)
        ctx.exit(exit_status(interrupt))
    if table is not None or any(each.differences for each in found):
        ctx.exit(1)


def _show(found: Verification, name: str) -> None:
    """What was found of a run, in a few lines."""
    from fedsim.audit.verify import CONSISTENT, VERIFIED

    done = found.num_executed
    echo(f"{name}: {counted(found.rounds, 'round')}")
    if not found.finished:
        echo(f"  unfinished {found.rounds} of {found.planned} rounds, no summary.csv")
    elif found.planned > found.rounds:
        echo(f"  ended      after {found.rounds} of {found.planned} rounds")
    drawn = "all" if len(found.drawn) == found.rounds else ", ".join(map(str, found.drawn))
    echo(f"  drawn      {drawn} (seed {found.seed})")
    spans = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in found.executed)
    if done:
        models = f" and {counted(found.models, 'model')}" if found.models else ""
        same = f"{found.equal:,} of {found.cells:,} cells are the same"
        how = same if found.others else "byte for byte"
        echo(f"  done again {counted(done, 'round')} ({spans}): {found.rows} rows{models}, {how}")
    if found.others:
        echo(f"  elsewhere  {found.others}")
    for words in found.not_compared:
        echo(f"  unknown    {words}: not compared")
    for difference in found.differences:
        echo(f"  differs    {difference}")
    if found.others and found.differences:
        echo(
            "  note       last digits differ there, and more with each round and layer: verify on "
            "the kind of the run, or from nearer checkpoints (engine.keep_every=1)"
        )
    chance = f"; one wrong round would have been found with probability {found.coverage:.2g}"
    outcomes = {
        VERIFIED: "verified" + ("" if found.coverage == 1 else chance),
        CONSISTENT: f"consistent within {within(found)}; not a proof",
    }
    echo(f"  {outcomes.get(found.outcome, 'NOT verified')}")


def within(found: Verification) -> str:
    """How far the numbers of a run of another processor are from those of now."""
    flips = f" and at most {counted(found.flips, 'other prediction')}" if found.flips else ""
    return f"{found.largest:.2g}{flips}"


def _show_sweep(wanted: Drawn, table: Difference | None) -> None:
    """What was found of a sweep as a whole."""
    if wanted.runs == (wanted.folder,):
        return
    echo(f"{len(wanted.runs)} of {len(wanted.finished)} finished runs drawn (seed {wanted.seed})")
    if wanted.unfinished:
        runs = counted(len(wanted.unfinished), "run")
        echo(f"  unfinished {runs} of the grid: {', '.join(wanted.unfinished)}")
    for name in wanted.missing:
        echo(f"  unknown    {name} is missing: not compared")
    if wanted.beside_grid:
        left = ", ".join(wanted.beside_grid)
        echo(f"  left out   not of the grid in sweep.json, nor of its tables: {left}")
    if table is not None:
        echo(f"  differs    {table}")
    elif (wanted.folder / "aggregate.csv").exists():
        echo("  summary.csv and aggregate.csv are what the runs give")


def _values(
    wanted: Drawn, found: list[Verification], table: Difference | None
) -> dict[str, object]:
    """The same for programs."""
    from fedsim.audit.verify import CONSISTENT, DIFFERS, VERIFIED

    outcomes = {each.outcome for each in found} | ({DIFFERS} if table is not None else set())
    worst = next(each for each in (DIFFERS, CONSISTENT, VERIFIED) if each in outcomes)
    return {
        "outcome": worst,
        "seed": wanted.seed,
        "finished_runs": len(wanted.finished),
        "not_of_the_grid": wanted.beside_grid,
        "unfinished_runs": wanted.unfinished,
        "missing": wanted.missing,
        "verified": worst == VERIFIED,
        "runs": [
            {
                "run": str(each.run),
                "outcome": each.outcome,
                "planned": each.planned,
                "finished": each.finished,
                "seed": each.seed,
                "rounds": each.rounds,
                "drawn": list(each.drawn),
                "executed": [list(span) for span in each.executed],
                "rows": each.rows,
                "models": each.models,
                "others": each.others,
                "largest": each.largest,
                "flips": each.flips,
                "cells": each.cells,
                "equal": each.equal,
                "not_compared": each.not_compared,
                "differences": [str(difference) for difference in each.differences],
            }
            for each in found
        ],
        "tables": None if table is None else str(table),
    }
