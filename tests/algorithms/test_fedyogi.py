"""FedYogi: the mean, then Yogi on the server; what it shares with FedAdam is tested there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import optimisers

from .cases import PRINTED
from .serving import answers, path

DELTAS = np.random.default_rng(3).normal(size=12)


def test_published_example():
    np.testing.assert_allclose(
        path("fedyogi", [0.3, -0.2]), [0.0967222068, 0.1156057178], **PRINTED
    )


@pytest.mark.parametrize("v0", ["paper", "zero"])
def test_oracle(v0):
    options = {"eta": 0.03, "beta1": 0.8, "beta2": 0.6, "tau": 0.5}
    got = path("fedyogi", DELTAS, v0=v0, **options)
    expected = optimisers.adaptive("yogi", DELTAS, v0=0.25 if v0 == "paper" else 0.0, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_the_second_moment_goes_down_as_well_as_up():
    # v = 0.25; 0.1^2 < v: v - 0.5 * 0.01; 2^2 > v: v + 0.5 * 4.
    said = answers("fedyogi", [np.array([[0.1]]), np.array([[2.0]])], tau=0.5, beta2=0.5)
    np.testing.assert_allclose(
        [a.state.optimizers[0]["v"][0] for a in said], [0.245, 2.245], rtol=1e-14
    )


@pytest.mark.parametrize("v0", ["paper", "zero"])
def test_the_first_round_is_adams_up_to_the_start(v0):
    # Where v_0 < Delta^2: v_yogi - v_adam = v_0 (1 - b2), nothing for v_0 = 0.
    moments = [
        answers(name, [np.array([[0.3, -2.0]])], v0=v0, beta2=0.9)[0].state.optimizers[0]["v"]
        for name in ("fedyogi", "fedadam")
    ]
    expected = 0.1 * (1e-6 if v0 == "paper" else 0.0)
    np.testing.assert_allclose(moments[0] - moments[1], expected, rtol=1e-6, atol=1e-16)
