"""What every method keeps: its contract, its defaults and its hyperparameters."""

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


def plain(name):
    """A model without BatchNorm; FedBN needs one with it."""
    return "cnn" if name == "fedbn" else "mlp"


every_method = pytest.mark.parametrize("name", algorithms.names())
RESUMED = ("fedavg", "scaffold", "fedbn", "fediir", "fedpac", "fedsr", "pfedla", "fedadam")
RESUMED += ("ditto", "ifca", "afl")
"""Stateless; client state; personal slots; a probe; phases and private answers; an adapted model;
a server of its own; a server optimiser; a second model, models for each evaluation; a transform
with a state."""
ONE_OF_EACH = marked_beside(RESUMED, algorithms.names())
"""A method of each structure; the others are slow."""
ELSEWHERE = ("stopped and resumed", "a model without BatchNorm", "one client", "blocks of clients")
"""Cases that other tests by default have for every method, or for methods of each structure."""
BELOW = ("one client", "a learning rate of zero")
"""Cases whose runs tests below do for every method, with these and further checks."""
BY_NATURE = {"krum": ("an update of zero",)}
"""Krum takes one update, and one of zero is the nearest to all others: the model stays."""


@pytest.mark.integration
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_contract_of_methods(name):
    left_out = (*ELSEWHERE, *BELOW, *BY_NATURE.get(name, ()))
    check_method(name, cases=[case for case in CASES if case not in left_out])


@pytest.mark.integration
@pytest.mark.slow
@every_method
def test_the_whole_contract_of_methods(name):
    check_method(name, cases=[case for case in ELSEWHERE if case not in BELOW])


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed(name):
    check_method(name, cases=["stopped and resumed"])


@pytest.mark.integration
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


ALONE = {
    "feddyn": "subtracts h",
    "ifca": "cluster by cluster",
    "pfedla": "mixes its clients",
    "matched_mean": "channels",
}
ALONE |= {"local": "every client alone", "centralized": "pooled data"}
"""Methods whose server part and clients belong together, and a word of the reason."""
OF_OWN_CLIENTS = {"fednova", "fedpac", "fedcm", "scaffold", "qffl", "afl", *ALONE}
SERVERS = ("fedgh", "fedld", "simagg")
UNDER_SERVERS = [
    (name, server) if i == j % len(SERVERS) else pytest.param(name, server, marks=pytest.mark.slow)
    for j, name in enumerate(algorithms.names())
    for i, server in enumerate(SERVERS)
]
"""Every method with one of the rules, in turn; all pairs are slow."""


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


@pytest.mark.integration
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


SERVER = {"eta": 0.1, "tau": 1e-3, "v0": "paper", "weights": "samples"}
DEFAULTS = {
    "afl": {"rate": 0.1, "ascent": "projected"},
    "apfl": {"alpha": 0.5, "adaptive": False},
    "bucketing": {"size": 2},
    "bulyan": {"f": 0.1},
    "centered_clipping": {"tau": 10.0, "iterations": 1},
    "ditto": {"lam": 1.0, "weights": "samples"},
    "fedadagrad": {**SERVER, "beta1": 0.0},
    "fedadam": {**SERVER, "beta1": 0.9, "beta2": 0.99, "bias_correction": False},
    "fedavgm": {
        "beta": 0.9, "eta": 1.0, "nesterov": False, "damping": False, "weights": "samples",
    },
    "fedcm": {"alpha": 0.1, "eta_g": 1.0, "weights": "uniform"},
    "fedala": {"layers": "head", "eta": 1.0, "share": 0.8},
    "fedbabu": {"weights": "samples"},
    "feddecorr": {"beta": 0.1, "form": "code"},
    "feddyn": {"alpha": 0.01, "client_alpha": "equal"},
    "fediir": {"gamma": 1e-3, "ema": 0.95, "weights": "uniform"},
    "fednova": {"mu": 0.0, "gmf": 0.0, "gh_on": "normalised"},
    "fedper": {"layers": "head", "weights": "samples"},
    "fedrep": {"head_epochs": 10, "weights": "samples"},
    "fedrod": {"balanced": True, "weights": "samples"},
    "fedsam": {"rho": 0.05, "variant": "sam", "eta": 0.01, "alpha": 1.0, "weights": "samples"},
    "fedsr": {
        "a_l2r": 0.01, "a_cmi": 5e-4, "l2r_power": 1, "z_dim": None, "share_reference": False,
        "deterministic": False, "weights": "uniform",
    },
    "fedyogi": {**SERVER, "beta1": 0.9, "beta2": 0.99},
    "fltrust": {"samples": 100},
    "ifca": {"clusters": 2, "start": "all", "weights": "samples"},
    "geometric_median": {"iterations": 1000, "nu": 1e-5, "weights": "uniform"},
    "knnper": {
        "k": 10, "weight": 0.5, "scale": 1.0, "distance": "squared", "weights": "samples",
    },
    "krum": {"f": 0.2, "neighbours": "paper"},
    "lgfedavg": {"layers": "head", "weights": "samples"},
    "matched_mean": {"weights": "samples"},
    "mda": {"f": 0.2},
    "moon": {"mu": 1.0, "temperature": 0.5},
    "multikrum": {"f": 0.2, "q": 0, "neighbours": "paper"},
    "nnm": {"f": 0.2},
    "norm_clipping": {"norm": 10.0},
    "pcgrad": {"order": "random", "include_self": False, "eta_g": 1.0},
    "perfedavg": {"alpha": 0.01, "variant": "fo", "delta": 1e-3, "weights": "samples"},
    "pfedla": {"hn_lr": 5e-3, "width": 100, "keep_local": 0},
    "pfedme": {"lam": 15.0, "steps": 5, "personal_lr": 0.09, "beta": 1.0},
    "qffl": {"q": 1.0},
    "regagg": {"blocks": "tensor", "distance": "l2", "eps": 1e-5},
    "robfedavg": {"test": "iqr", "z": 1.5, "weights": "samples"},
    "scaffold": {"option": "II", "eta_g": 1.0, "weights": "uniform", "control": "uniform"},
    "simagg": {"blocks": "tensor", "distance": "l2", "eps": 1e-5},
    "trimmed_mean": {"f": 0.2},
    "slowmo": {"alpha": 1.0, "beta": 0.7, "weights": "samples"},
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name):
    assert {k: p.default for k, p in algorithms.parameters(name).items()} == DEFAULTS[name]


NOT_FINITE = (float("nan"), float("inf"))
RANGES = {
    "positive": (1e-6, (0.0, -1.0)),
    "not negative": (0.0, (-0.1,)),
    "decay": (0.0, (-0.1, 1.0)),
    "fraction": (1.0, (0.0, 1.1)),
    "probability": (0.0, (-0.1, 1.1)),
}
"""What each range includes at its limit, and what lies outside."""
HYPERPARAMETERS = {
    "positive": (
        "fedadam.eta", "fedadam.tau", "fedyogi.eta", "fedyogi.tau", "fedadagrad.eta",
        "fedadagrad.tau", "fedavgm.eta", "slowmo.alpha", "fedcm.eta_g", "scaffold.eta_g",
        "feddyn.alpha", "moon.temperature", "pcgrad.eta_g", "robfedavg.z", "simagg.eps",
        "regagg.eps", "pfedla.hn_lr", "geometric_median.nu", "centered_clipping.tau",
        "norm_clipping.norm", "perfedavg.delta", "pfedme.personal_lr", "pfedme.beta",
        "knnper.scale",
    ),
    "not negative": (
        "fedprox.mu", "fednova.mu", "moon.mu", "feddecorr.beta", "fediir.gamma", "fedsam.rho",
        "fedsam.eta", "fedsr.a_l2r", "fedsr.a_cmi", "fedpac.lam", "fedpac.head_lr",
        "fedld.margin_weight", "fedld_released.margin_weight", "krum.f", "multikrum.f",
        "trimmed_mean.f", "mda.f", "bulyan.f", "nnm.f", "ditto.lam", "pfedme.lam",
        "perfedavg.alpha", "qffl.q", "afl.rate", "fedala.eta",
    ),
    "decay": (
        "fedadam.beta1", "fedadam.beta2", "fedyogi.beta1", "fedyogi.beta2", "fedadagrad.beta1",
        "fedavgm.beta", "slowmo.beta", "fednova.gmf", "fediir.ema",
    ),
    "fraction": (
        "fedld.keep", "fedld_released.keep", "fedcm.alpha", "fedsam.alpha", "fedala.share",
    ),
    "probability": ("apfl.alpha",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "kind"), [(key, kind) for kind, keys in HYPERPARAMETERS.items() for key in keys]
)
def test_the_range_of_a_number(key, kind):
    method, _, name = key.partition(".")
    inside, outside = RANGES[kind]
    algorithms.load(method, {name: inside})
    for value in (*outside, *NOT_FINITE):
        with pytest.raises(ConfigError, match=rf"{method}\.{name}: {value} given; must be "):
            algorithms.load(method, {name: value})


def test_no_number_is_without_a_range():
    listed = {key for keys in HYPERPARAMETERS.values() for key in keys}
    numbers = {
        f"{method}.{name}": p.annotation
        for method in algorithms.names()
        for name, p in algorithms.parameters(method).items()
        if isinstance(p.default, float)
    }
    assert listed <= numbers.keys()
    others = [key for key, kind in numbers.items() if key not in listed]
    assert [key for key in others if not hasattr(numbers[key], "__metadata__")] == []
