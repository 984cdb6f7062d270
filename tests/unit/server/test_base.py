"""The server's step, clipping, staleness and differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from scipy import stats

from fedsim import algorithms
from fedsim.algorithms.fedgh import harmonize_orders
from fedsim.algorithms.scaffold import server_control
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server import ClipNorms, Received
from fedsim.server.base import Average, Exchanged, Gram, HistoryGram, Reduced, RuleState, Server
from fedsim.server.cohort import Cohort
from fedsim.server.columns import LocalColumns
from fedsim.server.gram import Weights, conflict_ratio, cosines, shares
from fedsim.server.privacy import (
    AdaptiveClip,
    GaussianNoise,
    PrivateMean,
    PrivateSum,
    noise_beside_count,
)
from fedsim.server.transforms import StalenessWeights
from fedsim.training.round import rebased

BASE_CTX = RoundContext(round=3, num_rounds=10, num_clients=20, lr=0.1, seed=7)
BASE_LAYOUT = Layout(
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


def base_cohort(dtype=np.float32, seed=0, ids=(2, 5, 9)):
    rows = np.random.default_rng(seed).normal(size=(len(ids), 8)).astype(dtype)
    sent = zip(ids, (10, 30, 60), rows, strict=True)
    return Cohort.of(
        [ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=row) for i, n, row in sent],
        BASE_LAYOUT,
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
    c, rule = base_cohort(np.float64), Recorded(weights)
    reduced = Gram(rule)(c, {}, BASE_CTX)
    step, state = reduced.step, reduced.state
    ((k, n, ctx),) = rule.calls
    g = matrix(c)
    np.testing.assert_allclose(k, g[:, :5] @ g[:, :5].T, rtol=1e-12, atol=1e-15)
    assert (n.dtype, n.tolist(), ctx) == (np.float64, [10, 30, 60], BASE_CTX)
    np.testing.assert_allclose(step[:5], np.array([2.0, -1.0, 0.5]) @ g[:, :5], rtol=1e-12)
    np.testing.assert_allclose(step[5:], np.array(p) @ g[:, 5:], rtol=1e-12)
    assert state == {}


def test_tensor_by_tensor_each_parameter_has_a_gram_of_its_own():
    c, rule = base_cohort(np.float64), Recorded()
    step = Gram(rule, blocks="tensor")(c, {}, BASE_CTX).step
    g = matrix(c)
    assert len(rule.calls) == 2
    for (k, _, _), where in zip(rule.calls, (slice(0, 2), slice(2, 5)), strict=True):
        np.testing.assert_allclose(k, g[:, where] @ g[:, where].T, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(step[:5], np.array([2.0, -1.0, 0.5]) @ g[:, :5], rtol=1e-12)
    np.testing.assert_allclose(step[5:], np.array([0.1, 0.3, 0.6]) @ g[:, 5:], rtol=1e-12)


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_average_is_the_mean_in_coefficient_space_without_a_gram_matrix(weights):
    c = base_cohort()
    reduced = Average(weights)(c, {}, BASE_CTX)
    step, state = reduced.step, reduced.state
    assert c._grams == {}
    expected = Gram(Mean(weights))(c, {}, BASE_CTX).step
    np.testing.assert_array_equal(step, expected)
    assert state == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_step_has_the_updates_precision_and_leaves_them_alone(dtype):
    c = base_cohort(dtype)
    before = matrix(c)
    for reduce in (
        Average(),
        Gram(Mean()),
        Gram(Mean(), "tensor"),
        HistoryGram(lambda k, h, d, x: k[0]),
    ):
        step = reduce(c, {}, BASE_CTX).step
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
        c = base_cohort(np.float64, seed=t)
        g = matrix(c)
        calls.clear()
        reduced = reduce(c, state, BASE_CTX)
        step, state = reduced.step, reduced.state
        np.testing.assert_allclose(step, [1.0, 0.5, -0.5] @ g, rtol=1e-12)
        assert len(calls) == 4
        for (k, past, dots), slot in zip(calls, BASE_LAYOUT.slots, strict=True):
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
        answer = server.step(state, base_cohort(), BASE_CTX)
        assert state.flatten() == before
        state = answer.state
    assert [s.get("x", None) for _, s in seen] == [None, None, 1, 101, 2, 102]
    assert set(state.flatten()) == {"probe.gm", "reduce.x", "exchange.x"}
    np.testing.assert_array_equal(answer.step, base_cohort().rows[0])
    assert list(answer.downlink) == ["to_all"]
    assert list(answer.private) == [5]
    alone = Server(reduce).step(RuleState(), base_cohort(), BASE_CTX)
    assert (dict(alone.downlink), dict(alone.private)) == ({}, {})


def test_rules_run_with_one_blas_thread():
    numbers = []

    def reduce(cohort, state, ctx):
        info = threadpoolctl.threadpool_info()
        numbers.extend(p["num_threads"] for p in info if p["user_api"] == "blas")
        return Reduced(cohort.rows[0])

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        Server(reduce).step(RuleState(), base_cohort(), BASE_CTX)
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


CLIPPING_CTX = RoundContext(round=0, num_rounds=5, num_clients=10, lr=0.1, seed=0)
CLIPPING_LAYOUT = Layout(
    (
        Slot(name="a", shape=(2,), start=0, stop=2),
        Slot(name="b", shape=(1, 2), start=2, stop=4),
        Slot(name="mean", shape=(2,), start=4, stop=6, role="stat"),
    )
)
PARAMS, STATISTICS = slice(0, 4), slice(4, 6)


def clipping_cohort(rows, samples=None):
    samples = [1] * len(rows) if samples is None else samples
    sent = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.asarray(row))
        for i, (row, n) in enumerate(zip(rows, samples, strict=True))
    ]
    return Cohort.of(sent, CLIPPING_LAYOUT)


def clipping_draw(m=7, dtype=np.float32, seed=0):
    """Updates whose norms go from 0.02 to 20 or so."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(m, 6)) * 10.0 ** rng.uniform(-2, 1, size=(m, 1))).astype(dtype)


def clipped_mean(rows, samples, norm):
    """(D,) the step by a loop over clients in float64; statistics are averaged unclipped."""
    rows, p = rows.astype(np.float64), np.asarray(samples, np.float64) / np.sum(samples)
    step = np.zeros(6)
    for share, row in zip(p, rows, strict=True):
        size = np.sqrt(sum(value**2 for value in row[PARAMS]))
        step[PARAMS] += share * row[PARAMS] * min(1.0, norm / size if size else 1.0)
        step[STATISTICS] += share * row[STATISTICS]
    return step


def clipped_step(cohort, norm):
    return Server(Average(), receive=(ClipNorms(norm),)).step(RuleState(), cohort, CLIPPING_CTX)


def test_clipping_by_hand():
    # norms 5 and 1 of the parameters: factors 2 / 5 and 1; the statistics stay as they are
    c = clipping_cohort(
        [[3.0, 4.0, 0.0, 0.0, 100.0, -8.0], [0.0, 0.0, 1.0, 0.0, 20.0, 0.0]], [1, 3]
    )
    answer = clipped_step(c, 2.0)
    np.testing.assert_allclose(answer.step, [0.3, 0.4, 0.75, 0.0, 40.0, -2.0], rtol=1e-15)
    assert answer.metrics == {"clipped": 0.5}
    assert answer.state.flatten() == {}


def test_every_part_of_a_chain_tells_how_many_it_clipped():
    # norms 5, 1 and 0.1: the first is clipped to 2; from there 2 and 1 are farther than 0.5 from 0
    c = clipping_cohort([[3.0, 4, 0, 0, 0, 0], [0.0, 0, 1, 0, 0, 0], [0.1, 0, 0, 0, 0, 0]])
    last = algorithms.load("centered_clipping", {"tau": 0.5}).server.reduction
    for receive, portions in (
        ((ClipNorms(2.0),), (1 / 3, 2 / 3)),
        ((ClipNorms(2.0), ClipNorms(0.05)), (1 / 3, 1.0, 0.0)),
    ):
        answer = Server(last, receive=receive).step(RuleState(), c, CLIPPING_CTX)
        names = ("clipped", "clipped2", "clipped3")
        assert answer.metrics == dict(zip(names, portions, strict=False))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", [1e-3, 0.1, 1.0, 30.0])
def test_against_a_loop_in_float64(norm, dtype):
    for seed in range(5):
        rows, samples = clipping_draw(dtype=dtype, seed=seed), np.arange(1, 8)
        step = clipped_step(clipping_cohort(rows, samples), norm).step
        assert step.dtype == dtype
        expected, size = clipped_mean(rows, samples, norm), np.abs(rows).max(axis=0)
        # each of 7 summands is rounded once, and so is the sum
        error = 8 * np.finfo(dtype).eps * size
        assert (np.abs(step - expected) <= error).all()


def test_a_huge_norm_is_fedavg_bit_for_bit():
    for seed in range(5):
        c = clipping_cohort(clipping_draw(seed=seed), range(1, 8))
        plain = Server(Average()).step(RuleState(), c, CLIPPING_CTX)
        assert clipped_step(c, 1e30).step.tobytes() == plain.step.tobytes()


def test_no_norm_is_above_the_bound_and_directions_stay():
    rows = clipping_draw(20, np.float64)
    received = ClipNorms(0.5)(clipping_cohort(rows), {}, CLIPPING_CTX)
    norms = received.cohort.norms(PARAMS)
    assert norms.max() <= 0.5 * (1 + 1e-14)
    assert (np.linalg.norm(rows[:, PARAMS], axis=1) > 0.5).sum() == (norms > 0.499999).sum() > 3
    k = received.cohort.gram(PARAMS)
    cosine = k / np.outer(norms, norms)
    g = rows[:, PARAMS] / np.linalg.norm(rows[:, PARAMS], axis=1)[:, None]
    np.testing.assert_allclose(cosine, g @ g.T, atol=1e-14)


def test_updates_of_zeros_stay_zeros():
    answer = clipped_step(clipping_cohort(np.zeros((3, 6))), 1.0)
    np.testing.assert_array_equal(answer.step, np.zeros(6))
    assert answer.metrics == {"clipped": 0.0}


class Spread:
    """Updates that nobody may see as a whole, as those that stay on their nodes."""

    def __init__(self, rows):
        self.local = LocalColumns(rows)

    def __getattr__(self, name):
        assert name != "rows", "the updates were asked for"
        return getattr(self.local, name)


def test_updates_that_stay_on_their_nodes_are_clipped_there():
    c = clipping_cohort(clipping_draw(), range(1, 8))
    there = replace(c, columns=Spread(c.rows))
    assert clipped_step(there, 0.3).step.tobytes() == clipped_step(c, 0.3).step.tobytes()


class Doubling:
    """Doubles the updates and its step; counts its rounds."""

    name = "double"
    needs_own_clients = False

    def __call__(self, cohort, state, ctx):
        rounds = state.get("rounds", np.zeros(1)) + 1
        return Received(cohort=cohort.scaled(np.full(len(cohort.updates), 2.0)), scale=3.0,
                        state={"rounds": rounds}, metrics={"rounds": float(rounds[0])})  # fmt: skip


def test_transforms_follow_one_another_and_keep_their_states_by_name():
    rows = [[3.0, 4.0, 0.0, 0.0, 1.0, 1.0]]
    for receive, size in (
        ((ClipNorms(2.0), Doubling()), 12.0),
        ((Doubling(), ClipNorms(2.0)), 6.0),
    ):
        server, state = Server(Average(), receive=receive), RuleState()
        assert not server.needs_own_clients
        for round in (1, 2):
            answer = server.step(state, clipping_cohort(rows), CLIPPING_CTX)
            state = RuleState.unflatten(answer.state.flatten())
            assert answer.metrics["rounds"] == round
            assert list(answer.state.flatten()) == ["receive.double.rounds"]
            np.testing.assert_allclose(np.linalg.norm(answer.step[PARAMS]), size, rtol=1e-15)


STALENESS_CTX = RoundContext(round=5, num_rounds=9, num_clients=4, lr=0.1, seed=0)


def layout(params=2, statistics=0):
    slots = [Slot(name="w", shape=(params,), start=0, stop=params)]
    if statistics:
        end = params + statistics
        slots.append(
            Slot(name="running_var", shape=(statistics,), start=params, stop=end, role="stat")
        )
    return Layout(tuple(slots))


def step(weights, deltas, staleness, samples, reduced=None, **sizes):
    updates = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.array(d), staleness=s)
        for i, (d, s, n) in enumerate(zip(deltas, staleness, samples, strict=True))
    ]
    server = replace(reduced or Server(Average()), receive=(weights,))
    return server.step(RuleState(), Cohort.of(updates, layout(**sizes)), STALENESS_CTX).step


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [  # staleness 0, 1, 3, 4, 5, 6
        (StalenessWeights(), [1, 2**-0.5, 1 / 2, 5**-0.5, 6**-0.5, 7**-0.5]),  # 1 / sqrt(1 + d)
        (StalenessWeights(exponent=1), [1, 1 / 2, 1 / 4, 1 / 5, 1 / 6, 1 / 7]),
        (StalenessWeights("hinge"), [1, 1, 1, 1, 1 / 11, 1 / 21]),
        (StalenessWeights("hinge", slope=0.5, threshold=1), [1, 1, 1 / 2, 0.4, 1 / 3, 2 / 7]),
        (StalenessWeights("constant"), [1] * 6),
    ],
)
def test_weights_by_hand(weights, wanted):
    found = weights.weights(np.array([0, 1, 3, 4, 5, 6], np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    assert found[0] == 1, "a fresh update counts whole: staleness is from 0"


def test_a_step_by_hand():
    """Samples 1 and 3, staleness 0 and 3: 1/4 * 1 * (2, 0) + 3/4 * 1/2 * (0, 1)."""
    deltas = [[2.0, 0.0], [0.0, 1.0]]
    assert step(StalenessWeights(), deltas, (0, 3), (1, 3)).tolist() == [0.5, 0.375]
    assert step(StalenessWeights(mixing=0.5), deltas, (0, 3), (1, 3)).tolist() == [0.25, 0.1875]
    assert step(StalenessWeights("constant"), deltas, (0, 3), (1, 3)).tolist() == [0.5, 0.75]


def test_running_statistics_keep_their_weights_but_in_mixed_models():
    deltas, sizes = [[2.0, 4.0], [0.0, 8.0]], {"params": 1, "statistics": 1}
    assert step(StalenessWeights(), deltas, (0, 3), (1, 1), **sizes).tolist() == [1.0, 6.0]
    mixing = StalenessWeights(mixing=0.5)
    assert step(mixing, deltas, (0, 3), (1, 1), **sizes).tolist() == [0.5, 2.0]


def test_statistics_of_stale_updates_stay_under_the_rule():
    """The median, although the client with 98 of 100 samples sends 1000 and another is stale."""
    deltas, sizes = [[2.0, 0.0], [4.0, 0.0], [6.0, 1000.0]], {"params": 1, "statistics": 1}
    median = algorithms.load("coordinate_median", {}).server
    found = step(StalenessWeights(), deltas, (0, 3, 0), (1, 1, 98), reduced=median, **sizes)
    assert found.tolist() == [2.0, 0.0]


def test_against_a_loop():
    rng = np.random.default_rng(0)
    m, d = 7, 5000
    deltas, staleness = rng.normal(size=(m, d)), rng.integers(0, 6, m)
    samples = rng.integers(1, 50, m)
    wanted = np.zeros(d)
    for i in range(m):
        s = 1.0 if staleness[i] <= 2 else 1 / (3 * (staleness[i] - 2) + 1)
        wanted += samples[i] / samples.sum() * 0.6 * s * deltas[i]
    weights = StalenessWeights("hinge", slope=3, threshold=2, mixing=0.6)
    found = step(weights, deltas, staleness, samples.tolist(), params=d)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)


def test_a_model_that_is_mixed_in_by_hand():
    """FedAsync: the model 1 + 1/2 that a client made of version 4, mixed into 3 with weight 1/2.

    (1 - 1/2) 3 + 1/2 (1 + 1/2) = 9/4; adding half of its update would give 13/4.
    """
    now, base = np.array([3.0, 3.0]), np.array([1.0, 1.0])
    update = ClientUpdate(
        client_id=0, num_samples=1, num_steps=1, delta=np.array([0.5, 0.5]), version=4
    )
    models = {4: (base, {}), 5: (now, {})}
    (mixed,) = rebased(layout(), [update], models, now, whole=True)
    weights = StalenessWeights("constant", mixing=0.5)
    assert (now + step(weights, [mixed.delta], [1], [1])).tolist() == [2.25, 2.25]
    (added,) = rebased(layout(), [update], models, now)
    assert added.delta.tolist() == [0.5, 0.5]
    assert update.delta.tolist() == [0.5, 0.5], "nothing is written to"


P = 4
PRIVACY_LAYOUT = Layout((Slot(name="w", shape=(P,), start=0, stop=P),))
EVERYTHING = GaussianNoise((slice(0, P),))


def context(round=0, seed=0):
    return RoundContext(round=round, num_rounds=99, num_clients=10, lr=0.1, seed=seed)


def privacy_cohort(rows, samples=None, extras=None, layout=PRIVACY_LAYOUT):
    samples = [1] * len(rows) if samples is None else samples
    extras = [{}] * len(rows) if extras is None else extras
    sent = [
        ClientUpdate(client_id=i, num_samples=n, num_steps=1, delta=np.asarray(row), extras=own)
        for i, (row, n, own) in enumerate(zip(rows, samples, extras, strict=True))
    ]
    return Cohort.of(sent, layout)


def privacy_draw(m=6, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(m, P)) * 10.0 ** rng.uniform(-2, 1, size=(m, 1))).astype(dtype)


def mean(**settings):
    return PrivateMean(**{"clip": 1.0, "noise_multiplier": 0.0, "noise": EVERYTHING} | settings)


def test_privacy_by_hand():
    # norms 5 and 1: (3, 4) becomes (0.6, 0.8); two of four expected clients answered
    found = mean(expected=4)(privacy_cohort([[3.0, 4, 0, 0], [0.0, 0, 1, 0]]), {}, context())
    np.testing.assert_allclose(found.step, [0.15, 0.2, 0.25, 0], rtol=1e-15)
    assert found.metrics == {"clip": 1.0, "clipped": 0.5}
    # weights 1/2 and 1, of which 1.5 are expected
    weighted = mean(expected=1.5, max_samples=20)
    found = weighted(privacy_cohort([[3.0, 4, 0, 0], [0.0, 0, 1, 0]], [10, 30]), {}, context())
    np.testing.assert_allclose(found.step, [0.2, 0.8 / 3, 2 / 3, 0], rtol=1e-15)


@pytest.mark.parametrize("most", [None, 25])
def test_against_a_loop_over_clients(most):
    rows, samples = privacy_draw(), [10, 20, 30, 40, 50, 60]
    wanted = [0.0] * P
    for row, n in zip(rows, samples, strict=True):
        norm = math.sqrt(sum(value**2 for value in row))
        weight = 1.0 if most is None else min(n / most, 1.0)
        for j in range(P):
            wanted[j] += weight * row[j] * min(1.0, 0.7 / norm) / 3.5
    private = mean(clip=0.7, expected=3.5, max_samples=most)
    found = private(privacy_cohort(rows, samples), {}, context())
    np.testing.assert_allclose(found.step, wanted, rtol=1e-12)


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e6])
def test_one_client_moves_the_step_by_the_clipping_norm_at_most(factor):
    rows = privacy_draw(seed=3)
    private = mean(clip=0.5, expected=6)
    whole = private(privacy_cohort(rows), {}, context()).step
    removed = private(privacy_cohort(rows[1:]), {}, context()).step
    replaced = private(privacy_cohort([factor * rows[1], *rows[1:]]), {}, context()).step
    assert np.linalg.norm(whole - removed) <= 0.5 / 6 * (1 + 1e-12)
    assert np.linalg.norm(whole - replaced) <= 2 * 0.5 / 6 * (1 + 1e-12)


def test_without_noise_and_clipping_it_is_the_mean_to_the_last_bit():
    c = privacy_cohort(privacy_draw(dtype=np.float32))
    found = mean(clip=1e30, expected=6)(c, {}, context())
    assert np.array_equal(found.step, Average("uniform")(c, {}, context()).step)


def test_the_noise_has_the_variance_of_the_mechanism():
    """Without a client the step is noise alone: its squares over the variance are chi-squared."""
    size, kept = 50_000, 100
    layout = Layout((Slot(name="w", shape=(size,), start=0, stop=size),))
    private = mean(
        clip=3.0, noise_multiplier=2.0, expected=4, noise=GaussianNoise((slice(kept, size),))
    )
    nobody = Cohort.empty(layout, np.zeros(size, np.float32))
    one, two = (private(nobody, {}, context(round)).step for round in range(2))
    assert one.dtype == np.float32
    assert not one[:kept].any()  # what is not sent
    n = size - kept
    for step in (one, two):
        squares = np.sum(np.square(step[kept:], dtype=np.float64)) / (2.0 * 3.0 / 4) ** 2
        assert 1e-4 < stats.chi2.cdf(squares, n) < 1 - 1e-4
    assert abs(np.corrcoef(one[kept:], two[kept:])[0, 1]) < 4 / math.sqrt(n)
    again = private(nobody, {}, context(1)).step
    assert np.array_equal(two, again)


def test_noise_is_added_to_the_clipped_sum():
    rows = privacy_draw()
    private = mean(clip=0.5, noise_multiplier=1.5, expected=5)
    nobody = Cohort.empty(PRIVACY_LAYOUT, np.zeros(P))
    noise = private(nobody, {}, context()).step
    quiet = mean(clip=0.5, expected=5)(privacy_cohort(rows), {}, context()).step
    found = private(privacy_cohort(rows), {}, context()).step
    np.testing.assert_allclose(found, quiet + noise, atol=1e-7)


def test_adaptive_clipping_by_hand():
    # two of three norms are at most 1: b = 2/3, and C shrinks, since half of them should be
    adaptive = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.0, expected=3)
    found = adaptive(1.0, np.array([0.2, 1.0, 7.0]), context())
    assert found == pytest.approx(math.exp(-0.2 * (2 / 3 - 1 / 2)), rel=1e-14)
    # two of four expected clients answer, none is clipped: b = 1/2 + (1/2 + 1/2) / 4
    fewer = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.0, expected=4)
    assert fewer(1.0, np.array([0.2, 0.3]), context()) == pytest.approx(math.exp(-0.05), rel=1e-14)
    assert fewer(1.0, np.empty(0), context()) == 1.0


@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("quantile", [0.3, 0.8])
def test_adaptive_clipping_converges_to_the_quantile(start, quantile):
    """Norms are 1 in the median, log-normal; C converges to their quantile and stays there."""
    adaptive = AdaptiveClip(quantile=quantile, lr=0.2, count_noise=2.5, expected=50)
    rng, clip, last = np.random.default_rng(1), start, []
    for round in range(400):
        clip = adaptive(clip, rng.lognormal(0.0, 0.5, 50), context(round))
        last.append(clip)
    wanted = stats.lognorm(0.5).ppf(quantile)
    assert np.exp(np.mean(np.log(last[200:]))) == pytest.approx(wanted, rel=0.05)
    assert max(last[200:]) / min(last[200:]) < 1.6


def test_the_state_of_adaptive_clipping_is_the_norm_of_the_next_round():
    adaptive = AdaptiveClip(quantile=0.5, lr=0.2, count_noise=0.5, expected=6)
    private = mean(clip=0.3, expected=6, adaptive=adaptive)
    server, c = Server(private), privacy_cohort(privacy_draw(dtype=np.float32))
    first = server.step(RuleState(), c, context(0))
    assert first.metrics["clip"] == 0.3
    stored = RuleState.unflatten(first.state.flatten())
    second = server.step(stored, c, context(1))
    norms = c.norms(slice(0, P))
    assert second.metrics["clip"] == adaptive(0.3, norms, context(0)) != 0.3


@pytest.mark.parametrize(
    ("count", "beside"), [(5.0, 1.00504), (2.5, 1.02062), (0.55, 2.4004), (0.5, None), (0.1, None)]
)
def test_the_noise_of_the_sum_beside_that_of_the_count(count, beside):
    """1905.03871, Theorem 1, at z = 1 for a count_noise of a twentieth of 100, 50 and 11."""
    found = noise_beside_count(1.0, count)
    assert found == (None if beside is None else pytest.approx(beside, rel=1e-4))
    if found is not None:
        assert found**-2 + (2 * count) ** -2 == pytest.approx(1.0, rel=1e-12)
    assert noise_beside_count(0.0, count) == 0.0


def test_sums_of_other_uploads_are_clipped_and_noised():
    extras = [{"c": np.array([3.0, 4, 0, 0])}, {"c": np.array([0.0, 0, 1, 0])}]
    c = privacy_cohort(privacy_draw(2), extras=extras)
    quiet = PrivateSum(server_control, "c", 1.0, 0.0)
    found = quiet(c, {"c": np.array([1.0, 0, 0, 0])}, context())
    np.testing.assert_allclose(found.state["c"], [1.06, 0.08, 0.1, 0], rtol=1e-14)
    loose = PrivateSum(server_control, "c", 1e30, 0.0)(c, {}, context())
    wanted = server_control(c, {}, context())
    np.testing.assert_allclose(loose.state["c"], wanted.state["c"], rtol=1e-14)
    noised = PrivateSum(server_control, "c", 1.0, 2.0)(c, {}, context())
    size = 50_000
    layout = Layout((Slot(name="w", shape=(size,), start=0, stop=size),))
    nobody = Cohort.empty(layout, np.zeros(size, np.float32))
    noise = PrivateSum(server_control, "c", 3.0, 2.0)(nobody, {}, context()).state["c"]
    squares = np.sum(np.square(noise)) / (2.0 * 3.0 / 10) ** 2
    assert 1e-4 < stats.chi2.cdf(squares, size) < 1 - 1e-4
    assert not np.array_equal(noised.state["c"], found.state["c"])
