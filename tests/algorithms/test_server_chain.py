"""Reductions and server optimisers of several methods in one chain, ``--server fedgh,fedadam``."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from fedsim import algorithms
from fedsim.algorithms import Algorithm, compose
from fedsim.config.resolve import load_config, to_yaml
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext
from fedsim.server import Average, ClipNorms, Server
from fedsim.server.base import RuleState
from tests.algorithms.serving import LAYOUT, cohort
from tests.oracles import aggregation, optimisers, robust

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
        lambda d, **o: optimisers.adaptive("adam", d, **o), reduced,
        eta=0.1, beta1=0.9, beta2=0.99, tau=1e-3, v0=1e-6,
    )  # fmt: skip


def momentum(reduced):
    return by_coordinate(optimisers.momentum, reduced, beta=0.9, eta=1.0)


def fedgh(g):
    return aggregation.fedgh(g, SAMPLES, aggregation.visiting_orders(len(g), "ascending"))


ASCENDING = {"fedgh": {"order": "ascending"}}


@pytest.mark.parametrize(
    ("server", "reduce", "optimise"),
    [
        ("fedgh", fedgh, ()),
        ("fedgh,fedadam", fedgh, (adam,)),
        ("fedgh,fedavgm,fedadam", fedgh, (momentum, adam)),
        ("fedgh,fedadam,fedavgm", fedgh, (adam, momentum)),
        ("simagg,fedavgm", lambda g: robust.similar(g, SAMPLES, "simagg"), (momentum,)),
        ("fedadam", lambda g: aggregation.mean(g, SAMPLES), (adam,)),
        ("fedadam,fedavgm", lambda g: aggregation.mean(g, SAMPLES), (adam, momentum)),
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


@pytest.mark.parametrize("given", ["fedgh,fedadam", " fedgh, fedadam", ["fedgh", "fedadam"]])
def test_a_text_or_a_list_in_the_configuration(given, tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"algorithm": "fedprox", "server": given}))
    found = load_config(file=file)
    assert found == RunConfig(algorithm="fedprox", server=given)
    assert found.server == "fedgh,fedadam"
    assert found.methods == ("fedprox", "fedgh", "fedadam")
    assert set(found.hyperparameters) == {"fedprox", "fedgh", "fedadam"}
    file.write_text(to_yaml(found))
    assert load_config(file=file) == found


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


def test_an_optimiser_that_keeps_nothing_may_be_missing_in_a_checkpoint():
    rounds = np.random.default_rng(6).normal(size=(3, 4, 6))
    composed = algorithms.compose("scaffold", {}, server="fedadam,scaffold").server
    composed = type(composed)(composed.reduction, optimizers=composed.optimizers)
    states, found = [RuleState(), RuleState()], []
    for t, updates in enumerate(rounds):
        ctx = RoundContext(round=t, num_rounds=3, num_clients=10, lr=0.1, seed=0)
        answers = [composed.step(state, cohort(updates, SAMPLES), ctx) for state in states]
        states = [answers[0].state, RuleState.unflatten(answers[1].state.flatten())]
        found.append([answer.step for answer in answers])
    assert len(states[1].optimizers) == 1 < len(states[0].optimizers)
    for ours, restored in found:
        np.testing.assert_array_equal(ours, restored)


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
