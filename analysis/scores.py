"""Scores by run: final, best and last ten, and whether the final model collapsed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

import fedsim.core.rows as tables
from fedsim.core.errors import nearest
from fedsim.core.measures import Measures

from . import AnalysisError, units
from .files import has_rows, read_table
from .formats import BUDGET, PERCENT, PLAIN, UNITS, NumberFormat
from .runs import MEASURES, Group


@dataclass(frozen=True)
class Score:
    """A score, or another number of a round."""

    title: str  # in a heading, such as ``balanced accuracy``
    unit: NumberFormat = PERCENT  # how it is shown
    lowest: bool = False  # whether small values are better
    least: float = 0.0  # the smallest possible value

    @property
    def possible(self) -> tuple[float, float]:
        """The least and the largest possible value, as they are shown."""
        return self.least, self.unit.factor if self.unit.name == "%" else math.inf

    @property
    def unbounded(self) -> bool:
        """Whether the worst value is not 0."""
        return self.lowest or self.least < 0

    @property
    def name(self) -> str:
        """The title at the begin of a sentence: ``Balanced accuracy``."""
        return self.title[0].upper() + self.title[1:]

    @property
    def axis(self) -> str:
        """The heading of a column, and the label of an axis: ``Balanced accuracy (%)``."""
        return self.unit.head(self.name)


def _score(metric: tables.Metric, plain: NumberFormat = BUDGET, least: float = 0.0) -> Score:
    """A score as its column, or its task, declares it; ``plain`` and ``least`` without a unit."""
    unit = UNITS[metric.unit] if metric.unit else plain
    return Score(metric.title, unit, metric.lowest, 0.0 if metric.unit else least)


def shown(measures: Measures) -> dict[str, Score]:
    """The scores of a task by name, the loss last."""
    return {name: _score(one, PLAIN, -math.inf) for name, one in measures.scores.items()}


SCORES: Mapping[str, Score] = shown(Measures())
"""Of the test part, by name; the columns of rounds.csv are ``test_<name>`` and ``val_<name>``."""
OTHERS: Mapping[str, Score] = {
    column: _score(metric)
    for column, metric in tables.METRICS.items()
    if column in tables.RoundRow.optional()
}
"""Of runs with an attack or with privacy, by their column of rounds.csv."""
EPSILONS = tables.EPSILONS  # those that are infinite without noise
ALL = {**SCORES, **OTHERS}
"""Those of runs on classes."""


def curves_of(scores: Mapping[str, Score]) -> dict[str, Score]:
    """What curves show of runs with these scores, by column of rounds.csv."""
    return {
        f"{column}_{name}": replace(score, title=f"{part} {score.title}")
        for column, part in {"test": "test", "val": "validation"}.items()
        for name, score in scores.items()
    } | {
        "train_loss": replace(scores["loss"], title="training loss"),
        "conflict_ratio": Score("conflicting client pairs", lowest=True),
        "update_norm": Score("norm of the server step", PLAIN),
        **OTHERS,
    }


METRICS: Mapping[str, Score] = curves_of(SCORES)
"""What curves show of runs on classes."""
TAKES: Mapping[str, str] = {
    "final": "final {}", "best": "best {}", "last10": "{} of the last 10 rounds",
}  # fmt: skip
"""The rounds that a score is taken from, and the title of its table, see :func:`heading`."""
COLLAPSED = "collapsed"
"""Column of summary.csv: whether the final model's balanced accuracy is at most that of chance."""
TOLERANCE = 1e-9  # a balanced accuracy above chance by less than this differs by rounding alone


Runs = pd.DataFrame | Sequence[Group]
"""Rows of :func:`analysis.runs.summaries`, or groups of them."""


def measures_of(runs: Runs) -> Measures:
    """The measures of the task of runs, those that any of them has."""
    every = [runs] if isinstance(runs, pd.DataFrame) else [one.runs for one in runs]
    found = [one for table in every if MEASURES in table for one in table[MEASURES]]
    if not found:
        return Measures()
    scores = {name: score for one in found for name, score in one.scores.items()}
    return replace(found[0], scores=scores | {"loss": scores.pop("loss")})


def scores_of(runs: Runs) -> dict[str, Score]:
    """The scores that tables of runs can show, by name: :data:`ALL`, or their task's own."""
    return {**shown(measures_of(runs)), **OTHERS}


def measure_of(runs: Runs, name: str) -> Score:
    """Title, unit and direction of a score of runs; an AnalysisError where they have none such."""
    known = scores_of(runs)
    if name not in known:
        task = measures_of(runs).task
        raise AnalysisError(
            f"metric {name!r}: no measure of the task {task}{nearest(name, known)}; there are "
            f"{', '.join(known)}"
        )
    return known[name]


def primary_of(runs: Runs) -> tuple[str, Score]:
    """The primary measure of the task of runs, and how it is shown."""
    name = measures_of(runs).primary
    return name, measure_of(runs, name)


def of_rounds(score: str) -> str:
    """The column of rounds.csv: ``test_auc``, ``epsilon``."""
    return score if score in OTHERS else f"test_{score}"


def column(score: str, take: str) -> str:
    """The column of summary.csv (and of :func:`completed`): ``final_test_auc``."""
    return f"{take}_{of_rounds(score)}"


def heading(score: str, take: str, shown: Score) -> str:
    """``Final test accuracy``, ``Epsilon at the best round``."""
    at = "{} at the best round" if take == "best" and score in OTHERS else TAKES[take]
    words = at.format(shown.title if score in OTHERS else f"test {shown.title}")
    return words[0].upper() + words[1:]


def completed(runs: pd.DataFrame, names: Collection[str]) -> pd.DataFrame:
    """The runs with :data:`COLLAPSED` and these scores, computed where summary.csv lacks them."""
    wanted = {column(name, take): (name, take) for name in names for take in TAKES}
    rows = []
    for run in runs.to_dict("records"):
        row = {key: run.get(key) for key in (COLLAPSED, *wanted)}
        path = Path(run["path"])
        if pd.isna(row[COLLAPSED]):
            row[COLLAPSED] = collapsed(path)
        lacking = {key: of for key, of in wanted.items() if pd.isna(row[key])}
        taken = {name: takes(path, name, run.get("best_round")) for name, _ in lacking.values()}
        rows.append(row | {key: taken[name][take] for key, (name, take) in lacking.items()})
    more = pd.DataFrame(rows, index=runs.index, columns=[COLLAPSED, *wanted])
    more = more.astype(dict.fromkeys(wanted, float))
    return runs.drop(columns=more.columns, errors="ignore").join(more)


def takes(run: Path, name: str, best: float | None) -> dict[str, float]:
    """A score of a run by take, from its rounds.csv; NaN if not available."""
    evaluated = [of_rounds("accuracy"), of_rounds("loss")]
    columns = (*evaluated, of_rounds(name))
    rounds = read_table(run / "rounds.csv", ("round",), optional=columns).set_index("round")
    if name not in EPSILONS and of_rounds(name) not in rounds:
        return dict.fromkeys(TAKES, math.nan)
    values = epsilons(run, name) if name in EPSILONS else rounds[of_rounds(name)].astype(float)
    there = rounds.columns.intersection(evaluated)
    final = values[rounds[there].notna().any(axis=1) if len(there) else values.notna()]
    return {
        "final": float(final.iloc[-1]) if len(final) else math.nan,
        "best": math.nan if best is None else float(values.get(best, math.nan)),
        "last10": float(values[values.index > values.index.max() - 10].mean()),
    }


def epsilons(run: Path, name: str) -> pd.Series[float]:
    """Epsilon by round, infinite without noise; NaN: the run stands for no deployment."""
    rounds = read_table(run / "rounds.csv", ("round",), optional=EPSILONS).set_index("round")
    spent = rounds.get("epsilon", pd.Series(math.inf, rounds.index)).fillna(math.inf)
    if "epsilon" not in rounds and has_rows(run / "clients.csv", ("epsilon",)):
        rows = read_table(run / "clients.csv", ("round", "epsilon"), ("status",))
        rows = rows[rows["status"] == "ok"].fillna({"epsilon": math.inf})
        spent = rows.groupby("round")["epsilon"].max().reindex(rounds.index, fill_value=0).cummax()
    if name == "epsilon":
        return spent
    return rounds[name].fillna(math.inf) if name in rounds else spent.where(spent == math.inf)


def collapsed(run: Path) -> bool | None:
    """Whether the final model of a run has collapsed, from its classes.csv; None if unknown."""
    file = run / "classes.csv"
    if not file.is_file():
        return None
    frame = read_table(file, numbers=("round", "support", "recall"))
    last = frame[(frame["round"] == frame["round"].max()) & (frame["support"] > 0)]
    if len(last) < 2:  # with one class there is nothing to tell apart
        return None
    return bool(last["recall"].mean() <= 1 / len(last) + TOLERANCE)


def counts(groups: Sequence[Group]) -> dict[str, int]:
    """The number of collapsed runs of each group, by label."""
    return {
        one.label: int(one.runs[COLLAPSED].dropna().astype(bool).sum())
        for one in groups
        if COLLAPSED in one.runs
    }


def by_run(groups: Sequence[Group], score: str, take: str) -> dict[str, pd.Series[float]]:
    """A score per run of :func:`completed` groups, by label; NaN unless finite or epsilon."""
    values = {one.label: one.by_run(column(score, take)) for one in groups}
    if score in EPSILONS:
        return values
    return {label: units.finite(series) for label, series in values.items()}
