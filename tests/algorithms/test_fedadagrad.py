"""FedAdagrad: the mean, then Adagrad on the server; what it shares with FedAdam is tested there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import optimisers

from .cases import PRINTED
from .serving import path

DELTAS = np.random.default_rng(4).normal(size=12)


def test_published_example():
    got = path("fedadagrad", [0.3, -0.2], beta1=0.9)
    np.testing.assert_allclose(got, [0.009966722222, 0.01190279576], **PRINTED)


def test_by_hand_without_momentum_as_by_default():
    # v = 1e-6 + 0.09, then + 0.04: 0.1 * 0.3 / (sqrt(v) + 0.001), ...
    steps = [0.03 / (np.sqrt(0.090001) + 0.001), -0.02 / (np.sqrt(0.130001) + 0.001)]
    np.testing.assert_allclose(path("fedadagrad", [0.3, -0.2]), np.cumsum(steps), rtol=1e-14)


@pytest.mark.parametrize("v0", ["paper", "zero"])
def test_oracle(v0):
    options = {"eta": 0.03, "beta1": 0.8, "tau": 0.01}
    got = path("fedadagrad", DELTAS, v0=v0, **options)
    start = 1e-4 if v0 == "paper" else 0.0
    expected = optimisers.adaptive("adagrad", DELTAS, beta2=0.0, v0=start, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)
