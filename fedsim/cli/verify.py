"""``fedsim verify``."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    from fedsim.audit.sweeps import Drawn
    from fedsim.audit.tables import Difference
    from fedsim.audit.verify import Verification

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
    from fedsim.audit import sweeps
    from fedsim.audit.verify import verify as verified

    try:
        with handled():  # so that no temporary folder stays after SIGTERM
            drawn = sweeps.drawn(Path(path), sample=sample, seed=seed)
            if allow_code:
                for run in drawn.runs:
                    make_run_importable(run)
            results = []
            for number, run in enumerate(drawn.runs):
                result = verified(
                    run,
                    rounds=rounds,
                    seed=drawn.seed + number,
                    data_dir=data_dir,
                    accept_changed_code=accept_changed_code,
                    allow_code=allow_code,
                )
                results.append(result)
                if form == "table":
                    _show(result, run.name if drawn.is_sweep else path)
            table = drawn.difference(elsewhere=any(each.others for each in results))
            if form == "json":
                echo(json.dumps(_values(drawn, results, table), indent=2))
            elif drawn.is_sweep:
                _show_sweep(drawn, table)
    except KeyboardInterrupt as interrupt:
        echo("interrupted", err=True)
        ctx.exit(exit_status(interrupt))
    if table is not None or any(each.differences for each in results):
        ctx.exit(1)


def _show(result: Verification, name: str) -> None:
    """What a run was compared with, in a few lines."""
    echo(f"{name}: {counted(result.rounds, 'round')}")
    if not result.finished:
        echo(f"  unfinished {result.rounds} of {result.planned} rounds, no summary.csv")
    elif result.planned > result.rounds:
        echo(f"  ended      after {result.rounds} of {result.planned} rounds")
    drawn = "all" if result.coverage == 1 else ", ".join(map(str, result.drawn))
    echo(f"  drawn      {drawn} (seed {result.seed})")
    if result.executed:
        spans = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in result.executed)
        rounds = counted(result.num_executed, "round")
        models = f" and {counted(result.models, 'model')}" if result.models else ""
        same = f"{result.equal:,} of {result.cells:,} cells are the same"
        how = same if result.others else "byte for byte"
        echo(f"  done again {rounds} ({spans}): {result.rows} rows{models}, {how}")
    if result.others:
        echo(f"  elsewhere  {result.others}")
    for words in result.not_compared:
        echo(f"  unknown    {words}: not compared")
    for difference in result.differences:
        echo(f"  differs    {difference}")
    if result.others and result.differences:
        echo(
            "  note       last digits differ there, and more with each round and layer: verify on "
            "the kind of the run, or from nearer checkpoints (engine.keep_every=1)"
        )
    outcome = f"{result.outcome}"
    if result.differences:
        outcome = "NOT verified"
    elif result.others:
        scores = f", scores within {result.scores:.2g}" if result.scores else ""
        outcome += f" within {result.largest:.2g}{scores}; not a proof"
    elif result.coverage < 1:
        chance = f"{result.coverage:.2g}"
        outcome += f"; one wrong round would have been found with probability {chance}"
    echo(f"  {outcome}")


def _show_sweep(drawn: Drawn, table: Difference | None) -> None:
    """What a sweep as a whole was compared with."""
    echo(f"{len(drawn.runs)} of {len(drawn.finished)} finished runs drawn (seed {drawn.seed})")
    if drawn.unfinished:
        runs = counted(len(drawn.unfinished), "run")
        echo(f"  unfinished {runs} of the grid: {', '.join(drawn.unfinished)}")
    for name in drawn.missing:
        echo(f"  unknown    {name} is missing: not compared")
    if drawn.beside_grid:
        left = ", ".join(drawn.beside_grid)
        echo(f"  left out   not of the grid in sweep.json, nor of its tables: {left}")
    if table is not None:
        echo(f"  differs    {table}")
    elif (drawn.folder / "aggregate.csv").exists():
        echo("  summary.csv and aggregate.csv are what the runs give")


def _values(
    drawn: Drawn, results: Sequence[Verification], table: Difference | None
) -> dict[str, object]:
    """The same for programs."""
    from fedsim.audit.verify import CONSISTENT, DIFFERS, VERIFIED

    outcomes = {each.outcome for each in results} | ({DIFFERS} if table is not None else set())
    worst = next(each for each in (DIFFERS, CONSISTENT, VERIFIED) if each in outcomes)
    return {
        "outcome": worst,
        "seed": drawn.seed,
        "finished_runs": len(drawn.finished),
        "not_of_the_grid": drawn.beside_grid,
        "unfinished_runs": drawn.unfinished,
        "missing": drawn.missing,
        "verified": worst == VERIFIED,
        "runs": [{name: _value(each, name) for name in OF_A_RUN} for each in results],
        "tables": None if table is None else str(table),
    }


OF_A_RUN = (
    *("run", "outcome", "planned", "finished", "seed", "rounds", "drawn", "executed", "rows"),
    *("models", "others", "largest", "scores", "cells", "equal", "not_compared", "differences"),
)
"""What JSON has of each run."""


def _value(result: Verification, name: str) -> object:
    value = getattr(result, name)
    if name == "differences":
        return [*map(str, value)]
    return str(value) if isinstance(value, Path) else value
