"""``fedsim verify``."""

from __future__ import annotations

import json
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedsim.cli import options
from fedsim.cli.common import make_run_importable, on_run
from fedsim.core.errors import exit_status
from fedsim.core.terminal import echo
from fedsim.core.text import counted
from fedsim.training.signals import handled

if TYPE_CHECKING:
    from fedsim.audit.verify import Verification

verify_option = partial(click.option, cls=options.GroupedOption, group="What is verified")


@click.command(cls=options.GroupedCommand)
@on_run("path", "[RUN|SWEEP]", sweeps=True, importable=False)
@verify_option(
    "--rounds",
    type=options.WordOrNumber("all", 9),
    default=3,
    show_default=True,
    metavar="N|all",
    help="Number of rounds that are drawn and done again, of each run.",
)
@verify_option(
    "--sample",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    metavar="N",
    help="Number of finished runs that are drawn of a sweep.",
)
@verify_option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed of the draw; unset: a new one, which is printed.",
)
@verify_option(
    "--data-dir",
    metavar="DIR",
    help="Where the runs' data are on this machine, if not where they were.",
)
@verify_option(
    "--allow-code",
    is_flag=True,
    help="Also run the functions (FILE.py:function) that the runs name, with your rights. Without "
    "it such a run is refused.",
)
@options.accept_option
@options.format_option
@options.verbose_option
def verify(
    path: str, sample: int, seed: int | None, form: str, allow_code: bool, **choices: Any
) -> None:
    """Do rounds of a run again and compare everything byte for byte.

    RUN is a run directory, finished or not, by default the newest below runs/; of a SWEEP some runs
    are drawn. Each drawn round starts from the nearest earlier checkpoint, and all rounds on the
    way are compared, too. Nothing is written into RUN. On another kind of processor a run is never
    verified, but consistent within what rounding explains, which is no proof.

    Exit status: 0 verified or consistent, 1 something differs, 2 not possible.

    \b
      fedsim verify RUN --rounds all
      fedsim verify runs/sweep-table3_small --sample 3 --seed 7
    """
    ctx = click.get_current_context()
    from fedsim.audit import verify as audit

    seed = secrets.randbelow(2**31) if seed is None else seed
    results: list[Verification] = []
    try:
        with handled():  # so that no temporary folder stays after SIGTERM
            runs = audit.runs_of(Path(path), sample, seed)
            for number, run in enumerate(runs):
                if allow_code:
                    make_run_importable(run)
                result = audit.verify(run, seed=seed + number, allow_code=allow_code, **choices)
                results.append(result)
                if form == "table":
                    _show(result, path if runs == [Path(path)] else run.name)
    except KeyboardInterrupt as interrupt:
        echo("interrupted", err=True)
        ctx.exit(exit_status(interrupt))
    outcomes = {each.outcome for each in results}
    worst = next(each for each in (audit.DIFFERS, audit.CONSISTENT, "verified") if each in outcomes)
    if form == "json":
        about = {"outcome": worst, "seed": seed, "verified": worst == audit.VERIFIED}
        of_runs = [{"outcome": each.outcome, **vars(each)} for each in results]
        echo(json.dumps({**about, "runs": of_runs}, indent=2, default=str))
    if worst == audit.DIFFERS:
        ctx.exit(1)


def _show(result: Verification, name: str) -> None:
    """What a run was compared with, in a few lines."""
    drawn = "all" if result.coverage == 1 else ", ".join(map(str, result.drawn))
    spans = ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in result.executed)
    same = f"{result.equal:,} of {result.cells:,} cells are the same"
    again = (
        f"{counted(result.num_executed, 'round')} ({spans}): {result.rows} rows and "
        f"{counted(result.models, 'model')}, {same if result.others else 'byte for byte'}"
    )
    count = f"{result.rounds} of {result.planned} rounds"
    lines = [
        ("unfinished", "" if result.finished else f"{count}, no summary.csv"),
        ("ended", f"after {count}" if result.finished and result.planned > result.rounds else ""),
        ("drawn", f"{drawn} (seed {result.seed})"),
        ("done again", again if result.executed else ""),
        ("elsewhere", result.others),
        *(("unknown", f"{words}: not compared") for words in result.not_compared),
        *(("differs", str(difference)) for difference in result.differences),
    ]
    echo(f"{name}: {counted(result.rounds, 'round')}")
    echo("\n".join(f"  {word:10} {text}" for word, text in lines if text))
    outcome = "NOT verified" if result.differences else result.outcome
    if result.outcome == "consistent":
        scores = f", scores within {result.scores:.2g}" if result.scores else ""
        outcome += f" within {result.largest:.2g}{scores}; not a proof"
    elif result.verified and result.coverage < 1:
        chance = f"{result.coverage:.2g}"
        outcome += f"; one wrong round would have been found with probability {chance}"
    echo(f"  {outcome}")
