from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import yaml

from fedsim.algorithms import Algorithm
from fedsim.config import experiments
from fedsim.config.hints import FOREIGN
from fedsim.config.resolve import from_flags, load_config, to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import fields
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError


def refusal(**values: object) -> str:
    with pytest.raises(ConfigError) as error:
        RunConfig(**values)
    return str(error.value)


def file_refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "exp.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(file=path)
    message = str(error.value)
    assert "\n" not in message
    return message.replace(str(tmp_path) + "/", "")


def set_refusal(*texts: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(overrides=from_flags({}, texts))
    return str(error.value)


def test_defaults_are_the_documented_ones() -> None:
    c = RunConfig()
    assert (c.algorithm, c.data.name, c.data.num_clients, c.data.alpha) == (
        "fedld",
        "digits",
        50,
        0.5,
    )
    t = c.train
    assert (t.rounds, t.local_epochs, t.batch_size, t.sample_rate) == (100, 1, 50, 0.1)
    assert (t.lr, t.momentum, t.weight_decay, t.lr_schedule) == (0.01, 0.5, 5e-4, "constant")
    assert (c.data.min_samples, c.data.test_fraction, c.data.val_fraction) == (2, 0.2, 0.0)
    assert (c.engine.kind, c.engine.actors, c.engine.cpus_per_client) == ("ray", "auto", 1.0)
    assert c.engine.gpus_per_client is None
    assert RunConfig(algorithm="fedprox").hyperparameters["fedprox"]["mu"] == 0.1


def test_a_method_section_fills_up_with_the_defaults_of_build() -> None:
    c = RunConfig(algorithm="fedprox", fedprox={"mu": 0.5})
    assert c.hyperparameters == {"fedprox": {"mu": 0.5, "prox_form": "squared"}}


def test_names_of_other_frameworks_stand_for_keys_and_are_none() -> None:
    assert set(FOREIGN.values()) <= set(fields())
    # with another section or none these two are more probably what other frameworks call so
    assert set(FOREIGN) & {key.rpartition(".")[2] for key in fields()} == {"clients", "fraction"}


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"algorithm": "fedldd"}, ["algorithm:", "'fedldd'", "did you mean 'fedld'?", "fedavg"]),
        ({"server": "fedavgg"}, ["server:", "did you mean 'fedavg'?"]),
        ({"algoritm": "fedld"}, ["unknown key", "did you mean 'algorithm'?"]),
        ({"lr": 0.1}, ["did you mean 'train.lr'?"]),
        ({"margin": "marglog"}, ["did you mean 'marg_log'?", "sigma_stitch"]),
        ({"data": {"name": "digit"}}, ["data.name:", "did you mean 'digits'?"]),
        ({"data": {"partition": "dirichelt"}}, ["data.partition:", "did you mean 'dirichlet'?"]),
        ({"data": {"augment": "flop"}}, ["data.augment:", "did you mean 'flip'?"]),
        ({"model": {"norm": "layer"}}, ["model.norm:", "'batch' or 'group'"]),
        ({"data": {"alpha": 0}}, ["data.alpha: 0 given", "greater than 0"]),
        ({"data": {"alpha": float("nan")}}, ["data.alpha:", "finite"]),
        ({"train": {"lr": -0.1}}, ["train.lr: -0.1 given", "greater than 0"]),
        ({"train": {"sample_rate": 1.5}}, ["train.sample_rate:", "less than or equal to 1"]),
        ({"train": {"rounds": 1.5}}, ["train.rounds: 1.5 given", "integer"]),
        ({"train": {"rounds": True}}, ["train.rounds: True given", "must not be true or false"]),
        ({"train": {"epochs": 2}}, ["train.epochs", "did you mean 'train.local_epochs'?"]),
        ({"train": {"seed": 1}}, ["unknown key 'train.seed' (did you mean 'seed'?)"]),
        ({"data": {"dir": "s3://b/d"}}, ["data.dir: 's3://b/d' given; must be a path", "mount"]),
        ({"data": {"partition_file": "memory://x"}}, ["data.partition_file:", "or copy"]),
        ({"mu": 1}, ["did you mean 'fed", ".mu'?"]),
        ({"engine": {"actors": "many"}}, ["'many' given", "auto, per-client or a whole number"]),
        ({"engine": {"aggregation_shards": "per-client"}}, ["auto or a whole number"]),
        (
            {"evaluation": {"conflicts": "often"}},
            ["always, never or a whole number from 1 to 1000000000"],
        ),
        (
            {"evaluation": {"conflicts": "never", "cosines": True}},
            ["evaluation.conflicts: never given", "evaluation.cosines=true needs"],
        ),
        ({"data": {"val_fraction": 0.8}}, ["data.val_fraction: 0.8", "nothing is left"]),
        ({"fedprox": {"mu": "much"}}, ["fedprox.mu: 'much' given", "number"]),
        ({"fedprox": {"nu": 1}}, ["fedprox.nu:", "did you mean 'mu'?"]),
        ({"fedld": {"norm": "l3"}}, ["fedld.norm: 'l3' given", "'l2', 'l1' or 'scalar'"]),
        ({"fedprox": 3}, ["fedprox: 3 given", "section"]),
        ({"algorithm": "no_such_module:f"}, ["algorithm:", "no_such_module"]),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_in_one_line(
    values: dict[str, object], parts: list[str]
) -> None:
    message = refusal(**values)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("cpus_per_client", [0, -1.0, 1e-5, 1.5, math.nan, math.inf, -math.inf]),
        ("gpus_per_client", [-0.5, 1e-5, 1.5, 2.25, math.nan, math.inf]),
    ],
)
def test_amounts_that_ray_does_not_assign(key: str, values: list[float]) -> None:
    for value in values:
        assert refusal(engine={key: value}).startswith(f"engine.{key}: {value} given; must be")


def test_files_and_sites_decide_the_number_of_clients_later() -> None:
    rate = {"sample_rate": 0.01}
    for data in ({"name": "retina"}, {"partition": "by_site"}, {"name": "npz"}):
        assert not RunConfig(data=data, train=rate).decides_num_clients
    assert RunConfig(data={"name": "retina", "num_clients": 5}, train=rate).decides_num_clients
    assert not RunConfig(data={"partition_file": "a/split.csv"}, train=rate).decides_num_clients


def test_cohort_size() -> None:
    assert cohort_size(50, 0.1) == 5
    assert cohort_size(10, 0.3) == 3  # 0.3 * 10 is 2.9999999999999996 or 3: the 1e-9 decides
    assert cohort_size(3, 0.5) == 1
    assert cohort_size(49, 1.0) == 49
    assert cohort_size(30, 0.1) == 3  # 0.1 * 3 is above 0.3, 0.7 * 10 below 7
    assert cohort_size(10, 0.7) == 7


def test_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_method.py").write_text(
        "from fedsim.algorithms.base import Algorithm\n"
        "def build(strength: float, rounds: int = 3) -> Algorithm:\n"
        "    return Algorithm()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "my_method:build"
    c = RunConfig(algorithm=name, **{name: {"strength": "0.5"}})
    assert c.hyperparameters[name] == {"rounds": 3, "strength": 0.5}
    assert "missing" in refusal(algorithm=name)
    for given, part in (
        ({"strength": "x"}, "'x' given"),
        ({"rates": 1}, "unknown option"),
        (3, "3"),
    ):
        assert part in refusal(**{name: given}), "the section of a method that is not used"
    assert RunConfig(**{name: {"strength": 1}}).hyperparameters[name] == {"strength": 1.0}
    assert "not of the form" in refusal(**{":": {"x": 1}})
    sys.modules.pop("my_method", None)


def test_what_the_data_decide_is_filled_in(tmp_path: Path) -> None:
    config = RunConfig(data={"name": "retina"}, train={"sample_rate": 0.5})
    concrete = config.resolved(num_clients=5, partition="files", model="cnn")
    assert (concrete.data.num_clients, concrete.data.partition) == (5, "files")
    assert (concrete.model.name, concrete.data.name) == ("cnn", "retina")
    assert config.data.num_clients == 50
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(concrete))
    assert load_config(file=path) == concrete


# Layers


def test_flags_win_over_file_over_preset_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text("preset: table3_small\ntrain:\n  rounds: 7\n  lr: 0.02\n")
    flags = from_flags({"train.rounds": ("--rounds", "3"), "seed": ("--seed", None)})
    c = load_config(file=path, overrides=flags)
    assert (c.train.rounds, c.train.lr) == (3, 0.02)
    assert c.model.name == "cnn"  # of the preset
    assert c.train.threads == 1  # default
    assert c.seed == 0
    other = load_config(preset="table1_covidfl", file=path)
    assert (other.data.name, other.train.rounds) == ("covid_fl", 7)


def test_set_parses_by_the_type_of_the_field() -> None:
    texts = [
        "train.lr=1e-3",
        "model.pretrained=true",
        "engine.actors=3",
        "fedprox.mu=0.5",
        "data.partition=null",
        "margin=none",
        "seed=7",
    ]
    c = load_config(overrides=from_flags({}, texts))
    assert (c.train.lr, c.model.pretrained, c.engine.actors) == (1e-3, True, 3)
    assert (c.data.partition, c.margin, c.seed) == (None, "none", 7)
    assert c.hyperparameters["fedprox"]["mu"] == 0.5


def test_messages_name_the_flag() -> None:
    flags = from_flags({"data.alpha": ("--alpha", "-1")})
    with pytest.raises(ConfigError, match=r"^--alpha: '-1' given; must be greater than 0$"):
        load_config(overrides=flags)


def test_messages_name_the_set() -> None:
    assert set_refusal("train.lr=x") == "--set train.lr: 'x' given; must be a valid number"
    assert "must be key=value" in set_refusal("train.lr")
    assert "did you mean 'train.lr'" in set_refusal("trian.lr=1")
    assert "did you mean 'fedprox.mu'" in set_refusal("fedprx.mu=1")
    assert "section" in set_refusal("train=1")
    assert "null given" in set_refusal("train.rounds=null")
    assert "also given by --set seed" in set_refusal("seed=1", "seed=2")


# Files


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("seed: 1\ntrain:\n  lrr: 1\n", "exp.yaml:3 (train.lrr): unknown key 'train.lrr'"),
        ("train:\n  lr: fast\n", "exp.yaml:2 (train.lr): 'fast' given; must be a valid number"),
        ("seed: 1\nseed: 2\n", "exp.yaml:2 (seed): given twice"),
        ("train: {lr: 1}\ntrain.lr: 2\n", "exp.yaml:2 (train.lr): given twice"),
        ("seed: [1\n", "exp.yaml:2: not valid YAML"),
        ("seed: !!python/name:os.system x\n", "exp.yaml:1: not valid YAML"),
        ("seed: 2020-13-45\n", "exp.yaml:1 (seed): '2020-13-45' given; not a timestamp of YAML"),
        ("preset: ''\n", "exp.yaml (preset): unknown preset ''"),
        ("- 1\n- 2\n", "exp.yaml:1 (the file): must hold lines"),
        ("train: 5\n", "exp.yaml:1 (train): 5 given; train is a section"),
        ("train:\n  lr: {a: 1}\n", "exp.yaml:2 (train.lr): sections are one level deep"),
        ("train:\n  lr: [1, 2]\n", "exp.yaml:2 (train.lr): must be a valid number"),
        ("2: 3\n", "exp.yaml:1 (2): a key must be a text"),
        ("preset: tabel3\n", "exp.yaml (preset): unknown preset 'tabel3' (did you mean 'table3'?)"),
        ("grid:\n  seed: [1, 2]\n", "exp.yaml (grid): a grid is run by 'fedsim sweep"),
    ],
)
def test_a_file_is_refused_with_its_line(tmp_path: Path, text: str, wanted: str) -> None:
    assert wanted in file_refusal(tmp_path, text)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(file=tmp_path / "none.yaml")


def test_an_empty_file_and_an_empty_section_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text("")
    assert load_config(file=path) == RunConfig()
    path.write_text("train:\nfedld:\n")
    assert load_config(file=path) == RunConfig()


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = RunConfig(
        algorithm="fedprox",
        server="fedld",
        fedprox={"mu": 1e-5},
        fedld={"keep": 0.1 + 0.2},
        seed=2**40,
        data={"name": "retina", "dir": "a folder: 1"},
        train={"lr": 1 / 3},
        engine={"actors": 4, "gpus_per_client": 0.25},
    )
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    again = load_config(file=path)
    assert again == config
    assert to_yaml(again) == to_yaml(config)
    assert yaml.safe_load(to_yaml(config))["fedprox"] == {"mu": 1e-5, "prox_form": "squared"}


def test_grids_are_read_with_their_lines() -> None:
    row = "    - a: {train.lr: 0.1, seed: 3}\n    - b: {train: {lr: 1}}\n"
    text = f"grid:\n  seed: [0, 1]\n  row:\n{row}"
    seeds, rows = experiments.parse(text, "g.yaml").grid
    assert [p.label for p in seeds.values] == ["0", "1"]
    assert seeds.values[1].settings["seed"].origin == "g.yaml:2 (grid.seed)"
    assert [p.label for p in rows.values] == ["a", "b"]
    assert {k: g.value for k, g in rows.values[0].settings.items()} == {"train.lr": 0.1, "seed": 3}
    assert rows.values[1].settings["train.lr"].origin == "g.yaml:5 (train.lr)"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("grid:\n  seed: 3\n", "g:2 (grid.seed): must be a list of values"),
        ("grid:\n  seed: []\n", "must be a list of values"),
        ("grid:\n  seed: [1, 1]\n", "1 is given twice"),
        ("grid:\n  train.lr: [1, 2, 1.0]\n", "1.0 is given twice"),
        ("grid:\n  m:\n  - '': {seed: 1}\n", "g:3 (grid.m): '' given; a name must have a letter"),
        ("grid:\n  m:\n  - A: {seed: 1}\n  - A: {seed: 2}\n", "A is given twice"),
        ("grid:\n  m:\n  - A: {seed: 1}\n  - a : {seed: 2}\n", "'A' and 'a' are the same but for"),
        ("grid:\n  m:\n  - {a: 1}\n", "a row must be 'name: {key: value, ...}'"),
        ("about: 3\n", "must be a text"),
    ],
)
def test_a_grid_of_another_shape_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiments.parse(text, "g")
    assert wanted in str(error.value)


def ordered(low: float = 0.0, high: float = 1.0):
    """A method whose two hyperparameters have to be in order."""
    if low > high:
        raise ConfigError(f"low {low} is above high {high}")
    return Algorithm()


@pytest.mark.parametrize(
    ("values", "key"),
    [({"low": 2.0}, "ordered.low"), ({"low": 0.6, "high": 0.5}, "ordered")],
)
def test_the_value_that_a_method_refuses_alone_is_named(values, key):
    method = f"{__name__}:ordered"
    with pytest.raises(ConfigError, match=rf"{key}: low \S+ is above high"):
        RunConfig(algorithm=method, **{method: values})
