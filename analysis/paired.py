"""Tests of paired differences: Student's t, corrected, signed ranks, Bayesian signed ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from . import AnalysisError
from .files import read_env, read_table
from .labels import text
from .units import PARTITION, ExperimentalUnit

SIGNIFICANT = 0.05  # adjusted p values below this get a star
Kind = Literal["t", "corrected", "wilcoxon", "bayes"]
TESTS: Mapping[Kind, str] = {
    "t": "paired t test", "corrected": "corrected resampled t test",
    "wilcoxon": "Wilcoxon signed-rank test", "bayes": "Bayesian signed-rank test",
}  # fmt: skip
"""Names of the paired tests in text."""
PRIOR = 0.5
"""Strength of the prior of the Bayesian test, a difference of zero (that of its authors' code)."""
DRAWS, SEED = 50_000, 2017  # draws from the posterior of the Bayesian test, and their seed
CERTAIN = 0.95  # posterior probability above which the Bayesian test decides
FEWEST_BAYES = 5
"""The Bayesian test decides nothing over fewer units, which agree by chance once in 2^(n - 1)."""
FEWEST_EQUAL = 5
"""So many equal values say that they never vary; on a grid fewer are alike by chance."""
Verdict = Literal["", "lower", "practically equal", "higher", "not decidable", "incomplete"]
WORDS: tuple[Verdict, Verdict, Verdict] = ("lower", "practically equal", "higher")

_DATA = ("dataset", "alpha", "num_clients")
"""Columns of summary.csv, beside those of section data, on which the parts depend."""
Floats = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Chances = tuple[float, float, float]
"""Posterior probabilities that a difference is below -rope, within +-rope, and above rope."""


@dataclass(frozen=True)
class Test:
    """How methods are compared."""

    kind: Kind = "t"  # a key of `TESTS`
    rope: float | None = None  # half-width of practical equivalence around 0; None: no verdicts
    ratio: float = 0.0  # test over training samples, for the corrected test; else 0

    def __post_init__(self) -> None:
        if self.rope is not None and not 0 < self.rope < math.inf:
            raise AnalysisError(f"--rope {self.rope:g}: has to be a number above 0")
        if self.kind == "bayes" and self.rope is None:
            raise AnalysisError(
                "--test bayes: needs --rope R, the largest difference that is practically none, "
                "in the unit of summary.csv: 0.01 is one point of accuracy"
            )

    @property
    def title(self) -> str:
        """Its name in text."""
        return TESTS[self.kind]

    @property
    def bayes(self) -> bool:
        """Whether it gives probabilities instead of p values."""
        return self.kind == "bayes"


T = Test()  # the paired t test, without verdicts


def p_value(differences: Floats, levels: Floats, test: Test) -> float:
    """The two-sided p value of differences (n,) that vary, with their :func:`signed_levels`."""
    if test.kind == "wilcoxon":
        return float(stats.wilcoxon(levels).pvalue)
    if not test.ratio:
        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    t = abs(differences.mean()) / error(differences, test.ratio)
    return float(2 * stats.t.sf(t, len(differences) - 1))


def error(differences: Floats, ratio: float) -> float:
    """s sqrt(1 / n + ratio) of differences (n,) (Nadeau and Bengio, Machine Learning 52, 2003)."""
    return float(differences.std(ddof=1)) * math.sqrt(1 / len(differences) + ratio)


def equivalence(differences: Floats, rounding: float, test: Test) -> float:
    """The p value of :func:`tost` or of its signed ranks; NaN without a rope or p values."""
    if test.rope is None or test.bayes:
        return math.nan
    if test.kind == "wilcoxon":
        above, below = (signed_levels(differences + r, rounding) for r in (test.rope, -test.rope))
        if not (above.any() and below.any()):
            return 1.0
        greater = stats.wilcoxon(above, alternative="greater").pvalue
        return float(max(greater, stats.wilcoxon(below, alternative="less").pvalue))
    mean, scale = float(differences.mean()), error(differences, test.ratio)
    if np.ptp(differences) <= rounding:
        scale = 0.0
        mean += math.copysign(rounding, mean)  # a mean at the border is not inside
    return tost(mean, scale, len(differences) - 1, test.rope)


def tost(mean: float, scale: float, freedom: float, rope: float) -> float:
    """The p value of two one-sided t tests that a true mean is within +-rope (Schuirmann, 1987).
    Without a standard error it is 0 inside, over :data:`FEWEST_EQUAL` values or more, else 1."""
    margin = rope - abs(mean)
    if scale == 0:
        return 0.0 if margin > 0 and freedom >= FEWEST_EQUAL - 1 else 1.0
    return float(stats.t.sf(margin / scale, freedom))


def chances(differences: Floats, rounding: float, rope: float) -> Chances:
    """Posterior probabilities of the Bayesian signed-rank test of differences (n,).

    The differences z_1 .. z_n have weights from a Dirichlet distribution of parameters 1, and the
    prior's z_0 = 0 one of :data:`PRIOR`. A draw w gives the region above rope the mass
    ``sum_ij w_i w_j [z_i + z_j > 2 rope]``, that below alike, and the rest to what is between;
    half of a pair at a border counts on either side. The probability of a region is the share of
    draws in which its mass is the largest (Benavoli, Corani, Demsar and Zaffalon, Time for a
    Change, JMLR 18(77), 2017, section 4.2), up to a Monte-Carlo error of at most 0.0023.
    """
    z = np.concatenate([[0.0], differences])
    sums = z[:, None] + z
    shares = np.where(np.abs(sums - 2 * rope) <= 2 * rounding, 0.5, sums > 2 * rope)
    below = np.where(np.abs(sums + 2 * rope) <= 2 * rounding, 0.5, sums < -2 * rope)
    parameters = np.ones(len(z))
    parameters[0] = PRIOR
    weights = np.random.default_rng(SEED).dirichlet(parameters, DRAWS)
    high, low = (((weights @ one) * weights).sum(axis=1) for one in (shares, below))
    largest = np.argmax(np.stack([low, 1 - low - high, high]), axis=0)
    lower, equal, higher = np.bincount(largest, minlength=3) / DRAWS
    return float(lower), float(equal), float(higher)


def verdict(n: int, sign: int, adjusted: float, equal: float, chances: Chances | None) -> Verdict:
    """What a comparison over n units says, for a test with a rope."""
    if chances is not None:
        likely = int(np.argmax(chances))
        certain = n >= FEWEST_BAYES and chances[likely] > CERTAIN
        return WORDS[likely] if certain else "not decidable"
    if equal < SIGNIFICANT:
        return "practically equal"
    return WORDS[sign + 1] if sign and adjusted < SIGNIFICANT else "not decidable"


def signed_levels(differences: Floats, rounding: float) -> Floats:
    """The signed position (n,) of each difference among the distinct sizes; 0 up to rounding."""
    size = np.abs(differences)
    ascending = np.sort(size)
    levels = np.cumsum(np.diff(ascending, prepend=0.0) > rounding)
    positions = levels[np.searchsorted(ascending, size)]
    return np.asarray(np.sign(differences) * positions, dtype=float)


def ratio(runs: pd.DataFrame, unit: ExperimentalUnit) -> float:
    """The largest number of test samples over training samples of one run per partition."""
    if unit != "partition":
        raise _refused("needs --unit partition and runs on several partitions (data.seed)")
    columns = [c for c in runs.columns if c in _DATA or str(c).startswith("data.")]
    others = [column for column in columns if column != PARTITION]
    ratios: list[float] = []
    seen: dict[tuple[object, ...], str] = {}
    for run in runs[~runs[columns].map(text).duplicated()].to_dict("records"):
        path = str(run["path"])
        of_run, test = _sizes(Path(path))
        ratios.append(of_run)
        twin = seen.setdefault((*(text(run[column]) for column in others), test), path)
        if twin != path:
            raise _refused(
                f"{twin} and {path} have the same test samples, so that the runs say nothing about "
                "others"
            )
    return max(ratios)


def _refused(reason: str) -> AnalysisError:
    return AnalysisError(f"--test corrected: {reason}; --test t is about the same samples")


def _sizes(run: Path) -> tuple[float, frozenset[int]]:
    """Test over training samples of a run, and its test samples."""
    file = run / "split.csv"
    if not file.is_file():
        raise _refused(f"{file}: there is no such file, with the numbers of samples")
    frame = read_table(file, numbers=("sample", "client_id"), texts=("part",))
    held_out = read_env(run).get("heldout_clients", [])
    train = frame[(frame["part"] == "train") & ~frame["client_id"].isin(held_out)]
    common, owned = (frame[frame["part"] == part] for part in ("test", "own_test"))
    test = common if len(common) else owned
    if train.empty or test.empty:
        raise _refused(f"{file}: no {'training' if train.empty else 'test'} samples")
    return len(test) / len(train), frozenset(test["sample"].astype(int))
