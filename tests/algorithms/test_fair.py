"""Methods that weigh clients by their losses."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from fedsim.algorithms.afl import WorstMixture, projected
from fedsim.algorithms.qffl import ByLosses
from fedsim.core.types import RoundContext
from fedsim.testing.rounds import rounds, small
from tests.algorithms.cases import COUNTS, LAYOUT, PARTICIPANTS, SAMPLES, A, B, Federation, cohort
from tests.algorithms.training import TRAINING, classification, tensors, train, worker
from tests.oracles import rounds as oracle
from tests.rounding import rounding, sgd_operations

SETTINGS = {"train": {"rounds": 3, "sample_rate": 0.375, "momentum": 0.9, "weight_decay": 0.01}}


def context(lr=0.1, clients=8, held_out=0):
    return RoundContext(
        round=0, num_rounds=9, num_clients=clients, lr=lr, seed=0, num_held_out=held_out
    )


def sent(updates, losses, clients=None, **settings):
    """A cohort whose clients have sent their losses."""
    made = cohort(updates, **settings)
    ids = range(len(losses)) if clients is None else clients
    each = zip(made.updates, losses, ids, strict=True)
    updates = [replace(u, client_id=i, extras={"loss": np.array([f])}) for u, f, i in each]
    return replace(made, updates=tuple(updates))


@pytest.mark.parametrize("name", ["qffl", "afl"])
def test_clients_send_the_loss_of_the_received_model(name):
    w = worker(name, "mlp", TRAINING)
    start = w.flat.vector()
    reports, deltas = train(w, lr=0.2)
    wanted = [classification(w, client)(tensors(w, start)).item() for client in range(3)]
    found = [r.extras["loss"].item() for r in reports]
    assert found == pytest.approx(wanted, rel=rounding(np.float32, sgd_operations(1, 3, 64)))
    np.testing.assert_array_equal(deltas, train(worker("fedavg", "mlp", TRAINING), lr=0.2)[1])


@pytest.mark.integration
@pytest.mark.parametrize("off", [("qffl", "q"), ("afl", "rate")], ids=lambda off: off[0])
def test_without_a_power_or_a_rate_it_is_fedavg_of_equal_weights(off):
    name, key = off
    made = rounds(small(name, "mlp", **{name: {key: 0.0}}, **SETTINGS))
    wanted = rounds(small("fedavg", "mlp", fedavg={"weights": "uniform"}, **SETTINGS))
    assert len(made[0].clients) == 3  # of which no power of two is a multiple
    for one, other in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(one.after.params, other.after.params)


def test_qfedavg_by_hand():
    # lr = 0.5, q = 1, F = (1, 2), moves (0.5, 0) and (0, 1): ||L move||^2 = 1 and 4,
    # h = 1 + 2 * 1 = 3 and 4 + 2 * 2 = 8, Delta = (1, 0) and 2 (0, 2): the step is (1, 4) / 11.
    made = sent([[0.5, 0.0], [0.0, 1.0]], [1.0, 2.0])
    received = ByLosses(1.0)(made, {}, context(lr=0.5)).cohort
    step = received.step([np.full(2, 0.5)], [slice(0, 2)])
    np.testing.assert_allclose(step, [1 / 11, 4 / 11], rtol=1e-9)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 3.0])
def test_qfedavg_oracle(q):
    federation = Federation("qffl", {"q": q}, A, B, COUNTS, SAMPLES)
    path = [federation.step(cohort) for cohort in PARTICIPANTS]
    wanted = oracle.qfedavg(A, B, PARTICIPANTS, COUNTS, 0.1, q)
    np.testing.assert_allclose(path, wanted, rtol=1e-8, atol=1e-12)


def test_without_a_learning_rate_and_with_a_loss_of_zero_all_is_finite():
    made = sent([[0.0, 0.0], [0.0, 0.0]], [0.0, 1.0])
    for q in (0.0, 0.5, 2.0):
        received = ByLosses(q)(made, {}, context(lr=0.0))
        np.testing.assert_array_equal(received.cohort.step([np.ones(2)], [slice(0, 2)]), 0.0)


def test_statistics_are_means_by_samples_whatever_the_losses():
    made = sent(np.ones((2, 6)) * [[1.0], [3.0]], [1.0, 5.0], samples=[1, 3], layout=LAYOUT)
    for rule in (ByLosses(1.0), WorstMixture(0.1, "projected")):
        assert rule(made, {}, context()).statistics is made


def nearest(y, total):
    """The projection on the scaled simplex, by trying every set of positive entries."""
    best = None
    for size in range(1, len(y) + 1):
        for kept in map(list, combinations(range(len(y)), size)):
            x = np.zeros(len(y))
            x[kept] = y[kept] - (y[kept].sum() - total) / size
            away = ((x - y) ** 2).sum()
            if (x >= 0).all() and (best is None or away < best[0]):
                best = away, x
    return best[1]


def test_projection_by_hand():
    # (0.5, 0.8, -1) to the sum 1: the first two lose 0.15 each.
    np.testing.assert_allclose(projected(np.array([0.5, 0.8, -1.0]), 1.0), [0.35, 0.65, 0.0])


@pytest.mark.parametrize("m", [1, 2, 3, 6])
@pytest.mark.parametrize("total", [0.5, 1.0, 4.0])
def test_projection_oracle(m, total):
    rng = np.random.default_rng(m)
    for spread in (0.1, 1.0, 10.0):
        y = spread * rng.normal(size=m)
        np.testing.assert_allclose(projected(y, total), nearest(y, total), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ascent", ["projected", "mirror"])
def test_afl_oracle(ascent):
    federation = Federation("afl", {"rate": 0.2, "ascent": ascent}, A, B, COUNTS, SAMPLES)
    found = []
    for _ in range(8):
        federation.step()
        weights = federation.state.receive["afl"]["weights"]
        found.append([*federation.w, *(weights / 4)])
    project = (lambda y: nearest(y, 1.0)) if ascent == "projected" else None
    path, lam = oracle.afl(A, B, 8, COUNTS, 0.1, 0.2, project)
    # clients send float64 losses here; sums in another order
    np.testing.assert_allclose(found, np.hstack([path, lam]), rtol=1e-9, atol=1e-11)
    assert np.ptp(lam[-1]) > 0.1


@pytest.mark.parametrize("ascent", ["projected", "mirror"])
def test_lambda_stays_in_the_simplex_whoever_takes_part(ascent):
    rng, state = np.random.default_rng(0), {}
    rule = WorstMixture(0.7, ascent)
    for _ in range(30):
        ids = sorted(rng.choice(8, rng.integers(1, 9), replace=False).tolist())
        before = state.get("weights", np.ones(10))
        made = sent(rng.normal(size=(len(ids), 2)), rng.exponential(2, len(ids)), ids)
        received = rule(made, state, context(held_out=2))
        state = received.state
        weights = state["weights"]
        assert weights.min() >= 0
        assert weights[:8].sum() == pytest.approx(8, rel=1e-12)
        assert weights[ids].sum() == pytest.approx(before[ids].sum(), rel=1e-12)
        others = [i for i in range(10) if i not in ids]
        np.testing.assert_array_equal(weights[others], before[others])
        largest = weights[ids].max() / 8
        assert received.metrics["largest_lambda"] == pytest.approx(largest, rel=1e-12)


def test_clients_that_count_for_nothing_still_make_a_step_alone():
    state = {"weights": np.array([0.0, 0.0, 3.0])}
    made = sent([[1.0], [3.0]], [1.0, 1.0])
    received = WorstMixture(0.1, "projected")(made, state, context(clients=3))
    assert received.cohort.step([np.full(2, 0.5)], [slice(0, 1)]) == pytest.approx([2.0])
    np.testing.assert_array_equal(received.state["weights"], state["weights"])


@pytest.mark.parametrize("ascent", ["projected", "mirror"])
def test_afl_ends_where_the_worst_loss_is_least(ascent):
    # F_1 = w^2 / 2 and F_2 = (w - 3)^2: equal at w = 3 sqrt 2 / (1 + sqrt 2), the least worst loss.
    # The iterates turn around the saddle point, their mean goes there.
    options = {"rate": 0.1, "ascent": ascent}
    federation = Federation("afl", options, (1.0, 2.0), (0.0, 3.0), (1, 1), (1, 1), lr=0.2)
    path = np.array([federation.run(1) for _ in range(250)])
    wanted = 3 * np.sqrt(2) / (1 + np.sqrt(2))
    assert path[50:].mean() == pytest.approx(wanted, abs=0.02)
    # lambda where the mixture's gradient is 0: l w + 2 (1 - l) (w - 3) = 0
    pull = 2 * (3 - wanted)
    share = federation.state.receive["afl"]["weights"][0] / 2
    assert share == pytest.approx(pull / (pull + wanted), abs=0.1)
