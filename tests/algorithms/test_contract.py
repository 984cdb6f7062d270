"""What every method of ``fedsim list algorithms`` keeps to."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import fedsim
from fedsim import algorithms
from fedsim.config.resolve import load_config, to_yaml
from fedsim.core.errors import ConfigError
from fedsim.testing import check_method
from fedsim.testing.methods import CASES
from fedsim.testing.rounds import NUM_CLIENTS, config, rounds, small
from tests.sampling import marked_beside

pytestmark = pytest.mark.integration


def plain(name):
    """A model without BatchNorm; FedBN needs one with it."""
    return "cnn" if name == "fedbn" else "mlp"


every_method = pytest.mark.parametrize("name", algorithms.names())


RESUMED = ("fedavg", "scaffold", "fedbn", "fediir", "fedpac", "fedsr", "pfedla", "fedadam")
"""Stateless; client state; personal slots; a probe; phases and private answers; an adapted model;
a server of its own; a server optimiser."""

ONE_OF_EACH = marked_beside(RESUMED, algorithms.names())
"""A method of each structure; the others are slow."""

ELSEWHERE = ("stopped and resumed", "a model without BatchNorm", "one client", "blocks of clients")
"""Cases that other tests by default have for every method, or for methods of each structure."""

BELOW = ("one client", "a learning rate of zero")
"""Cases whose runs tests below do for every method, with these and further checks."""

BY_NATURE = {"krum": ("an update of zero",)}
"""Krum takes one update, and one of zero is the nearest to all others: the model stays."""


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_contract_of_methods(name):
    left_out = (*ELSEWHERE, *BELOW, *BY_NATURE.get(name, ()))
    check_method(name, cases=[case for case in CASES if case not in left_out])


@pytest.mark.slow
@every_method
def test_the_whole_contract_of_methods(name):
    check_method(name, cases=[case for case in ELSEWHERE if case not in BELOW])


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed(name):
    check_method(name, cases=["stopped and resumed"])


@pytest.mark.parametrize("name", ["fedpac", "pfedla"])
def test_only_clients_that_take_part_change_what_is_kept_of_them(name):
    """The contract leaves out servers that answer every client."""
    made = rounds(small(name))
    before = kept(made[0].before)
    if name == "pfedla":  # its server starts with the initial model for every client
        before = dict.fromkeys(range(NUM_CLIENTS), made[0].before.params.tobytes())
    for r in made:
        after = kept(r.after)
        for client in set(range(NUM_CLIENTS)) - set(r.clients):
            assert after.get(client) == before.get(client)
        before = after
    assert {c for r in made for c in r.clients} > set(made[-1].clients)


def kept(state):
    """The bytes that are kept of each client, by itself or, in pfedla, by the server.

    What pfedla's server mixes for its clients from their models may change for all of them.
    """
    if "models" in state.server.exchange:
        return {c: model.tobytes() for c, model in enumerate(state.server.exchange["models"])}
    return {c: {k: a.tobytes() for k, a in state.clients[c].items()} for c in state.clients}


ALONE = {"feddyn": "subtracts h", "pfedla": "mixes its clients", "matched_mean": "channels"}
ALONE |= {"local": "every client alone", "centralized": "pooled data"}
"""Methods whose server part and clients belong together, and a word of the reason."""
OF_OWN_CLIENTS = {"fednova", "fedpac", "fedcm", "scaffold", *ALONE}


SERVERS = ("fedgh", "fedld", "simagg")
UNDER_SERVERS = [
    (name, server) if i == j % len(SERVERS) else pytest.param(name, server, marks=pytest.mark.slow)
    for j, name in enumerate(algorithms.names())
    for i, server in enumerate(SERVERS)
]
"""Every method with one of the rules, in turn; all pairs are slow."""


@pytest.mark.parametrize(("name", "server"), UNDER_SERVERS)
def test_a_server_rule_and_margin_control_go_with_any_clients(name, server):
    alone = small(name, plain(name), train={"rounds": 2})
    both = alone.model_copy(update={"server": server, "margin": "sigma_damp"})
    if name in ALONE:
        with pytest.raises(ConfigError, match=f"cannot serve {name}, which .*{ALONE[name]}"):
            rounds(both)
        return
    for r in rounds(both):
        assert np.isfinite(r.row["train_loss"])
        assert np.isfinite(r.row["update_norm"])


@every_method
def test_a_server_part_serves_others_unless_it_needs_its_own_clients(name):
    if name in OF_OWN_CLIENTS:
        with pytest.raises(ConfigError, match=f"server '{name}' cannot serve fedprox: it "):
            algorithms.compose("fedprox", {}, server=name)
    else:
        composed = algorithms.compose("fedprox", {}, server=name)
        own = algorithms.load(name).server
        assert composed.server.reduction == own.reduction
        assert composed.server.optimizers == own.optimizers


@every_method
def test_the_configuration_round_trips_through_yaml(name, tmp_path):
    options = {k: p.default for k, p in algorithms.parameters(name).items()}
    original = config(name)
    text = to_yaml(original)
    assert yaml.safe_load(text)[name] == options if options else name not in yaml.safe_load(text)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    again = load_config(file=file)
    assert again.hyperparameters == original.hyperparameters
    assert to_yaml(again) == text


OF_UPDATES_ALONE = [
    name
    for name in algorithms.names()
    if name == "fednova" or not algorithms.load(name).server.needs_own_clients
]
"""Methods whose server needs the updates, and for fednova the steps, and nothing else."""


def beside(name, own):
    """The server's own update, for rules that compare with it."""
    return {"reference": own} if algorithms.load(name).server.root_samples else {}


@pytest.mark.parametrize("name", OF_UPDATES_ALONE)
def test_reductions_take_the_cohort_in_any_order(name):
    m = 2 if name in ("bucketing", "fedgh", "pcgrad") else 5  # they draw an order of the clients
    rng = np.random.default_rng(0)
    g, n, steps = rng.normal(size=(m, 40)), rng.integers(1, 50, m), rng.integers(1, 9, m)
    g[1] -= g[0]  # in conflict

    def step(order):
        given = {"num_steps": steps[order]} if name == "fednova" else beside(name, g[0])
        return fedsim.aggregate(g[order], n[order], name, **given)

    for order in ([1, 0], [0, 1]) if m == 2 else ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        np.testing.assert_allclose(
            step(np.array(order)), step(np.arange(m)), rtol=1e-11, atol=1e-13
        )
