"""Server optimisers, alone and after other reductions, against their recursions."""

from __future__ import annotations

import numpy as np
import pytest

import fedsim
from fedsim import algorithms
from fedsim.algorithms import Algorithm, compose
from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext
from fedsim.server import Average, ClipNorms, Server
from fedsim.server.base import RuleState
from tests.algorithms.cases import (
    LAYOUT,
    PRINTED,
    answers,
    cohort,
    draw,
    every_cohort,
    every_input,
    path,
)
from tests.oracles import rounds, rules

FEDADAGRAD_DELTAS = np.random.default_rng(4).normal(size=12)


def test_fedadagrad_published_example():
    got = path("fedadagrad", [0.3, -0.2], beta1=0.9)
    np.testing.assert_allclose(got, [0.009966722222, 0.01190279576], **PRINTED)


def test_by_hand_without_momentum_as_by_default():
    # v = 1e-6 + 0.09, then + 0.04: 0.1 * 0.3 / (sqrt(v) + 0.001), ...
    steps = [0.03 / (np.sqrt(0.090001) + 0.001), -0.02 / (np.sqrt(0.130001) + 0.001)]
    np.testing.assert_allclose(path("fedadagrad", [0.3, -0.2]), np.cumsum(steps), rtol=1e-14)


@pytest.mark.parametrize("v0", ["paper", "zero"])
def test_fedadagrad_oracle(v0):
    options = {"eta": 0.03, "beta1": 0.8, "tau": 0.01}
    got = path("fedadagrad", FEDADAGRAD_DELTAS, v0=v0, **options)
    start = 1e-4 if v0 == "paper" else 0.0
    expected = rounds.adaptive("adagrad", FEDADAGRAD_DELTAS, beta2=0.0, v0=start, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


FEDADAM_DELTAS = np.random.default_rng(0).normal(size=12)


def test_by_hand():
    # m = 0.1 * 0.3, v = 0.99e-6 + 0.01 * 0.09, step 0.1 * 0.03 / (sqrt(v) + 0.001).
    expected = 0.003 / (np.sqrt(0.99e-6 + 0.0009) + 0.001)
    np.testing.assert_allclose(path("fedadam", [0.3]), [expected], rtol=1e-14)


def test_fedadam_published_example():
    np.testing.assert_allclose(
        path("fedadam", [0.3, -0.2]), [0.09672272625, 0.1156702587], **PRINTED
    )


@pytest.mark.parametrize("v0", ["paper", "zero"])
@pytest.mark.parametrize("corrected", [False, True])
def test_fedadam_oracle(v0, corrected):
    options = {"eta": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 0.01}
    got = path("fedadam", FEDADAM_DELTAS, v0=v0, bias_correction=corrected, **options)
    start = 1e-4 if v0 == "paper" else 0.0
    expected = rounds.adaptive("adam", FEDADAM_DELTAS, v0=start, corrected=corrected, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_flowers_correction_by_hand():
    # Flower's first round is 1, its exponent 2, v starts at 0: m = 0.1 delta, v = 0.01 delta^2,
    # eta sqrt(1 - 0.99^2) / (1 - 0.9^2).
    got = path("fedadam", [0.3], tau=1e-9, v0="zero", bias_correction=True)
    expected = 0.1 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2) * 0.03 / (0.03 + 1e-9)
    np.testing.assert_allclose(got, [expected], rtol=1e-12)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_fedadam_statistics_follow_their_mean_alone_and_state_is_of_parameters(name):
    updates = np.random.default_rng(1).normal(size=(2, 3, 6))
    for answer, g in zip(
        answers(name, updates, layout=LAYOUT, samples=[1, 2, 3]), updates, strict=True
    ):
        mean = rules.mean(g, [1, 2, 3])
        np.testing.assert_allclose(answer.step[4:], mean[4:], rtol=1e-12)
        assert not np.allclose(answer.step[:4], mean[:4])
        (kept,) = answer.state.optimizers
        assert {k: v.shape for k, v in kept.items()} == {"m": (4,), "v": (4,)}


FEDAVGM_DELTAS = np.random.default_rng(5).normal(size=12)


def test_fedavgm_published_example():
    np.testing.assert_allclose(path("fedavgm", [0.3, -0.2]), [0.3, 0.37], **PRINTED)


def test_nesterov_by_hand():
    # v = 0.3, step 0.3 + 0.9 * 0.3; v = 0.27 - 0.2, step -0.2 + 0.9 * 0.07.
    np.testing.assert_allclose(
        path("fedavgm", [0.3, -0.2], nesterov=True), [0.57, 0.433], rtol=1e-14
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("damping", [False, True])
def test_fedavgm_oracle(nesterov, damping):
    options = {"beta": 0.7, "eta": 0.4, "nesterov": nesterov}
    got = path("fedavgm", FEDAVGM_DELTAS, damping=damping, **options)
    expected = rounds.momentum(FEDAVGM_DELTAS, damped=damping, **options)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@every_input
@every_cohort
def test_the_first_round_and_no_momentum_are_fedavg_bit_for_bit(sampler, m):
    g, n, _ = draw(sampler, m)
    fedavg = fedsim.aggregate(g, n, "fedavg")
    np.testing.assert_array_equal(fedsim.aggregate(g, n, "fedavgm"), fedavg)
    for answer in answers("fedavgm", [g, g], samples=n.tolist(), beta=0.0):
        np.testing.assert_array_equal(answer.step, fedavg)


def test_constant_updates_reach_the_limit_of_the_geometric_series():
    steps = np.diff(path("fedavgm", [0.2] * 400, beta=0.9))
    assert steps[-1] == pytest.approx(0.2 / (1 - 0.9), rel=1e-12)


def test_fedavgm_statistics_follow_their_mean_alone_and_state_is_of_parameters():
    updates = np.random.default_rng(6).normal(size=(3, 2, 6))
    said = answers("fedavgm", updates, layout=LAYOUT, eta=0.5)
    for answer, g in zip(said, updates, strict=True):
        np.testing.assert_allclose(answer.step[4:], rules.mean(g, [1, 1])[4:], rtol=1e-12)
    (kept,) = said[-1].state.optimizers
    assert {k: v.shape for k, v in kept.items()} == {"m": (4,)}


FEDYOGI_DELTAS = np.random.default_rng(3).normal(size=12)


def test_fedyogi_published_example():
    np.testing.assert_allclose(
        path("fedyogi", [0.3, -0.2]), [0.0967222068, 0.1156057178], **PRINTED
    )


@pytest.mark.parametrize("v0", ["paper", "zero"])
def test_fedyogi_oracle(v0):
    options = {"eta": 0.03, "beta1": 0.8, "beta2": 0.6, "tau": 0.5}
    got = path("fedyogi", FEDYOGI_DELTAS, v0=v0, **options)
    expected = rounds.adaptive("yogi", FEDYOGI_DELTAS, v0=0.25 if v0 == "paper" else 0.0, **options)
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


SLOWMO_DELTAS = np.random.default_rng(7).normal(size=12)


def test_by_hand_with_a_falling_rate():
    # u = -0.3 / 0.1 = -3, x = 0.3; u = 0.5 * -3 + 0.2 / 0.05 = 2.5, x = 0.3 - 0.05 * 2.5.
    got = path("slowmo", [0.3, -0.2], rates=[0.1, 0.05], beta=0.5)
    np.testing.assert_allclose(got, [0.3, 0.175], rtol=1e-14)


def test_slowmo_oracle():
    rates = np.linspace(0.3, 0.01, len(SLOWMO_DELTAS))
    got = path("slowmo", SLOWMO_DELTAS, rates=rates, alpha=0.6, beta=0.8)
    expected = rounds.slow_momentum(SLOWMO_DELTAS, rates, alpha=0.6, beta=0.8)
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_at_a_constant_rate_it_is_fedavgm():
    got = path("slowmo", SLOWMO_DELTAS, rates=[0.03] * 12, alpha=0.6, beta=0.8)
    np.testing.assert_allclose(got, path("fedavgm", SLOWMO_DELTAS, eta=0.6, beta=0.8), rtol=1e-12)
    other = path("slowmo", SLOWMO_DELTAS, rates=[0.03, 0.3] * 6, alpha=0.6, beta=0.8)
    assert not np.allclose(other, got)


def test_rounds_at_rate_zero_move_nothing_and_let_the_momentum_decay():
    # A warm-up begins at rate 0: the clients stay where they are.
    got = path("slowmo", [0.0, 0.3, 0.0, 0.3], rates=[0.0, 0.1, 0.0, 0.1], beta=0.5)
    np.testing.assert_allclose(got, [0.0, 0.3, 0.3, 0.3 + 0.3 + 0.25 * 0.3], rtol=1e-14)


SAMPLES = (3, 1, 2, 5)
BY_HAND = {"eta": 0.1, "beta1": 0.5, "beta2": 0.0, "tau": 0.375}


def steps(name, server, rounds, samples=SAMPLES, layout=None, **sections):
    """The server's steps in some rounds of updates (m, d), and its last state."""
    composed = algorithms.compose(name, sections, server=server).server
    state, found = RuleState(), []
    for t, updates in enumerate(rounds):
        ctx = RoundContext(round=t, num_rounds=len(rounds), num_clients=10, lr=0.1, seed=0)
        answer = composed.step(state, cohort(updates, samples, layout), ctx)
        found.append(answer.step)
        state = answer.state
    return np.array(found), state


def test_two_rounds_of_fedgh_then_adam_by_hand():
    # g = (1, 0), (-1, 1), p = 3/4, 1/4, <g_1, g_2> = -1: g_1' = g_1 + g_2 / 2 = (1/2, 1/2) and
    # g_2' = g_2 + g_1 = (0, 1); step (3/8, 5/8). Adam with b1 = 1/2, b2 = 0, tau = 3/8:
    # m = step / 2, then 3/4 step; v = step^2; 0.1 m / (step + 3/8).
    g = np.array([[1.0, 0.0], [-1.0, 1.0]])
    found, state = steps("fedprox", "fedgh,fedadam", [g, g], (30, 10), fedadam=BY_HAND)
    np.testing.assert_allclose(found, [[0.025, 0.03125], [0.0375, 0.046875]], rtol=1e-14)
    (adam,) = state.optimizers
    np.testing.assert_allclose(adam["m"], [9 / 32, 15 / 32], rtol=1e-14)


def by_coordinate(path, reduced, **options):
    """Steps (rounds, d) of an optimiser of one number on those of a reduction (rounds, d)."""
    places = np.array([path(deltas.tolist(), **options) for deltas in reduced.T]).T
    return np.diff(places, axis=0, prepend=0.0)


def adam(reduced):
    return by_coordinate(
        lambda d, **o: rounds.adaptive("adam", d, **o), reduced,
        eta=0.1, beta1=0.9, beta2=0.99, tau=1e-3, v0=1e-6,
    )  # fmt: skip


def momentum(reduced):
    return by_coordinate(rounds.momentum, reduced, beta=0.9, eta=1.0)


def fedgh(g):
    return rules.fedgh(g, SAMPLES, rules.visiting_orders(len(g), "ascending"))


ASCENDING = {"fedgh": {"order": "ascending"}}


@pytest.mark.parametrize(
    ("server", "reduce", "optimise"),
    [
        ("fedgh", fedgh, ()),
        ("fedgh,fedadam", fedgh, (adam,)),
        ("fedgh,fedavgm,fedadam", fedgh, (momentum, adam)),
        ("fedgh,fedadam,fedavgm", fedgh, (adam, momentum)),
        ("simagg,fedavgm", lambda g: rules.similar(g, SAMPLES, "simagg"), (momentum,)),
        ("fedadam", lambda g: rules.mean(g, SAMPLES), (adam,)),
        ("fedadam,fedavgm", lambda g: rules.mean(g, SAMPLES), (adam, momentum)),
    ],
)
def test_three_rounds_are_the_parts_one_after_the_other(server, reduce, optimise):
    rounds = np.random.default_rng(4).normal(size=(3, 4, 6))
    found, state = steps("fedprox", server, rounds, **ASCENDING)
    expected = np.array([reduce(g) for g in rounds])
    for optimiser in optimise:
        expected = optimiser(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert len(state.optimizers) == len(optimise)


def test_statistics_follow_the_reduction_alone():
    rounds = np.random.default_rng(5).normal(size=(2, 4, 6))
    chained, _ = steps("fedprox", "fedgh,fedadam,fedavgm", rounds, layout=LAYOUT)
    alone, _ = steps("fedprox", "fedgh", rounds, layout=LAYOUT)
    np.testing.assert_array_equal(chained[:, 4:], alone[:, 4:])
    assert not np.isclose(chained[:, :4], alone[:, :4]).any()


@pytest.mark.parametrize("name", ["fednova", "scaffold", "fedcm", "fedpac"])
def test_what_belongs_to_the_clients_stays_with_them(name):
    own = algorithms.load(name).server
    composed = algorithms.compose(name, {}, server="fedgh,fedadam").server
    assert composed.reduction == algorithms.load("fedgh").server.reduction
    assert composed.optimizers == algorithms.load("fedadam").server.optimizers
    assert (composed.exchange, composed.receive) == (own.exchange, own.receive)


@pytest.mark.parametrize(
    ("name", "server", "after"),
    [
        ("scaffold", "scaffold,fedadam", ("scaffold", "fedadam")),
        ("scaffold", "fedgh,scaffold", ("scaffold",)),
        ("matched_mean", "matched_mean,fedadam", ("fedadam",)),
        ("fedld", "fedld,fedavgm", ("fedavgm",)),
    ],
)
def test_the_method_itself_may_stand_in_the_chain(name, server, after):
    composed = algorithms.compose(name, {}, server=server).server
    first = algorithms.load(server.split(",")[0]).server
    parts = [algorithms.load(other).server.optimizers for other in after]
    assert composed.reduction == first.reduction
    assert composed.optimizers == sum(parts, ())
    assert composed.needs_whole_updates == first.needs_whole_updates


@pytest.mark.parametrize(
    ("name", "server", "reason"),
    [
        ("fedprox", "fedadam,fedgh", "only the first method gives the reduction.*'fedgh' does not"),
        ("fedprox", "fedgh,fedld", "only the first method gives the reduction.*'fedld' does not"),
        ("fedprox", "fedgh,fedavg", "only the first method gives the reduction"),
        ("fedprox", "fedgh,fedadam,fedadam", "names 'fedadam' twice"),
        (
            "fedprox",
            "fedgh,scaffold",
            "'scaffold' cannot serve fedprox: it works with what its own",
        ),
        ("fedprox", "fedgh,feddyn", "'feddyn' cannot serve fedprox: it subtracts h / alpha"),
        ("fedprox", "matched_mean,fedadam", "cannot serve fedprox: it matches the channels"),
        ("feddyn", "feddyn,fedadam", "cannot serve feddyn, which subtracts h / alpha"),
        ("pfedla", "pfedla,fedadam", "cannot serve pfedla, which mixes its clients' models"),
        ("fedprox", "fedgh,fedadm", "unknown algorithm 'fedadm'.*'fedadam'"),
        ("fedprox", "fedgh,", "unknown algorithm ''"),
    ],
)
def test_what_makes_no_sense_is_refused(name, server, reason):
    with pytest.raises(ConfigError, match=reason):
        algorithms.compose(name, {}, server=server)


def test_the_state_by_the_names_of_checkpoints():
    names = ("probe.gm", "reduce.history", "exchange.c", "then.m", "then.v", "then3.m")
    stored = {name: np.array([float(i)]) for i, name in enumerate(names)}
    state = RuleState.unflatten(stored)
    assert set(state.probe) == {"gm"}
    assert set(state.reduction) == {"history"}
    assert set(state.exchange) == {"c"}
    assert [set(kept) for kept in state.optimizers] == [{"m", "v"}, set(), {"m"}]
    assert state.flatten() == stored
    assert RuleState.unflatten({}) == RuleState()
    for name in ("m", "thens.m", "reduction.m"):
        with pytest.raises(ValueError, match="belongs to no part"):
            RuleState.unflatten({name: stored["then.m"]})


def clipped():
    """A method of the user's own whose server clips updates before their mean."""
    return Algorithm(server=Server(Average(), receive=(ClipNorms(0.5),)))


def test_a_server_brings_its_cohort_transforms():
    composed = compose("fednova", {}, server=f"{__name__}:clipped").server
    assert [part.name for part in composed.receive] == ["clip", "normalise"]
    assert [part.name for part in compose("fednova", {}, server="fedgh").server.receive] == [
        "normalise"
    ]
    with pytest.raises(ConfigError, match="only the first method gives the reduction"):
        compose("fedavg", {}, server=f"fedgh,{__name__}:clipped")
