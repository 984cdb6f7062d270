from __future__ import annotations

from functools import cache

import pytest

from fedsim import data
from fedsim.config import presets
from fedsim.config.resolve import load_config
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
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


def test_the_experiments_of_the_issue_are_there() -> None:
    tables = {*RETINA, "table1_covidfl", "table2", "table3", "table3_small", "fedld_released"}
    assert tables <= set(presets.names())


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


def test_table2_switches_both_parts_on_three_splits() -> None:
    runs = runs_of("table2")
    assert len(runs) == 12
    parts = {
        r.name.split("method=")[1]: (r.config.algorithm, r.config.server, r.config.margin)
        for r in runs
    }
    assert parts == {
        "ce_mean": ("fedavg", None, None),
        "ce_principal": ("fedld", None, "none"),
        "margin_mean": ("fedld", "fedavg", None),
        "margin_principal": ("fedld", None, None),
    }
    weights = {r.config.data.partition_file: r.config.hyperparameters["fedld"]["margin_weight"]
               for r in runs if r.config.algorithm == "fedld"}  # fmt: skip
    assert weights == {"split_1": 0.1, "split_2": 0.03, "split_3": 0.03}


@pytest.mark.parametrize("name", ["table3", "table3_small"])
def test_table3_is_fifty_clients_a_tenth_of_them_per_round(name: str) -> None:
    c = config_of(name)
    assert (c.data.num_clients, c.train.sample_rate, c.data.alpha) == (50, 0.1, 0.5)
    assert c.data.partition == "dirichlet"


def test_table3_small_runs_without_files_on_three_seeds() -> None:
    runs = runs_of("table3_small")
    assert len(runs) == 18
    assert {(r.config.algorithm, r.config.seed) for r in runs} == {
        (a, s) for a in SIX for s in (0, 1, 2)
    }
    assert {r.config.data.name for r in runs} == {"digits"}


def test_the_released_code_warms_up_and_freezes_batchnorm() -> None:
    c = config_of("fedld_released")
    assert (c.algorithm, c.train.frozen_bn, c.train.lr_schedule) == (
        "fedld_released", True, "warmup_round",
    )  # fmt: skip


@pytest.mark.parametrize("name", [n for n in presets.names() if n.endswith("_small")])
def test_a_data_set_in_a_name_is_the_one_that_is_used(name: str) -> None:
    known = {info.name for info in data.catalogue()} | {"covidfl"}
    named = {part for part in known if part in name.replace("fedgh_", "")}
    used = config_of(name).data.name
    assert all(part in used for part in named)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown preset 'tabel2' \(did you mean 'table2'\?\)"):
        load_config(preset="tabel2")


FULL = [name for name in presets.names() if not name.endswith("_small")]
IMAGES_SMALL = ("cnn", "mlp", "cnn_reddi")
USERS_SMALL = ("leaf_synthetic", "mlp", "leaf_sent140")
"""The models of small twins, all quick on a CPU: on images, on users' features and texts."""


TWINS = {
    "fedgh_celeba": "fedgh_synthetic_mlp",
    "fedgh_cifar100": "fedgh_digits_alpha001",
    "fedgh_cifar10": "fedgh_digits",
    "fedgh_femnist": "fedgh_synthetic_batch64",
    "fedgh_reddit": "fedgh_shakespeare_clipped",
    "fedgh_sent140": "fedgh_synthetic_7users",
    "fedgh_tiny_imagenet": "fedgh_digits_5rounds",
    "pfl_cifar10": "pfl_digits",
    "table1_covidfl": "table1_covid_cxr",
    "table1_retina": "table1_retinamnist",
    "table1_retina_split1": "table1_retinamnist_alpha100",
    "table1_retina_split2_alpha01": "table1_retinamnist_alpha01",
    "table1_retina_split2": "table1_retinamnist_alpha1",
    "table1_retina_split3": "table1_retinamnist_alpha05",
}
"""Small twins that are named after the data that they have."""


@pytest.mark.parametrize("name", FULL)
def test_every_preset_has_a_small_twin(name: str) -> None:
    twin = f"{TWINS.get(name, name)}_small"
    full, small = presets.load(name), presets.load(twin)
    axes = {axis.name for axis in full.grid} - {"seed", "split", "images", "data.partition_file"}
    assert axes <= {axis.name for axis in small.grid}
    for run in runs_of(twin):
        by_users = run.config.data.partition == "natural"
        assert run.config.model.name in (USERS_SMALL if by_users else IMAGES_SMALL)
        assert not run.config.model.pretrained


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


@pytest.mark.parametrize("name", [n for n in presets.names() if n.endswith("_small")])
def test_the_small_twins_run_five_seeds_those_of_many_methods_or_rounds_three(name: str) -> None:
    seeds = next(axis for axis in presets.load(name).grid if axis.name == "seed")
    three = name == "table3_small" or name.startswith("fedgh_")
    assert len(seeds.values) == (3 if three else 5)


def test_lambda_is_chosen_where_there_is_a_validation_part() -> None:
    assert config_of("lambda").data.val_fraction == 0.1
    assert config_of("lambda_small").data.name == "retinamnist"  # brings one


def test_a_preset_may_start_from_another() -> None:
    base, small = config_of("table1_retinamnist_small"), config_of("table2_small")
    assert (small.data.name, small.train) == (base.data.name, base.train)
    assert small.evaluation.decompose_every == 5
    assert len(runs_of("table1_retinamnist_alpha100_small")) == 30
