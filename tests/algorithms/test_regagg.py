"""RegAgg: similarity times share; all that it has in common with SimAgg is tested there."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from tests.oracles import samplers

from .cases import draw
from .serving import single


def test_by_hand():
    # Values 0, 3, 6 with mean 3: distances 3, 0, 3 and u = 6 / (d + 1) up to a factor.
    values = np.array([[0.0], [3.0], [6.0]])
    step = single("regagg", values, [1, 2, 3], eps=1.0).step[0]
    w = np.array([1.5 * 1, 6 * 2, 1.5 * 3])
    assert step == pytest.approx(w @ values[:, 0] / w.sum(), rel=1e-14)


def test_equal_distances_leave_the_shares():
    g = np.eye(3)
    np.testing.assert_allclose(
        fedsim.aggregate(g, [1, 2, 3], "regagg"), [1 / 6, 2 / 6, 3 / 6], rtol=1e-12
    )


def test_uniform_clients_weigh_by_similarity_alone():
    # RegAgg's w is u then, SimAgg's (u + 1/m) / 2, both up to eps.
    g, _, _ = draw(samplers.gaussian, 5)
    n = np.ones(5)
    reg = np.linalg.lstsq(g.T, fedsim.aggregate(g, n, "regagg"), rcond=None)[0]
    sim = np.linalg.lstsq(g.T, fedsim.aggregate(g, n, "simagg"), rcond=None)[0]
    np.testing.assert_allclose(sim, (reg + 0.2) / 2, rtol=1e-5)
