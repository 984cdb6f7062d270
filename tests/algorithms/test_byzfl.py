"""NNM, trimmed mean and MDA against those of ByzFL, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim

byzfl = pytest.importorskip("byzfl")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "other"), [("trimmed_mean", "TrMean"), ("mda", "MDA")], ids=["trimmed_mean", "mda"]
)
@pytest.mark.parametrize("pre", [[], ["nnm"]], ids=["alone", "nnm"])
def test_as_byzfl(name, other, pre, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 12)) * rng.uniform(0.3, 3, size=(9, 1))
    f = 2
    mixed = byzfl.NNM(f)(x) if pre else x
    wanted = getattr(byzfl, other)(f)(np.asarray(mixed))
    step = fedsim.aggregate(x, np.ones(9), name, f=f, pre=pre)
    np.testing.assert_allclose(step, wanted, rtol=1e-9, atol=1e-12)
