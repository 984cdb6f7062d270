"""(f, kappa)-robustness of Allouah et al. (AISTATS 2023, arXiv:2302.01772).

For every S of n - f of the n updates, with mean x_S and F the rule,
||F(x) - x_S||^2 <= kappa / |S| sum_{i in S} ||x_i - x_S||^2. Each kappa is an upper bound; NNM
turns kappa into 8 f / (n - f) (kappa + 1). Krum is the variant with n - f neighbours.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import fedsim

KAPPA = {
    "trimmed_mean": lambda n, f: 6 * f / (n - 2 * f) * (1 + f / (n - 2 * f)),
    "krum": lambda n, f: 6 * (1 + f / (n - 2 * f)),
    "geometric_median": lambda n, f: 4 * (1 + f / (n - 2 * f)) ** 2,
    "coordinate_median": lambda n, f: 4 * (1 + f / (n - 2 * f)) ** 2,
}
OPTIONS = {
    "trimmed_mean": lambda f: {"f": f},
    "krum": lambda f: {"f": f, "neighbours": "mixing"},
    "geometric_median": lambda f: {"iterations": 1000},
    "coordinate_median": lambda f: {},
}


def worst_ratio(x, f, step):
    """The largest squared error by the variance of the updates, over all S."""
    found = []
    for chosen in combinations(range(len(x)), len(x) - f):
        own = x[list(chosen)]
        mean = own.mean(axis=0)
        spread = np.square(own - mean).sum(axis=1).mean()
        found.append(np.square(step - mean).sum() / spread)
    return max(found)


def inputs(n, f, d, seed):
    """Honest updates, with f that are among them, near, shifted together, or far."""
    rng = np.random.default_rng(seed)
    for heterogeneous in (False, True):
        x = rng.normal(size=(n, d))
        if heterogeneous:
            x *= rng.uniform(0.1, 5, size=(n, 1))
        yield x
        for where in (0.5, 1.5, 3.0, 10.0, 1e3):
            moved = x.copy()
            moved[:f] = x[f:].mean(axis=0) + where * x[f:].std(axis=0) + 1e-3 * x[:f]
            yield moved


@pytest.mark.parametrize("pre", [[], ["nnm"]], ids=["alone", "nnm"])
@pytest.mark.parametrize("name", KAPPA)
@pytest.mark.parametrize(("n", "f"), [(5, 1), (7, 2), (9, 3)])
def test_the_error_is_bounded_by_the_variance(name, n, f, pre):
    kappa = KAPPA[name](n, f)
    if pre:
        kappa = 8 * f / (n - f) * (kappa + 1)
    for x in (x for seed in range(3) for d in (1, 6) for x in inputs(n, f, d, seed)):
        step = single(x, name, f, pre)
        assert worst_ratio(x, f, step) <= kappa * (1 + 1e-9)


def single(x, name, f, pre):
    """The step; ``f`` of a rule that has none is that of NNM alone."""
    options = OPTIONS[name](f)
    if pre and "f" not in options:
        options["f"] = f
    return fedsim.aggregate(x, np.ones(len(x)), name, pre=pre, **options)


def test_the_mean_has_no_kappa():
    x = np.random.default_rng(0).normal(size=(7, 4))
    found = []
    for far in (1e1, 1e3, 1e5):
        x[0] = far
        found.append(worst_ratio(x, 2, x.mean(axis=0)))
    assert found[2] > 100 * found[1] > 100 * 100 * found[0]
