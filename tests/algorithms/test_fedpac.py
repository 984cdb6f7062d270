"""FedPAC's server pieces: class statistics, the quadratic program, the head weights."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim import algorithms
from fedsim.algorithms.fedpac import head_weights, solve_simplex, statistics
from fedsim.core.layout import select
from fedsim.core.types import ClientUpdate, Training
from fedsim.server.base import RuleState
from fedsim.server.cohort import Cohort
from tests.oracles import fedpac as oracle

from .training import CLASSES, context, train, worker


def clients(m, seed=0, classes=3, d=4, spread=0.3):
    rng = np.random.default_rng([seed, m])
    return spread * rng.normal(size=(m, classes * d)), rng.uniform(0.05, 0.5, size=m)


def test_statistics_by_hand():
    # Class 0: features 1 and 3, class 1: 2 (one sample), class 2: none; n = 3.
    # H = (2/3 * 2, 1/3 * 2, 0). V = 1/3 * [2/3 * (1 + 9)/2 - 4/9 * 4 + 1/3 * 4 - 1/9 * 4]
    #   = 1/3 * [10/3 - 16/9 + 4/3 - 4/9] = 1/3 * 22/9 = 22/27.
    h, v = statistics(np.array([[1.0], [3.0], [2.0]]), np.array([0, 0, 1]), 3)
    np.testing.assert_allclose(h, [[4 / 3], [2 / 3], [0.0]], rtol=1e-14)
    assert v == pytest.approx(22 / 27, rel=1e-14)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_statistics_oracle(n):
    rng = np.random.default_rng(n)
    features, labels = rng.normal(size=(n, 5)), rng.integers(0, 3, size=n)
    h, v = statistics(features, labels, 4)
    expected_h, expected_v = oracle.statistics(features, labels, 4)
    np.testing.assert_allclose(h, expected_h, rtol=0, atol=1e-13)
    assert v == pytest.approx(expected_v, rel=1e-12, abs=1e-15)


def test_published_example():
    # h = (1, 1.2, 3), V = (.1, .2, .3): entries are 0 or above 1e-3, so the cut changes nothing.
    expected = [
        [0.7058823529, 0.2941176471, 0.0],
        [0.6260032103, 0.2937399679, 0.08025682183],
        [0.0, 0.08021390374, 0.9197860963],
    ]
    alpha = head_weights(np.array([[1.0], [1.2], [3.0]]), np.array([0.1, 0.2, 0.3]))
    np.testing.assert_allclose(alpha, expected, rtol=1.5e-9, atol=1e-10)


def test_program_by_hand():
    # P = diag(1, 3): a = (3/4, 1/4). P = [[1, 2], [2, 5]]: on a + b = 1 the value
    # 1 + 2 b + 2 b^2 grows with b >= 0, so (1, 0).
    np.testing.assert_allclose(solve_simplex(np.diag([1.0, 3.0])), [0.75, 0.25], rtol=1e-10)
    np.testing.assert_allclose(
        solve_simplex(np.array([[1.0, 2.0], [2.0, 5.0]])), [1, 0], atol=1e-12
    )
    # P = 0: every point is optimal; the middle.
    np.testing.assert_allclose(solve_simplex(np.zeros((4, 4))), np.full(4, 0.25), rtol=1e-15)


@pytest.mark.parametrize("m", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0])
def test_program_oracle(m, spread):
    h, v = clients(m, spread=spread)
    for i in range(m):
        p = oracle.quadratic(h, v, i)
        np.testing.assert_allclose(
            solve_simplex(p), oracle.simplex_by_enumeration(p), rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("m", [10, 50])
def test_program_satisfies_kkt_and_agrees_with_slsqp(m):
    h, v = clients(m, spread=0.1)
    for i in (0, m - 1):
        p = oracle.quadratic(h, v, i)
        a = solve_simplex(p)
        assert a.min() >= 0
        assert a.sum() == pytest.approx(1.0, abs=1e-12)
        value, slope = a @ p @ a, p @ a
        # Slope = value on the support (2 P a = multiplier), and not below it elsewhere.
        np.testing.assert_allclose(slope[a > 1e-9], value, rtol=1e-7)
        assert slope.min() >= value * (1 - 1e-7)
        np.testing.assert_allclose(a, oracle.simplex_by_slsqp(p), rtol=0, atol=1e-5)


@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_head_weights_oracle(m):
    h, v = clients(m, spread=0.1)
    alpha = head_weights(h, v)
    np.testing.assert_allclose(alpha, oracle.head_weights(h, v), rtol=0, atol=1e-9)
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-12)


def test_small_weights_are_cut_and_the_rest_renormalised():
    # Equal H: a_j = (1/V_j) / sum(1/V) = (1, 1, 1/1000) / 2.001; the last, 5e-4, is cut to 0.
    alpha = head_weights(np.ones((3, 2)), np.array([1.0, 1.0, 1000.0]))
    assert np.all(alpha[:, 2] == 0)
    np.testing.assert_allclose(alpha[:, :2], 0.5, rtol=1e-9)


def test_equal_statistics_weigh_by_precision():
    # All H equal: D_i = 0 and a_j is proportional to 1 / V_j: (2, 1, 4) / 7.
    alpha = head_weights(np.ones((3, 4)), np.array([0.5, 1.0, 0.25]))
    np.testing.assert_allclose(alpha, np.tile([2 / 7, 1 / 7, 4 / 7], (3, 1)), rtol=1e-9)


def test_exact_statistics_keep_every_client_its_own_head():
    h, _ = clients(5, spread=1.0)
    np.testing.assert_allclose(head_weights(h, np.full(5, 1e-9)), np.eye(5), atol=1e-6)


def test_no_variance_and_no_difference_still_give_weights():
    alpha = head_weights(np.ones((4, 2)), np.zeros(4))
    assert np.all(np.isfinite(alpha))
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-12)
    assert alpha.min() >= 0


def parts(w):
    """Masks (D,) of the head and of the extractor's parameters, running statistics excluded."""
    head = select(w.flat.layout, lambda slot: slot.head)
    return head, ~head & select(w.flat.layout, lambda slot: slot.role == "param")


def end(w, start, report, delta):
    """The client's model after training, (D,)."""
    head, _ = parts(w)
    vector = start + delta
    vector[head] = report.state["personal"]
    return vector


def test_each_phase_trains_its_part_alone():
    start = worker("fedpac").flat.vector()
    w = worker("fedpac", head_lr=0.0)
    w_head, w_body = parts(w)
    reports, deltas = train(w)
    for report, delta in zip(reports, deltas, strict=True):
        np.testing.assert_array_equal(report.state["personal"], start[w_head])
        assert np.abs(delta[w_body]).max() > 0
        assert np.all(delta[w_head] == 0)
    w = worker("fedpac", head_lr=0.1)
    reports, deltas = train(w, lr=0.0)
    for report, delta in zip(reports, deltas, strict=True):
        assert not np.array_equal(report.state["personal"], start[w_head])
        assert np.all(delta[w_body] == 0)


def test_the_head_epoch_leaves_the_extractor_and_its_statistics():
    w = worker("fedpac", training=Training(local_epochs=0, batch_size=8))
    start = w.flat.vector()
    reports, deltas = train(w)
    assert np.all(deltas == 0)
    for report in reports:
        assert not np.array_equal(report.state["personal"], start[parts(w)[0]])


def test_uploads_are_the_statistics_before_and_the_prototypes_after_training():
    w = worker("fedpac", model="mlp")
    start = w.flat.vector()
    reports, deltas = train(w, (1,))
    index = w.spec.partition.train[1]
    x, y = w.spec.dataset.x[index], w.spec.dataset.y[index]

    def features(vector):
        hidden, bias = vector[: 64 * 64].reshape(64, 64), vector[64 * 64 : 64 * 65]
        pixels = (x.reshape(len(x), 64) / 255 - 0.5) / 0.5
        return np.maximum(pixels @ hidden.T.astype(np.float64) + bias, 0)

    extras = reports[0].extras
    h, v = oracle.statistics(features(start), y, CLASSES)
    np.testing.assert_allclose(extras["H"], h, rtol=0, atol=1e-5)
    assert extras["V"].item() == pytest.approx(v, rel=1e-4)
    after = features(end(w, start, reports[0], deltas[0]))
    means = np.array([after[y == k].mean(axis=0) for k in range(CLASSES)])
    np.testing.assert_allclose(extras["prototypes"], means, rtol=0, atol=1e-5)
    assert extras["counts"].tolist() == [int((y == k).sum()) for k in range(CLASSES)]
    np.testing.assert_array_equal(extras["head"], reports[0].state["personal"])


def test_the_prototype_term_pulls_features_to_the_global_prototypes():
    w = worker("fedpac", model="mlp")
    start = w.flat.vector()
    target = {"prototypes": np.full((CLASSES, 64), 2.0), "known": np.ones(CLASSES, dtype=bool)}
    away, _ = train(w, (0,), params=start, lr=0.5)
    near, _ = train(w, (0,), params=start, lr=0.5, downlink=target)
    off, _ = train(
        worker("fedpac", model="mlp", lam=0.0), (0,), params=start, lr=0.5, downlink=target
    )

    def distance(reports):
        return np.abs(reports[0].extras["prototypes"] - 2.0).mean()

    assert distance(near) < distance(away)
    np.testing.assert_array_equal(off[0].extras["prototypes"], away[0].extras["prototypes"])


def uploaded(client, prototypes, counts, h, v, head, size):
    extras = {
        "prototypes": np.array(prototypes, dtype=np.float64),
        "counts": np.array(counts),
        "H": np.array(h, dtype=np.float64),
        "V": np.array([v]),
        "head": np.array(head, dtype=np.float32),
    }
    return ClientUpdate(
        client_id=client,
        num_samples=sum(counts),
        num_steps=1,
        delta=np.zeros(size, dtype=np.float32),
        extras=extras,
    )


def test_the_server_combines_prototypes_by_counts_and_heads_by_weights():
    # Class 0: (1 * 2 + 3 * 6) / 4 = 5; class 1 only client 7: 9; class 2: nobody.
    # H = 1, 1.2, 3 and V = .1, .2, .3 are example E1 with heads 1, 10, 100 (one feature, one row):
    # 0.70588.. + 2.94117.. = 3.647058823, 0.6260032103 + 2.937399679 + 8.025682183 = 11.58908507,
    # 0.8021390374 + 91.97860963 = 92.78074867.
    w = worker("fedpac", model="logistic")
    size = w.flat.layout.size
    cohort = Cohort.of(
        [
            uploaded(2, [[2], [0], [0]], [1, 0, 0], [[1.0], [0], [0]], 0.1, [1.0], size),
            uploaded(4, [[6], [0], [0]], [3, 0, 0], [[1.2], [0], [0]], 0.2, [10.0], size),
            uploaded(7, [[0], [9], [0]], [0, 5, 0], [[3.0], [0], [0]], 0.3, [100.0], size),
        ],
        w.flat.layout,
    )
    server = algorithms.load("fedpac").server
    step = server.step(RuleState(), cohort, context())
    assert step.downlink["prototypes"][:2].tolist() == [[5.0], [9.0]]
    assert step.downlink["known"].tolist() == [True, True, False]
    heads = [step.private[client]["personal"].item() for client in (2, 4, 7)]
    assert heads == pytest.approx([3.647058823, 11.58908507, 92.78074867], rel=1e-6)
    # Next round only class 2 is seen: the others are kept.
    later = Cohort.of(
        [uploaded(3, [[0], [0], [4]], [0, 0, 2], [[1.0], [0], [0]], 0.1, [1.0], size)],
        w.flat.layout,
    )
    step = server.step(step.state, later, context(1))
    assert step.downlink["prototypes"].tolist() == [[5.0], [9.0], [4.0]]
    assert step.downlink["known"].tolist() == [True, True, True]
    assert step.private[3]["personal"].tolist() == [1.0]
