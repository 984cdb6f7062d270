"""The ranges of the methods' hyperparameters."""

from __future__ import annotations

import pytest

from fedsim import algorithms
from fedsim.core.errors import ConfigError

NOT_FINITE = (float("nan"), float("inf"))
RANGES = {
    "positive": (1e-6, (0.0, -1.0)),
    "not negative": (0.0, (-0.1,)),
    "decay": (0.0, (-0.1, 1.0)),
    "fraction": (1.0, (0.0, 1.1)),
}
"""What each range includes at its limit, and what lies outside."""
HYPERPARAMETERS = {
    "positive": (
        "fedadam.eta", "fedadam.tau", "fedyogi.eta", "fedyogi.tau", "fedadagrad.eta",
        "fedadagrad.tau", "fedavgm.eta", "slowmo.alpha", "fedcm.eta_g", "scaffold.eta_g",
        "feddyn.alpha", "moon.temperature", "pcgrad.eta_g", "robfedavg.z", "simagg.eps",
        "regagg.eps", "pfedla.hn_lr", "geometric_median.nu", "centered_clipping.tau",
        "norm_clipping.norm",
    ),
    "not negative": (
        "fedprox.mu", "fednova.mu", "moon.mu", "feddecorr.beta", "fediir.gamma", "fedsam.rho",
        "fedsam.eta", "fedsr.a_l2r", "fedsr.a_cmi", "fedpac.lam", "fedpac.head_lr",
        "fedld.margin_weight", "fedld_released.margin_weight", "krum.f", "multikrum.f",
        "trimmed_mean.f", "mda.f", "bulyan.f", "nnm.f",
    ),
    "decay": (
        "fedadam.beta1", "fedadam.beta2", "fedyogi.beta1", "fedyogi.beta2", "fedadagrad.beta1",
        "fedavgm.beta", "slowmo.beta", "fednova.gmf", "fediir.ema",
    ),
    "fraction": ("fedld.keep", "fedld_released.keep", "fedcm.alpha", "fedsam.alpha"),
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


@pytest.mark.parametrize(
    ("key", "least"),
    [
        ("fedpac.head_epochs", 0),
        ("pfedla.width", 1),
        ("pfedla.keep_local", 0),
        ("fedsr.z_dim", 1),
        ("multikrum.q", 0),
        ("bucketing.size", 1),
        ("geometric_median.iterations", 1),
        ("centered_clipping.iterations", 1),
        ("fltrust.samples", 1),
    ],
)
def test_the_least_count(key, least):
    method, _, name = key.partition(".")
    algorithms.load(method, {name: least})
    for value in (least - 1, least + 0.5):
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
