"""The pairwise hierarchy that the FedLD authors' code calls FedGH, one per tensor."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import fedsim
from fedsim.core.errors import FedsimError
from tests.oracles import aggregation as oracle
from tests.oracles import samplers

from .cases import EXAMPLES, PRINTED, assert_step, draw, every_cohort, every_input

released = partial(fedsim.aggregate, algorithm="fedgh_released", round=1)


def test_by_hand():
    # Two clients are the final pair: a = (1, 0), b = (-1, 1), <a, b> = -1, 1e-7 neglected.
    # a' = a + 1/2 b = (1/2, 1/2); b' = b + 1/(1/2) a' = (-1, 1) + 2 (1/2, 1/2) = (0, 2);
    # sum / 2 = (1/4, 5/4).
    g, n = EXAMPLES["A2"]
    np.testing.assert_allclose(released(g, n, history=np.ones(2)), [0.25, 1.25], atol=3e-7)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A1", [0.8, 0.4]),
        ("A2", [0.2499999375, 1.249999863]),
        ("A3", [1.5, 2.0]),
        ("A4", [0.1219937207, 0.4776634732, 0.6560462956]),
    ],
)
def test_published_examples(name, expected):
    g, n = EXAMPLES[name]
    step = released(g, n, history=np.ones(g.shape[1]), sizes=[g.shape[1]])
    np.testing.assert_allclose(step, expected, **PRINTED)


@every_input
@every_cohort
def test_oracle(sampler, m):
    g, n, sizes = draw(sampler, m)
    history = np.random.default_rng(7).normal(size=g.shape[1])
    expected = oracle.fedgh_released(g, history, num_users=m, sizes=sizes)
    assert_step(released(g, n, history=history, sizes=sizes), expected, g)
    expected = oracle.fedgh_released(g, history, num_users=m)
    assert_step(released(g, n, history=history), expected, g)


@every_input
@every_cohort
def test_float32_updates(sampler, m):
    g, n, sizes = draw(sampler, m)
    g = g.astype(np.float32)
    history = np.random.default_rng(7).normal(size=g.shape[1]).astype(np.float32)
    expected = oracle.fedgh_released(g, history.astype(np.float64), num_users=m, sizes=sizes)
    assert_step(released(g, n, history=history, sizes=sizes), expected, g, 1e-5)


def test_without_history_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.conflicting, 5)
    assert_step(released(g, n, sizes=sizes, round=0), g.mean(axis=0), g, 1e-14)


def test_without_conflicts_it_is_the_plain_mean():
    g, n, sizes = draw(samplers.agreeing, 10)
    step = released(g, n, history=np.ones(g.shape[1]), sizes=sizes)
    assert_step(step, g.mean(axis=0), g, 1e-13)


def test_a_single_client_is_returned():
    g, n, sizes = draw(samplers.gaussian, 1)
    assert_step(released(g, n, history=np.ones(g.shape[1]), sizes=sizes), g[0], g, 1e-15)


def test_a_history_of_another_length_is_refused():
    with pytest.raises(FedsimError, match="history"):
        released(np.ones((2, 3)), [1, 1], history=np.ones(4))


def exactly(numbers, history):
    """The hierarchy of a tensor of one element in rational arithmetic, before the division."""
    eps = Fraction(1e-7)

    def corrected(a, b):  # a without its conflict with b
        return a - a * b / (b * b + eps) * b

    rows, history = [Fraction(float(x)) for x in numbers], Fraction(float(history))
    while len(rows) > 2:
        rows.sort(key=lambda x: -x * history)
        half = len(rows) // 2
        pairs = zip(rows[:half], reversed(rows[-half:]), strict=True)
        middle = rows[half : len(rows) - half]
        rows = [
            a + b if a * b >= 0 else corrected(a, b) + corrected(b, a) for a, b in pairs
        ] + middle
    a, b = rows
    if a * b >= 0:
        return a + b
    first = corrected(a, b)
    return first + b - a * b / (first * first + eps) * first


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("m", [2, 3, 4, 5, 8])
def test_numbers_keep_their_digits(m, size, precision):
    """Updates of one element, of either sign: the remainders are near eps / size."""
    draw = np.random.default_rng([m, int(size)])
    for _ in range(50):
        numbers = (size * draw.normal(size=m)).astype(precision).astype(np.float64)
        numbers[-1] = draw.choice([numbers[-1], -numbers[0], 0.0])
        history = draw.normal(size=1)
        wanted = exactly(numbers, history[0]) / m
        found = released(numbers[:, None], np.ones(m), history=history)[0]
        # a number of float64 comes from its rounded square, and each merge rounds a few times
        assert abs(Fraction(float(found)) - wanted) <= 5e-15 * max(*abs(numbers), abs(wanted))


def test_two_opposite_numbers_of_a_thousand():
    """By hand: a' = eps a / (b^2 + eps) = 1e-10, b' = b - ab a' / (a'^2 + eps), to 60 digits."""
    with localcontext() as context:
        context.prec = 60
        a, b, eps = Decimal(1000), Decimal(-1001), Decimal("1e-7")
        first = a - a * b / (b * b + eps) * b
        wanted = float((first + b - a * b / (first * first + eps) * first) / 2)
    found = released(np.array([[1000.0], [-1001.0]]), [1, 1], history=np.ones(1))[0]
    assert found == pytest.approx(wanted, rel=1e-14)


def test_one_element_beside_others_changes_nothing_else():
    g, n, _ = draw(samplers.conflicting, 5)
    history = np.random.default_rng(7).normal(size=g.shape[1])
    sizes = [1, g.shape[1] - 1]
    both = released(g, n, history=history, sizes=sizes)
    rest = released(g[:, 1:], n, history=history[1:])
    assert both[1:].tobytes() == rest.tobytes()
