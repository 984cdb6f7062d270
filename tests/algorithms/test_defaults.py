"""The defaults of the hyperparameters: those of the papers, or of their code where these differ."""

from __future__ import annotations

import pytest

from fedsim import algorithms

SERVER = {"eta": 0.1, "tau": 1e-3, "v0": "paper", "weights": "samples"}
DEFAULTS = {
    "bucketing": {"size": 2},
    "bulyan": {"f": 0.1},
    "centered_clipping": {"tau": 10.0, "iterations": 1},
    "fedadagrad": {**SERVER, "beta1": 0.0},
    "fedadam": {**SERVER, "beta1": 0.9, "beta2": 0.99, "bias_correction": False},
    "fedavgm": {
        "beta": 0.9, "eta": 1.0, "nesterov": False, "damping": False, "weights": "samples",
    },
    "fedcm": {"alpha": 0.1, "eta_g": 1.0, "weights": "uniform"},
    "feddecorr": {"beta": 0.1, "form": "code"},
    "feddyn": {"alpha": 0.01, "client_alpha": "equal"},
    "fediir": {"gamma": 1e-3, "ema": 0.95, "weights": "uniform"},
    "fednova": {"mu": 0.0, "gmf": 0.0, "gh_on": "normalised"},
    "fedsam": {"rho": 0.05, "variant": "sam", "eta": 0.01, "alpha": 1.0, "weights": "samples"},
    "fedsr": {
        "a_l2r": 0.01, "a_cmi": 5e-4, "l2r_power": 1, "z_dim": None, "share_reference": False,
        "deterministic": False, "weights": "uniform",
    },
    "fedyogi": {**SERVER, "beta1": 0.9, "beta2": 0.99},
    "fltrust": {"samples": 100},
    "geometric_median": {"iterations": 1000, "nu": 1e-5, "weights": "uniform"},
    "krum": {"f": 0.2, "neighbours": "paper"},
    "matched_mean": {"weights": "samples"},
    "mda": {"f": 0.2},
    "moon": {"mu": 1.0, "temperature": 0.5},
    "multikrum": {"f": 0.2, "q": 0, "neighbours": "paper"},
    "nnm": {"f": 0.2},
    "norm_clipping": {"norm": 10.0},
    "pcgrad": {"order": "random", "include_self": False, "eta_g": 1.0},
    "pfedla": {"hn_lr": 5e-3, "width": 100, "keep_local": 0},
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
