"""Trains the best trials of a search again on fresh seeds: a sweep in the search's directory.

The best of many values is optimistic, since it was chosen for being high. The value of the same
trial on training seeds that the search has not used is not. As in the search, a trial with a run
that fails has no value, whatever its other runs give.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.core import files
from fedsim.storage import status
from fedsim.storage.trials import Trial, lowest
from fedsim.studies.search import CONFIRMED, SearchPlan, write_best
from fedsim.studies.sweep import SweepRun

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "confirm"
FEWEST = 3
"""Fresh seeds of a trial, or as many as the search has."""
ENDS = ("_mean", "_std", "_ci95")
"""Ends of the names of the columns that a failed trial leaves empty."""


def fresh_seeds(plan: SearchPlan) -> list[int]:
    """Training seeds that the search does not use."""
    return seeds_after(plan.seeds, max(FEWEST, len(plan.seeds)))


def seeds_after(used: Iterable[int], count: int) -> list[int]:
    """The seeds that follow the largest used one, or the first ones where none is used."""
    first = max(used, default=-1) + 1
    return list(range(first, first + count))


def runs_of(plan: SearchPlan, leaders: Sequence[Trial]) -> list[SweepRun]:
    """The runs of the trials on fresh seeds."""
    return [
        SweepRun(f"trial={t.number},seed={s}", f"trial={t.number}", plan.config(t.params, s))
        for t in leaders
        for s in fresh_seeds(plan)
    ]


def write_confirmed(
    plan: SearchPlan,
    out: Path,
    leaders: Sequence[Trial],
    failed: Collection[str],
    table: pd.DataFrame,
) -> pd.DataFrame:
    """Writes confirm.csv, and best.yaml of the trial with the best mean on the fresh seeds.

    Where no trial has a value, best.yaml is that of the search.

    Args:
        plan: of the search.
        out: the directory of the search.
        leaders: the trials, the best of the search first.
        failed: the names of their runs that failed; not all of them.
        table: aggregate.csv of the others.

    Returns:
        The rows of confirm.csv, the best first: trial, value of the search, searched keys, n, mean,
        std and half width of the 95 % t-interval of the metric on the fresh seeds, the columns of
        aggregate.csv, and the number of fresh seeds without a finite metric. Where that is not 0
        the trial has failed: means and intervals are NaN, and the row stands last.

    Raises:
        StoreError: a file cannot be written.
    """
    import pandas as pd  # for which no run has to wait

    by = plan.proposer.by
    rows = [_row(plan, trial, out, failed, table) for trial in leaders]
    confirmed = pd.DataFrame(rows).sort_values(
        f"{by}_mean", ascending=lowest(by), kind="stable", ignore_index=True
    )
    text = confirmed.to_csv(index=False, lineterminator="\n")
    files.write(out / CONFIRMED, text.encode())
    mean, n = float(confirmed[f"{by}_mean"].iloc[0]), confirmed["n"].iloc[0]
    if math.isnan(mean):
        write_best(plan, out, leaders[0], f"{by} {leaders[0].value!r}")
        return confirmed
    (best,) = [trial for trial in leaders if trial.number == confirmed["trial"].iloc[0]]
    write_best(plan, out, best, f"{by} {mean!r}, mean over {n} fresh training seeds")
    return confirmed


def _row(
    plan: SearchPlan, trial: Trial, out: Path, failed: Collection[str], table: pd.DataFrame
) -> dict[str, Any]:
    """The row of a trial in confirm.csv."""
    from fedsim.studies.sweep_tables import spread

    by, group = plan.proposer.by, f"trial={trial.number}"
    names = [f"{group},seed={seed}" for seed in fresh_seeds(plan)]
    values = [_last(out / FOLDER / name, by) for name in names if name not in failed]
    row: dict[str, Any] = {"trial": trial.number, "value": trial.value, **trial.params}
    row |= {"n": len(values)} | {f"{by}_{end}": math.nan for end in ("mean", "std", "ci95")}
    groups = table.set_index("configuration").drop(columns="label", errors="ignore")
    if group in groups.index:
        row |= {str(key): value for key, value in groups.loc[group].items()}
    else:
        row |= dict.fromkeys(map(str, groups)) | {"n": 0, "runs": 0}
    finite = sum(map(math.isfinite, values))
    if finite == len(names):
        row |= {f"{by}_{end}": value for end, value in spread(values).items()}
    else:
        row |= {column: math.nan for column in map(str, table) if column.endswith(ENDS)}
    return row | {"failed": len(names) - finite}


def _last(run: Path, by: str) -> float:
    """The metric after the last evaluated round, NaN where no round has it."""
    values = [value for row in status.rounds(run) if (value := status.number(row[by])) is not None]
    return values[-1] if values else float("nan")
