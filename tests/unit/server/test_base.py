"""Reductions, exchanges, and the statistics of a Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from fedsim.algorithms.fedgh import harmonize_orders
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.base import Average, Exchanged, Gram, HistoryGram, Reduced, RuleState, Server
from fedsim.server.cohort import Cohort
from fedsim.server.gram import Weights, conflict_ratio, cosines, shares

CTX = RoundContext(round=3, num_rounds=10, num_clients=20, lr=0.1, seed=7)
LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="b", shape=(1, 3), start=2, stop=5),
        Slot(name="mean", shape=(2,), start=5, stop=7, role="stat"),
        Slot(name="var", shape=(1,), start=7, stop=8, role="stat"),
    )
)


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the updates (FedAvg): c = p."""

    weights: Weights = "samples"

    def __call__(self, gram, n, ctx):
        """Coefficients (m,); they sum to 1."""
        return shares(n, self.weights)


def cohort(dtype=np.float32, seed=0, ids=(2, 5, 9)):
    rows = np.random.default_rng(seed).normal(size=(len(ids), 8)).astype(dtype)
    sent = zip(ids, (10, 30, 60), rows, strict=True)
    return Cohort.of(
        [ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=row) for i, n, row in sent],
        LAYOUT,
    )


@dataclass
class Recorded:
    """A rule that writes down what it is given; coefficients that do not sum to 1."""

    weights: str = "samples"
    calls: list[Any] = field(default_factory=list)

    def __call__(self, gram, n, ctx):
        self.calls.append((gram, n, ctx))
        return np.array([2.0, -1.0, 0.5])


def matrix(c):
    return np.stack(c.rows).astype(np.float64)


@pytest.mark.parametrize(
    ("weights", "p"), [("samples", [0.1, 0.3, 0.6]), ("uniform", [1 / 3, 1 / 3, 1 / 3])]
)
def test_a_gram_rule_sees_parameters_alone_and_statistics_are_averaged(weights, p):
    c, rule = cohort(np.float64), Recorded(weights)
    reduced = Gram(rule)(c, {}, CTX)
    step, state = reduced.step, reduced.state
    ((k, n, ctx),) = rule.calls
    g = matrix(c)
    np.testing.assert_allclose(k, g[:, :5] @ g[:, :5].T, rtol=1e-12, atol=1e-15)
    assert (n.dtype, n.tolist(), ctx) == (np.float64, [10, 30, 60], CTX)
    np.testing.assert_allclose(step[:5], np.array([2.0, -1.0, 0.5]) @ g[:, :5], rtol=1e-12)
    np.testing.assert_allclose(step[5:], np.array(p) @ g[:, 5:], rtol=1e-12)
    assert state == {}


def test_tensor_by_tensor_each_parameter_has_a_gram_of_its_own():
    c, rule = cohort(np.float64), Recorded()
    step = Gram(rule, blocks="tensor")(c, {}, CTX).step
    g = matrix(c)
    assert len(rule.calls) == 2
    for (k, _, _), where in zip(rule.calls, (slice(0, 2), slice(2, 5)), strict=True):
        np.testing.assert_allclose(k, g[:, where] @ g[:, where].T, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(step[:5], np.array([2.0, -1.0, 0.5]) @ g[:, :5], rtol=1e-12)
    np.testing.assert_allclose(step[5:], np.array([0.1, 0.3, 0.6]) @ g[:, 5:], rtol=1e-12)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_average_is_the_mean_in_coefficient_space_without_a_gram_matrix(weights):
    c = cohort()
    reduced = Average(weights)(c, {}, CTX)
    step, state = reduced.step, reduced.state
    assert c._grams == {}
    expected = Gram(Mean(weights))(c, {}, CTX).step
    np.testing.assert_array_equal(step, expected)
    assert state == {}


@pytest.mark.parametrize("blocks", ["model", "tensor"])
def test_a_model_without_statistics(blocks):
    layout = Layout((Slot(name="w", shape=(2,), start=0, stop=2),))
    c = Cohort.of(
        [
            ClientUpdate(
                client_id=0, num_samples=1, num_steps=1, delta=np.array([1.0, 2.0], np.float32)
            )
        ],
        layout,
    )
    step = Gram(Mean(), blocks)(c, {}, CTX).step
    assert (step.tolist(), step.dtype) == ([1.0, 2.0], np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_step_has_the_updates_precision_and_leaves_them_alone(dtype):
    c = cohort(dtype)
    before = matrix(c)
    for reduce in (
        Average(),
        Gram(Mean()),
        Gram(Mean(), "tensor"),
        HistoryGram(lambda k, h, d, x: k[0]),
    ):
        step = reduce(c, {}, CTX).step
        assert (step.shape, step.dtype) == ((8,), dtype)
        assert not any(np.shares_memory(step, row) for row in c.rows)
    np.testing.assert_array_equal(matrix(c), before)


def test_history_over_three_rounds():
    # h_1 = s_1, h_2 = 0.99 h_1 + 0.01 s_2; a rule per tensor, statistics included.
    calls = []

    def rule(gram, history, dots, ctx):
        calls.append((gram, history, dots))
        return np.array([1.0, 0.5, -0.5])

    reduce, history, state = HistoryGram(rule), None, {}
    for t in range(3):
        c = cohort(np.float64, seed=t)
        g = matrix(c)
        calls.clear()
        reduced = reduce(c, state, CTX)
        step, state = reduced.step, reduced.state
        np.testing.assert_allclose(step, [1.0, 0.5, -0.5] @ g, rtol=1e-12)
        assert len(calls) == 4
        for (k, past, dots), slot in zip(calls, LAYOUT.slots, strict=True):
            block = g[:, slot.where]
            np.testing.assert_allclose(k, block @ block.T, rtol=1e-12, atol=1e-15)
            if history is None:
                assert past is None
                assert not dots.any()
            else:
                np.testing.assert_allclose(past, history[slot.where], rtol=1e-12)
                np.testing.assert_allclose(dots, block @ history[slot.where], rtol=1e-9, atol=1e-12)
        history = step if history is None else 0.99 * history + 0.01 * step
        np.testing.assert_allclose(state["history"], history, rtol=1e-12)
    assert list(state) == ["history"]


def test_reduction_and_exchange_keep_their_own_state():
    seen = []

    def reduce(cohort, state, ctx):
        seen.append(("reduce", dict(state)))
        return Reduced(cohort.rows[0], {"x": np.array(state.get("x", 0) + 1)})

    def exchange(cohort, state, ctx):
        seen.append(("exchange", dict(state)))
        return Exchanged(
            {"x": np.array(state.get("x", 100) + 1)},
            {"to_all": np.ones(2)},
            {5: {"own": np.zeros(1)}},
        )

    server, state = Server(reduce, exchange=exchange), RuleState(probe={"gm": np.ones(1)})
    for _ in range(3):
        before = state.flatten()
        answer = server.step(state, cohort(), CTX)
        assert state.flatten() == before
        state = answer.state
    assert [s.get("x", None) for _, s in seen] == [None, None, 1, 101, 2, 102]
    assert set(state.flatten()) == {"probe.gm", "reduce.x", "exchange.x"}
    np.testing.assert_array_equal(answer.step, cohort().rows[0])
    assert list(answer.downlink) == ["to_all"]
    assert list(answer.private) == [5]
    alone = Server(reduce).step(RuleState(), cohort(), CTX)
    assert (dict(alone.downlink), dict(alone.private)) == ({}, {})


def test_rules_run_with_one_blas_thread():
    numbers = []

    def reduce(cohort, state, ctx):
        info = threadpoolctl.threadpool_info()
        numbers.extend(p["num_threads"] for p in info if p["user_api"] == "blas")
        return Reduced(cohort.rows[0])

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        Server(reduce).step(RuleState(), cohort(), CTX)
    assert numbers
    assert set(numbers) == {1}


def test_shares_sum_to_one():
    np.testing.assert_allclose(shares(np.array([10.0, 30.0]), "samples"), [0.25, 0.75])
    np.testing.assert_allclose(shares(np.array([10.0, 30.0]), "uniform"), [0.5, 0.5])


def test_cosines_by_hand():
    # (3,0), (3,4), (-2,0), (0,0): 9 / (3 * 5) = 0.6, -6 / (5 * 2) = -0.6; 0 with a zero update.
    g = np.array([[3.0, 0.0], [3.0, 4.0], [-2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(
        cosines(g @ g.T), [[1, 0.6, -1, 0], [0.6, 1, -0.6, 0], [-1, -0.6, 1, 0], [0, 0, 0, 0]]
    )
    assert not cosines(np.zeros((2, 2))).any()


def test_conflict_ratio_by_hand():
    # pairs (0,1) -1, (0,2) 0, (1,2) 2: one of three; zero is no conflict.
    k = np.array([[1.0, -1.0, 0.0], [-1.0, 4.0, 2.0], [0.0, 2.0, 9.0]])
    assert conflict_ratio(k) == 1 / 3
    assert conflict_ratio(np.array([[2.0, -1e-300], [-1e-300, 2.0]])) == 1.0
    assert conflict_ratio(np.array([[2.0, -0.0], [-0.0, 2.0]])) == 0.0
    assert conflict_ratio(np.array([[2.0]])) is None


def test_orders_visit_every_other_client_once():
    for m in (1, 2, 5, 50):
        for k, order in enumerate(harmonize_orders(m, 0, 0)):
            assert sorted(order) == [j for j in range(m) if j != k]
    assert harmonize_orders(3, 0, 0, "ascending") == [[1, 2], [0, 2], [0, 1]]
    assert harmonize_orders(3, 0, 0, "descending") == [[2, 1], [2, 0], [1, 0]]


def test_random_orders_hang_on_seed_and_round_and_are_uniform():
    assert harmonize_orders(6, 1, 2) == harmonize_orders(6, 1, 2)
    assert harmonize_orders(6, 1, 2) != harmonize_orders(6, 1, 3)
    assert harmonize_orders(6, 1, 2) != harmonize_orders(6, 2, 2)
    first = [harmonize_orders(3, 0, t)[0] for t in range(600)]
    # 300 +- 12 expected
    assert 250 < sum(order == [1, 2] for order in first) < 350
