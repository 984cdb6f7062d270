"""synthetic(alpha, beta): the law of the draw, and that it is a function of its arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.data.readers import synthetic
from fedsim.training.loading import load

ALL = {"sample_rate": 1.0}


def largest(seed: int = 0, **options: float) -> tuple[np.ndarray, np.ndarray]:
    """The samples of the first user that has at least 3,000."""
    users = (synthetic.user(seed, k, 0.0, 0.0, **options) for k in range(200))
    return next(pair for pair in users if len(pair[1]) >= 3000)


def test_users_are_drawn_for_the_number_of_clients():
    made = data.load("synthetic", num_clients=12, seed=5)
    assert (made.x.dtype, made.x.shape[1], made.num_classes) == (np.float32, 60, 10)
    assert made.site_names == tuple(f"f_{k:05d}" for k in range(12))
    sizes = np.bincount(made.site)
    assert sizes.min() >= 50
    held = np.bincount(made.site[made.test])
    assert held.tolist() == [round(0.2 * n) for n in sizes.tolist()]


def test_the_draw_is_a_function_of_seed_and_user():
    first, again = (data.load("synthetic", num_clients=3, seed=1) for _ in range(2))
    more = data.load("synthetic", num_clients=5, seed=1)
    other = data.load("synthetic", num_clients=3, seed=2)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert np.array_equal(more.x[more.site < 3], first.x)
    assert first.x.shape != other.x.shape or not np.array_equal(first.x, other.x)


def test_sizes_are_lognormal_above_fifty():
    sizes = [len(synthetic.user(0, k, 0, 0)[1]) for k in range(300)]
    logs = np.log(np.array(sizes) - 49.5)
    # floor moves a sample by less than one; 300 draws: 0.12 is a standard error of the mean
    assert abs(logs.mean() - 4) < 0.5
    assert abs(logs.std() - 2) < 0.35


def test_features_have_variances_that_fall_with_their_number():
    x, _ = largest()
    share = x.var(axis=0, dtype=np.float64) / np.arange(1, 61) ** -1.2
    # a variance of 3,000 samples is exact to sqrt(2 / 3000) = 2.6 %
    assert np.abs(share - 1).max() < 0.12
    correlations = np.corrcoef(x.T)[~np.eye(60, dtype=bool)]
    assert np.abs(correlations).max() < 0.1


@pytest.mark.slow
def test_labels_are_argmaxes_of_linear_functions():
    # a plane divides two such classes; whether there is one is a linear program
    x, y = largest()
    a, b = np.argsort(np.bincount(y, minlength=10))[-2:]
    of_both = (y == a) | (y == b)
    points = np.c_[x[of_both] / x.std(axis=0), np.ones(of_both.sum())].astype(np.float64)
    side = np.where(y[of_both] == a, -1.0, 1.0)[:, None]

    def divided(side: np.ndarray) -> bool:
        limit = -np.ones(len(points))
        found = linprog(np.zeros(61), A_ub=side * points, b_ub=limit, bounds=(None, None))
        return found.status == 0

    assert len(points) > 500
    assert divided(side)
    assert not divided(np.roll(side, 1))


@pytest.mark.slow
def test_alpha_and_beta_spread_the_users():
    def centres(beta: float) -> np.ndarray:
        users = (synthetic.user(3, k, 0.0, beta) for k in range(200))
        return np.array([x.mean() for x, _ in users])

    # the mean of 60 centres v ~ N(B, 1) has the variance beta^2 + 1/60, and little noise
    for beta in (0.0, 1.0, 3.0):
        assert centres(beta).std() == pytest.approx(np.sqrt(beta**2 + 1 / 60), rel=0.25)
    # u moves all logits of a sample alike
    plain, moved = synthetic.user(3, 1, 0.0, 1.0), synthetic.user(3, 1, 5.0, 1.0)
    assert np.array_equal(plain[0], moved[0])
    assert (plain[1] == moved[1]).all()


def test_iid_users_share_one_model_and_one_law():
    x = np.concatenate([synthetic.user(4, k, 0, 0, iid=True)[0] for k in range(60)])
    error = np.sqrt(synthetic.variances() / len(x))
    assert (np.abs(x.mean(axis=0)) < 5 * error).all()
    shares = [
        np.bincount(y, minlength=10) / len(y)
        for y in (synthetic.user(4, k, 0, 0, iid=True)[1] for k in range(60))
        if len(y) > 1000
    ]
    assert len(shares) > 3
    assert np.ptp(shares, axis=0).max() < 0.1


def test_every_drawn_user_is_a_client():
    config = RunConfig(
        train=ALL, data={"name": "synthetic", "num_clients": 7}, synthetic={"beta": 1.0}
    )
    dataset, partition, kind = load(config)
    assert (kind, partition.num_clients) == ("natural", 7)
    assert sum(map(len, partition.train)) == len(dataset.train)
    assert config.decides_num_clients
    config = RunConfig(train=ALL, data={"name": "synthetic", "num_clients": 7, "min_samples": 60})
    with pytest.raises(DataError, match=r"client \d \(f_0000\d\) .* data.min_samples is 60"):
        load(config)


def test_files_decide_the_number_of_clients(shared_data: Path):
    folder = str(shared_data / "leaf-synthetic" / "synthetic_1_1")
    config = RunConfig(data={"name": "synthetic", "dir": folder})
    assert not config.decides_num_clients
    assert load(config)[1].num_clients == 30
    config = RunConfig(train=ALL, data={"name": "synthetic", "dir": folder, "num_clients": 7})
    with pytest.raises(ConfigError, match=r"num_clients 7: partition 'natural' .* has 30 clients"):
        load(config)


@pytest.mark.parametrize("given", [{"name": "digits"}, {"name": "synthetic", "dir": "."}])
@pytest.mark.parametrize("key", ["alpha", "beta", "iid"])
def test_options_of_the_draw_are_refused_where_nothing_is_drawn(given, key: str):
    value = True if key == "iid" else 1.0
    with pytest.raises(ConfigError, match=rf"synthetic\.{key}: only data set synthetic is drawn"):
        RunConfig(data=given, synthetic={key: value})
