"""pFedLA: every client trains from its own mixture, whose shares the server learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedsim
from fedsim import algorithms
from fedsim.algorithms.pfedla import Mixtures, Shape, ascended, layers_of, mixing_weights
from fedsim.core.errors import ConfigError, ContractError
from fedsim.core.types import ClientUpdate, Layout, RoundContext, Slot
from fedsim.server.cohort import Cohort
from tests.oracles import hypernetworks as oracle

LAYOUT = Layout(
    (
        Slot(name="a.weight", shape=(2, 2), start=0, stop=4),
        Slot(name="a.bias", shape=(2,), start=4, stop=6),
        Slot(name="b.weight", shape=(3,), start=6, stop=9),
        Slot(name="a.running_mean", shape=(1,), start=9, stop=10, role="stat"),
    )
)
CLIENTS, WIDTH = 4, 5
SHAPE = Shape(CLIENTS, 2, WIDTH)
COLUMNS = [[0, 1, 2, 3, 4, 5, 9], [6, 7, 8]]


def shares(shape, psi, client):
    """alpha (L, N) for the hypernetwork psi, both arrays."""
    return mixing_weights(shape, torch.from_numpy(np.array(psi)), client).numpy()


def cut(psi):
    """The parts of the hypernetwork psi, as views of the array."""
    return [part.numpy() for part in SHAPE.cut(torch.from_numpy(psi))]


def context(round=0):
    return RoundContext(round=round, num_rounds=10, num_clients=CLIENTS, lr=0.1, seed=3)


def update(client, trained):
    return ClientUpdate(
        client_id=client,
        num_samples=1,
        num_steps=1,
        delta=np.zeros(10, np.float32),
        extras={"model": trained},
    )


def exchange(trained, state=None, start=None, **options):
    start = np.arange(10.0, dtype=np.float32) if start is None else start
    rule = Mixtures(options.get("lr", 0.1), WIDTH, options.get("keep_local", 0))
    updates = [update(c, m) for c, m in trained.items()]
    return rule(Cohort.of(updates, LAYOUT, params=start), state or {}, context())


def trained_models(seed=0, clients=range(CLIENTS)):
    rng = np.random.default_rng(seed)
    return {c: rng.normal(size=10).astype(np.float32) for c in clients}


def test_a_layer_is_a_module_with_its_statistics():
    found = layers_of(LAYOUT)
    assert list(found) == ["a", "b"]
    assert found["a"] == [slice(0, 4), slice(4, 6), slice(9, 10)]


@pytest.mark.parametrize("client", range(CLIENTS))
def test_shares_against_the_oracle(client):
    psi = SHAPE.start(0, client)
    alpha = shares(SHAPE, psi, client)
    expected = oracle.shares(torch.from_numpy(psi), client, CLIENTS, 2, WIDTH)
    np.testing.assert_allclose(alpha, expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(alpha.sum(axis=1), 1.0, rtol=1e-14)
    assert (alpha >= 0).all()


def test_a_row_without_shares_is_the_client_alone():
    psi = SHAPE.start(0, 1)
    _, _, outputs = cut(psi)
    outputs[:CLIENTS] = -1.0  # layer a: every output is cut off
    alpha = shares(SHAPE, psi, 1)
    assert alpha[0].tolist() == [0.0, 1.0, 0.0, 0.0]
    gain = np.random.default_rng(0).normal(size=(2, CLIENTS))
    after = cut(ascended(SHAPE, psi, 1, gain, 0.1))[2]
    np.testing.assert_array_equal(after[:CLIENTS], outputs[:CLIENTS])


@pytest.mark.parametrize("seed", range(5))
def test_three_rounds_against_the_oracle(seed):
    # Clients 0 and 2 take part, then 1 and 2, then all.
    start = np.random.default_rng(seed).normal(size=10).astype(np.float32)
    psi = [torch.from_numpy(SHAPE.start(3, c)) for c in range(CLIENTS)]
    models = [torch.from_numpy(start).double() for _ in range(CLIENTS)]
    state = {}
    for t, cohort in enumerate(([0, 2], [1, 2], range(CLIENTS))):
        trained = trained_models(10 * seed + t, cohort)
        answer = exchange(trained, state, start)
        state = answer.state
        ends = {c: torch.from_numpy(m).double() for c, m in trained.items()}
        for c, end in ends.items():
            psi[c] = oracle.step(psi[c], c, end, models, COLUMNS, 0.1, WIDTH)
        for c, end in ends.items():
            models[c] = end
        for c in range(CLIENTS):
            np.testing.assert_allclose(state["psi"][c], psi[c], rtol=1e-6, atol=1e-7)
            alpha = oracle.shares(psi[c], c, CLIENTS, 2, WIDTH)
            mixed = oracle.mixture(alpha, models, COLUMNS)
            np.testing.assert_allclose(answer.private[c]["personal"], mixed, rtol=1e-5, atol=1e-6)


def test_the_gradient_against_the_oracle_in_float64():
    rng = np.random.default_rng(1)
    models, end = rng.normal(size=(CLIENTS, 10)), rng.normal(size=10)
    for client in range(CLIENTS):
        psi = SHAPE.start(1, client)
        alpha = shares(SHAPE, psi, client)
        expected = oracle.step(
            torch.from_numpy(psi), client, torch.from_numpy(end), torch.from_numpy(models),
            COLUMNS, 0.3, WIDTH,
        )  # fmt: skip
        mixed = oracle.mixture(torch.from_numpy(alpha), torch.from_numpy(models), COLUMNS)
        gained = end - mixed.numpy()
        gain = np.stack([models[:, c] @ gained[c] for c in COLUMNS])
        np.testing.assert_allclose(
            ascended(SHAPE, psi, client, gain, 0.3), expected, rtol=1e-9, atol=1e-12
        )


def test_shares_of_the_client_alone_are_local_training():
    # Every output but the client's own is cut off: its mixture is what it trained.
    trained = trained_models()
    state = exchange(trained).state
    psi = np.array(state["psi"])
    _, _, outputs = cut(psi[2])
    outputs[:] = 0.0
    outputs[[2, CLIENTS + 2], -1] = 1.0
    answer = exchange({0: trained[0]}, {"models": state["models"], "psi": psi})
    np.testing.assert_array_equal(answer.private[2]["personal"], trained[2])


def test_layers_that_stay_local():
    trained = trained_models()
    none, one, all_ = (exchange(trained, keep_local=k).private for k in (0, 1, 2))
    for client in range(CLIENTS):
        own = trained[client]
        np.testing.assert_array_equal(all_[client]["personal"], own)
        kept = [np.array_equal(one[client]["personal"][c], own[c]) for c in COLUMNS]
        assert sum(kept) == 1
        alpha = shares(SHAPE, exchange(trained).state["psi"][client], client)
        assert kept[int(alpha[:, client].argmax())]
        assert not np.array_equal(none[client]["personal"], own)


def test_nothing_is_learnt_from_layers_that_stay_local():
    # They are constants of the mixture: torch's derivative has nothing for them.
    state = exchange(trained_models()).state
    psi = torch.from_numpy(np.array(state["psi"][1])).requires_grad_()
    models = torch.from_numpy(np.array(state["models"], np.float64))
    alpha = oracle.shares(psi, 1, CLIENTS, 2, WIDTH)
    own = int(alpha[:, 1].argmax())
    alone = torch.eye(CLIENTS, dtype=torch.float64)[1]
    rows = torch.stack([alone if layer == own else alpha[layer] for layer in range(2)])
    end = trained_models(5)[1]
    mixed = oracle.mixture(rows, models, COLUMNS)
    pull = torch.from_numpy(end).double() - mixed.detach()
    expected = (psi + 0.1 * torch.autograd.grad(mixed, psi, pull)[0]).detach()
    found = exchange({1: end}, state, keep_local=1).state["psi"][1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    mixed_all = exchange({1: end}, state).state["psi"][1]
    assert np.abs(found - mixed_all).max() > 1e-3


def test_what_is_refused():
    with pytest.raises(ContractError, match="pfedla"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "pfedla")
    with pytest.raises(ConfigError, match="cannot serve pfedla, which mixes its clients' models"):
        algorithms.compose("pfedla", {}, server="fedgh")
