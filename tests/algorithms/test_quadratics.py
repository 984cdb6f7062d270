"""Where whole rounds settle on quadratics, to 1e-9, through the package's own code in float64.

F_i(w) = a_i/2 (w - b_i)^2 with a = (1, 2), b = (0, 3), equal clients: the optimum is 2.
"""

from __future__ import annotations

import numpy as np
import pytest

from .federation import CENTRES, CURVATURES, Federation

EXACT = {"rel": 1e-9, "abs": 1e-12}
EXACTLY = {"steps": (22, 22), "lr": 0.5}
"""Local problems of curvature 1.5 and 2.5 are solved to the last bits: a step leaves a quarter."""


def shrink(a, lr, steps):
    return (1 - lr * a) ** steps


def test_fedavg_settles_beside_the_optimum():
    # sum p (1 - r_i) b_i / sum p (1 - r_i), r = (0.81, 0.64): 108 / 55
    assert Federation("fedavg").run(90) == pytest.approx(108 / 55, **EXACT)
    assert Federation("fedavg", steps=(1, 5)).run(90) == pytest.approx(2.6115599751, rel=1e-10)


def test_fedavg_first_rounds():
    federation = Federation("fedavg")
    found = [federation.run(1) for _ in range(3)]
    assert found == pytest.approx([0.54, 0.9315, 1.2153375], **EXACT)


def test_fedprox_with_exact_local_solves():
    # s_i = a_i / (a_i + mu): 18 / 11
    federation = Federation("fedprox", {"mu": 0.5}, **EXACTLY)
    assert federation.run(30) == pytest.approx(18 / 11, **EXACT)


def test_fednova_removes_the_imbalance_of_the_steps_but_not_the_drift():
    taus = (1, 5)
    pull = [(1 - shrink(a, 0.1, t)) / t for a, t in zip(CURVATURES, taus, strict=True)]
    expected = np.dot(pull, CENTRES) / sum(pull)
    found = Federation("fednova", steps=taus).run(90)
    assert found == pytest.approx(expected, **EXACT)
    assert found == pytest.approx(1.7204858742, rel=1e-10)


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_scaffold_reaches_the_optimum(option, momentum):
    federation = Federation("scaffold", {"option": option}, steps=(3, 3), momentum=momentum)
    assert federation.run(150) == pytest.approx(2.0, **EXACT)


def test_feddyn_reaches_the_optimum():
    federation = Federation("feddyn", {"alpha": 0.5}, **EXACTLY)
    assert federation.run(80) == pytest.approx(2.0, **EXACT)


def test_feddyn_reaches_it_with_few_local_steps_too():
    assert Federation("feddyn", {"alpha": 0.5}, lr=0.3).run(200) == pytest.approx(2.0, **EXACT)
