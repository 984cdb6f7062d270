"""Odd result tables, for the commands that compare methods: each ends well, and nobody leads whom
runs are missing or who is not above the others.

A table says which values the runs of each method have, by partition and training seed.
"""

from __future__ import annotations

import io
import itertools
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.fuzz.harness import Case, check, fedsim, workplace
from tests.sampling import marked_beside
from tests.unit.analysis.run_files import run_of

pytestmark = pytest.mark.integration

Values = Mapping[str, Mapping[tuple[int, int], float]]
"""By method, partition and seed; infinite and missing ones are what these tests are about."""
NAN, INF = math.nan, math.inf


def over_seeds(**methods: tuple[float | None, ...]) -> Values:
    """Values by training seed on one partition; None has no run."""
    return {
        name: {(0, seed): x for seed, x in enumerate(of) if x is not None}
        for name, of in methods.items()
    }


def nested(**methods: tuple[tuple[float | None, ...], ...]) -> Values:
    """Values by partition, and by training seed inside."""
    return {
        name: {
            (part, seed): x
            for part, of in enumerate(parts)
            for seed, x in enumerate(of)
            if x is not None
        }
        for name, parts in methods.items()
    }


EASY, HARD = (0.7, 0.72, 0.69, 0.71), 0.1
NAMED: dict[str, Values] = {
    "the hardest is missing": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.65, 0.66, 0.64, 0.66)),
    "the hardest is NaN": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.65, 0.66, 0.64, 0.66, NAN)),
    "the hardest is infinite": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.6, 0.7, 0.6, 0.6, INF)),
    "better on the common ones": over_seeds(fedavg=(*EASY, HARD), fedprox=(0.8, 0.82, 0.79, 0.82)),
    "no common seed": over_seeds(fedavg=(0.5, 0.6), fedprox=(None, None, 0.7, 0.8)),
    "one run": over_seeds(fedavg=(0.5,)),
    "one method": over_seeds(fedavg=EASY),
    "all NaN": over_seeds(fedavg=(NAN, NAN), fedprox=(NAN, NAN)),
    "one method NaN": over_seeds(fedavg=EASY, fedprox=(NAN,) * 4),
    "ties": over_seeds(fedavg=EASY, fedprox=EASY, fedld=EASY),
    "constant": over_seeds(fedavg=(0.5,) * 4, fedprox=(0.6,) * 4),
    "zeros": over_seeds(fedavg=(0.0,) * 3, fedprox=(0.0,) * 3),
    "huge": over_seeds(fedavg=(1e38, 2e38, 1e38), fedprox=(1e38, 1e38, 3e38)),
    "tiny": over_seeds(fedavg=(1e-300, 2e-300), fedprox=(3e-300, 1e-310)),
    "rounding apart": over_seeds(fedavg=(0.3, 0.9), fedprox=(0.1 + 0.2, 0.9)),
    "NaN for everyone": over_seeds(fedavg=(0.5, NAN, 0.6), fedprox=(0.7, NAN, 0.8)),
    "partitions": nested(fedavg=((0.5,), (0.6,), (0.1,)), fedprox=((0.4,), (0.5,), (0.0,))),
    "a partition is missing": nested(fedavg=((0.5,), (0.6,), (0.1,)), fedprox=((0.4,), (0.5,))),
    "a seed of a partition": nested(fedavg=((0.5, 0.6), (0.1, 0.2)), fedprox=((0.7, 0.8), (0.3,))),
    "other seeds": nested(
        fedavg=((0.5, None), (0.1, None)), fedprox=((None, 0.8), (None, 0.3)),
    ),
    "different splits": nested(fedavg=((0.5,), (0.6,)), fedprox=((), (), (0.5,), (0.6,))),
}  # fmt: skip
RANDOM = 15
"""Random tables beside the named ones."""


def random_table(number: int) -> Values:
    """Two to four methods, each with its own gaps."""
    rng = random.Random(number)
    runs = list(itertools.product(range(rng.randint(1, 5)), range(rng.randint(1, 2))))
    odd = (NAN, INF, -INF, 0.0, 1.0, None)
    scores: dict[str, dict[tuple[int, int], float]] = {}
    for name in ("fedavg", "fedprox", "fedld", "moon")[: rng.randint(2, 4)]:
        level = rng.choice((0.3, 0.5, 0.5))
        values = {
            run: rng.choice(odd) if rng.random() < 0.2 else level + rng.gauss(0, 0.02) + run[0] / 9
            for run in runs
        }
        scores[name] = {run: x for run, x in values.items() if x is not None}
    return scores


TABLES = NAMED | {f"random {number}": random_table(number) for number in range(RANDOM)}
FEW = ("the hardest is infinite", "all NaN", "a partition is missing")
"""Tables of the slow tests; the others are nightly."""


def written(values: Values, root: Path) -> None:
    """The run directories."""
    root.mkdir()
    for name, of in values.items():
        for (part, seed), value in of.items():
            more: dict[str, Any] = {"data.seed": part, "final_test_loss": value}
            run_of(root, name, seed, [value], [value], **more)


def tried(values: Values, folder: Path) -> None:
    """Each command ends with status 0, or with one line and status 2."""
    unit = ("--unit", "partition") if len({p for of in values.values() for p, _ in of}) > 1 else ()
    commands = [
        ("table", "runs", *unit),
        ("table", "runs", *unit, "--baseline", "fedavg", "--test", "wilcoxon"),
        ("table", "runs", *unit, "--baseline", "fedavg", "--test", "bayes", "--rope", "0.01"),
        ("table", "--ranks", "runs", *unit, "--out", "ranks.svg", "--out", "ranks.csv"),
        ("table", "runs", *unit, "--metric", "loss", "--baseline", "fedavg", "--out", "t.csv"),
        ("table", "runs", *unit, "--metric", "scores", "--out", "t.tex"),
        ("report", "runs", *unit, "--out", "page", "--baseline", "fedavg"),
    ]
    with workplace(folder) as work:
        written(values, work / "runs")
        for arguments in commands:
            result = fedsim(*arguments)
            check(Case(" ".join(arguments), list(arguments), status=(0, 2)), result)
        for name in ("t.csv", "page/tables/accuracy_final.csv"):
            if (work / name).is_file():
                leaders(values, pd.read_csv(io.StringIO((work / name).read_text())))


def leaders(values: Values, table: pd.DataFrame) -> None:
    """Who leads a table has a finite value of every run that another method has one of."""
    if "leads" not in table:
        return
    every = {run for of in values.values() for run, x in of.items() if math.isfinite(x)}
    rows = table[table["leads"] == True]  # noqa: E712
    for label in rows["label"]:
        own = {run for run, x in values[label].items() if math.isfinite(x)}
        assert own >= every, f"{label} leads without {every - own}"


@pytest.mark.slow
@pytest.mark.parametrize("name", marked_beside(FEW, sorted(TABLES), pytest.mark.nightly))
def test_odd_tables(name: str, tmp_path: Path) -> None:
    tried(TABLES[name], tmp_path / "odd")
