"""FedAdam: the mean, then Adam on the server."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import aggregation, optimisers

from .cases import PRINTED
from .serving import LAYOUT, answers, path

DELTAS = np.random.default_rng(0).normal(size=12)


def test_by_hand():
    # m = 0.1 * 0.3, v = 0.99e-6 + 0.01 * 0.09, step 0.1 * 0.03 / (sqrt(v) + 0.001).
    expected = 0.003 / (np.sqrt(0.99e-6 + 0.0009) + 0.001)
    np.testing.assert_allclose(path("fedadam", [0.3]), [expected], rtol=1e-14)


def test_published_example():
    np.testing.assert_allclose(
        path("fedadam", [0.3, -0.2]), [0.09672272625, 0.1156702587], **PRINTED
    )


@pytest.mark.parametrize("v0", ["paper", "zero"])
@pytest.mark.parametrize("corrected", [False, True])
def test_oracle(v0, corrected):
    options = {"eta": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 0.01}
    got = path("fedadam", DELTAS, v0=v0, bias_correction=corrected, **options)
    start = 1e-4 if v0 == "paper" else 0.0
    expected = optimisers.adaptive("adam", DELTAS, v0=start, corrected=corrected, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_flowers_correction_by_hand():
    # Flower's first round is 1, its exponent 2, v starts at 0: m = 0.1 delta, v = 0.01 delta^2,
    # eta sqrt(1 - 0.99^2) / (1 - 0.9^2).
    got = path("fedadam", [0.3], tau=1e-9, v0="zero", bias_correction=True)
    expected = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2) * 0.03 / (0.03 + 1e-9)
    np.testing.assert_allclose(got, [expected], rtol=1e-12)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_statistics_follow_their_mean_alone_and_state_is_of_parameters(name):
    updates = np.random.default_rng(1).normal(size=(2, 3, 6))
    for answer, g in zip(
        answers(name, updates, layout=LAYOUT, samples=[1, 2, 3]), updates, strict=True
    ):
        mean = aggregation.mean(g, [1, 2, 3])
        np.testing.assert_allclose(answer.step[4:], mean[4:], rtol=1e-12)
        assert not np.allclose(answer.step[:4], mean[:4])
        (kept,) = answer.state.optimizers
        assert {k: v.shape for k, v in kept.items()} == {"m": (4,), "v": (4,)}
