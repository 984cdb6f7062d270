"""The presets: every number of the published protocols, and what the small twins have."""

from __future__ import annotations

import math
from functools import cache

import pytest

from fedsim import algorithms
from fedsim.config import presets
from fedsim.config.resolve import load_config
from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.studies import sweep

SIX = ["fedavg", "fedprox", "fedbn", "fedpac", "fedgh", "fedld"]


@cache
def runs_of(name: str) -> list[sweep.SweepRun]:
    """The runs of a preset, which several tests look at."""
    return sweep.expand(presets.load(name), {})


@cache
def config_of(name: str) -> RunConfig:
    """The configuration of ``fedsim run --preset NAME``."""
    return load_config(preset=name)


RETINA = ["table1_retina_split1", "table1_retina_split2", "table1_retina_split3"]


@pytest.mark.parametrize("name", presets.names())
def test_every_run_of_every_preset_is_a_valid_configuration(name: str) -> None:
    loaded = presets.load(name)
    assert loaded.about
    assert runs_of(name)
    config_of(name)


@pytest.mark.parametrize("name", [*RETINA, "table1_covidfl", "table3"])
def test_common_settings_of_the_published_tables(name: str) -> None:
    c = config_of(name)
    t = c.train
    assert (c.model.name, c.model.pretrained, c.data.image_size) == ("resnet50", True, 384)
    assert (t.rounds, t.local_epochs, t.batch_size) == (200, 1, 50)
    assert (t.momentum, t.weight_decay, t.lr_schedule) == (0.5, 5e-4, "constant")
    assert c.hyperparameters["fedld"]["keep"] == 0.8
    assert c.data.min_samples == (2 if name == "table1_covidfl" else 10)
    assert [r.config.algorithm for r in runs_of(name)] == SIX


def test_table1_settings_that_differ() -> None:
    configs = {name: config_of(name) for name in [*RETINA, "table1_covidfl"]}
    weights = [c.hyperparameters["fedld"]["margin_weight"] for c in configs.values()]
    assert weights == [0.1, 0.03, 0.03, 0.01]
    assert [c.train.lr for c in configs.values()] == [0.01, 0.01, 0.01, 0.005]
    files = ["split_1", "split_2", "split_3", "split_real"]
    assert [c.data.partition_file for c in configs.values()] == files
    assert {c.train.sample_rate for c in configs.values()} == {1.0}


def test_the_released_code_warms_up_and_freezes_batchnorm() -> None:
    c = config_of("fedld_released")
    assert (c.algorithm, c.train.frozen_bn, c.train.lr_schedule) == (
        "fedld_released", True, "warmup_round",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["table2_small", "fig2", "fig2_small", "fig2_training_small"])
def test_the_ablation_switches_both_parts_of_fedld(name: str) -> None:
    methods = next(axis for axis in presets.load(name).grid if axis.name == "method")
    found = {p.label: {k: v.value for k, v in p.settings.items()} for p in methods.values}
    assert found == {
        "ce_mean": {"algorithm": "fedavg"},
        "ce_principal": {"algorithm": "fedld", "margin": "none"},
        "margin_mean": {"algorithm": "fedld", "server": "fedavg"},
        "margin_principal": {"algorithm": "fedld"},
    }


@pytest.mark.parametrize("name", ["fig2", "fig2_small"])
def test_fig2_is_one_round_of_five_clients_at_five_alphas(name: str) -> None:
    runs = runs_of(name)
    assert {run.config.data.alpha for run in runs} == {100, 10, 1, 0.1, 0.01}
    for c in (run.config for run in runs):
        assert (c.train.rounds, c.data.num_clients, c.train.sample_rate) == (1, 5, 1.0)
        assert (c.evaluation.decompose_every, c.evaluation.decompose_split) == (1, "train")


def test_a_preset_may_start_from_another() -> None:
    base, small = config_of("table1_retinamnist_small"), config_of("table2_small")
    assert (small.data.name, small.train) == (base.data.name, base.train)
    assert small.evaluation.decompose_every == 5
    assert len(runs_of("table1_retinamnist_alpha100_small")) == 30


def cohort(c: RunConfig) -> tuple[int, int]:
    return c.data.num_clients, cohort_size(c.data.num_clients, c.train.sample_rate)


def plain_sgd(c: RunConfig) -> bool:
    return c.train.momentum == c.train.weight_decay == 0 and c.train.clip_norm is None


def test_pfl_cifar10() -> None:
    c = config_of("pfl_cifar10")
    t = c.train
    assert (c.data.name, c.data.partition, cohort(c)) == ("cifar10", "iid", (1000, 50))
    assert (t.rounds, t.local_epochs, t.batch_size, t.lr, t.lr_schedule) == (
        1500, 1, 10, 0.1, "constant",
    )  # fmt: skip
    assert plain_sgd(c)
    assert (c.algorithm, c.hyperparameters["fedavg"]["weights"]) == ("fedavg", "uniform")
    assert c.evaluation.every == 10
    small = runs_of("pfl_digits_small")[0].config
    assert cohort(small) == (28, 5)
    assert small.model.name == c.model.name == "cnn_reddi"
    assert (small.train.lr, small.train.batch_size) == (0.1, 10)


def test_mcmahan_mnist() -> None:
    configs = [run.config for run in runs_of("mcmahan_mnist")]
    found = [(c.data.partition, c.train.local_epochs) for c in configs]
    assert found == [("iid", 1), ("iid", 5), ("shards", 1), ("shards", 5)]
    for c in configs:
        assert (c.data.name, cohort(c), c.data.shards_per_client) == ("mnist", (100, 10), 2)
        assert (c.train.batch_size, c.evaluation.target_accuracy) == (10, 0.99)
        assert c.model.name == "cnn_mcmahan"
        assert plain_sgd(c)
    small = runs_of("mcmahan_mnist_small")
    assert {(cohort(run.config), run.config.model.name) for run in small} == {((100, 10), "mlp")}
    assert len(small) == 20


FOUR = ["fedavg", "fedprox", "fednova", "feddecorr"]
PUBLISHED = {
    # data set: model, E, T, B, lr, weight decay, target
    "cifar10": ("cnn_reddi", 5, 100, 64, 0.01, 1e-5, 0.60),
    "cifar100": ("mobilenetv2_cifar", 5, 100, 64, 0.01, 1e-4, 0.40),
    "tiny_imagenet": ("mobilenetv2_cifar", 5, 50, 64, 0.01, 1e-4, 0.30),
    "celeba": ("leaf_celeba", 1, 100, 5, 0.01, 0.0, 0.85),
    "femnist": ("leaf_femnist", 1, 1000, 64, 0.01, 0.0, 0.75),
    "sent140": ("leaf_sent140", 1, 100, 5, 0.01, 0.0, 0.60),
    "synthetic": ("leaf_synthetic", 1, 100, 5, 0.1, 0.0, 0.80),
    "shakespeare": ("leaf_shakespeare", 1, 50, 64, 1.0, 0.0, 0.45),
    "reddit": ("leaf_reddit", 1, 100, 5, 1.0, 0.0, 0.10),
}
USERS = {
    "celeba": (467, 50), "femnist": (195, 20), "sent140": (132, 10), "synthetic": (1000, 50),
    "shakespeare": (660, 50), "reddit": (813, 50),
}  # fmt: skip
"""Clients, and how many of them are in a round."""


def configs(name: str) -> list[RunConfig]:
    return [run.config for run in runs_of(name)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_settings_of_each_data_set(name: str) -> None:
    for c in configs(f"fedgh_{name}"):
        t = c.train
        assert c.data.name == name
        assert (
            c.model.name, t.local_epochs, t.rounds, t.batch_size, t.lr, t.weight_decay,
            c.evaluation.target_accuracy,
        ) == PUBLISHED[name]  # fmt: skip
        assert (t.momentum, t.lr_schedule) == (0.9, "constant")
        assert t.clip_norm == (5 if name == "reddit" else None)
        assert c.hyperparameters["fedprox"]["mu"] == 0.1
        assert c.hyperparameters["feddecorr"]["beta"] == 0.1


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_method_with_and_without_fedgh(name: str) -> None:
    methods = [m for m in FOUR if name != "synthetic" or m != "feddecorr"]
    found = [(c.algorithm, c.server) for c in configs(f"fedgh_{name}")]
    assert sorted(set(found), key=str) == sorted(
        ((method, server) for method in methods for server in (None, "fedgh")), key=str
    )
    for method, server in set(found):
        algorithms.compose(method, configs(f"fedgh_{name}")[0].hyperparameters, server=server)


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("cifar10", [(0.1, 20), (1.0, 4), (1.0, 20)]),
        ("cifar100", [(0.01, 20), (0.1, 4), (0.1, 20)]),
        ("tiny_imagenet", [(0.01, 20), (0.1, 4), (0.1, 20)]),
    ],
)
def test_images_are_dealt_to_twenty_clients(name: str, splits: list[tuple[float, int]]) -> None:
    found = configs(f"fedgh_{name}")
    rates = {(c.data.alpha, round(20 * c.train.sample_rate)): None for c in found}
    assert list(rates) == splits
    assert {(c.data.partition, c.data.num_clients) for c in found} == {("dirichlet_plain", 20)}
    policy = "imagenet" if name == "tiny_imagenet" else "cifar10"
    assert {c.data.augment for c in found} == {f"autoaugment_{policy}"}


@pytest.mark.parametrize("name", USERS)
def test_users_are_clients(name: str) -> None:
    c = config_of(f"fedgh_{name}")
    clients, cohort = USERS[name]
    assert c.data.partition == "natural"
    assert c.data.min_samples == 1
    assert math.floor(clients * c.train.sample_rate + 1e-9) == cohort
