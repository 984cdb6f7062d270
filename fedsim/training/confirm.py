"""Trains the best trials of a search again on fresh seeds: a sweep in the search's directory.

The best of many values is optimistic, since it was chosen for being high. The value of the same
trial on training seeds that the search has not used is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedsim.core import files
from fedsim.storage import status
from fedsim.storage.trials import Trial, lowest
from fedsim.training.search import CONFIRMED, Plan, write_best
from fedsim.training.sweep import SweepRun
from fedsim.training.sweep_tables import spread

FOLDER = "confirm"
FEWEST = 3
"""Fresh seeds of a trial, or as many as the search has."""


def fresh_seeds(plan: Plan) -> list[int]:
    """Training seeds that the search does not use: those that follow its largest one."""
    first = max(plan.seeds) + 1
    return list(range(first, first + max(FEWEST, len(plan.seeds))))


def runs_of(plan: Plan, leaders: Sequence[Trial]) -> list[SweepRun]:
    """The runs of the trials on fresh seeds."""
    return [
        SweepRun(f"trial={t.number},seed={s}", f"trial={t.number}", plan.config(t.params, s))
        for t in leaders
        for s in fresh_seeds(plan)
    ]


def write_confirmed(
    plan: Plan, out: Path, leaders: Sequence[Trial], finished: Sequence[str], table: pd.DataFrame
) -> pd.DataFrame:
    """Writes confirm.csv, and best.yaml of the trial with the best mean on the fresh seeds.

    Args:
        plan: of the search.
        out: the directory of the search.
        leaders: the trials.
        finished: the names of their runs, without those that failed.
        table: aggregate.csv of these runs.

    Returns:
        The rows of confirm.csv, the best first: trial, value of the search, searched keys, n, mean,
        std and half width of the 95 % t-interval of the metric on the fresh seeds, and the columns
        of aggregate.csv.

    Raises:
        StoreError: a file cannot be written.
    """
    by, rows = plan.study.by, []
    for trial in leaders:
        group = f"trial={trial.number}"
        own = [name for name in finished if name.partition(",")[0] == group]
        if not own:
            continue
        values = np.array([_last(out / FOLDER / name, by) for name in own])
        row: dict[str, object] = {"trial": trial.number, "value": trial.value, **trial.params}
        row |= {"n": len(own)} | {f"{by}_{k}": v for k, v in spread(values).items()}
        (of_test,) = table[table["configuration"] == group].to_dict("records")
        rows.append(row | {str(k): v for k, v in of_test.items() if k != "configuration"})
    found = pd.DataFrame(rows).sort_values(
        f"{by}_mean", ascending=lowest(by), kind="stable", ignore_index=True
    )
    text = found.to_csv(index=False, lineterminator="\n")
    files.write(out / CONFIRMED, text.encode())
    (best,) = [trial for trial in leaders if trial.number == found["trial"].iloc[0]]
    mean, n = float(found[f"{by}_mean"].iloc[0]), found["n"].iloc[0]
    write_best(plan, out, best, f"{by} {mean!r}, mean over {n} fresh training seeds")
    return found


def _last(run: Path, by: str) -> float:
    """The metric after the last evaluated round, NaN where no round has it."""
    found = [value for row in status.rounds(run) if (value := status.number(row[by])) is not None]
    return found[-1] if found else float("nan")
