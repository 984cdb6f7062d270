"""Configurations: layers, files, keys and sections, and what is refused, with its place."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml

from fedsim import algorithms
from fedsim.algorithms import Algorithm
from fedsim.cli.options import flag_names
from fedsim.client import LocalRule, Phase
from fedsim.config import experiments, search
from fedsim.config.keys import FREE, KEYS, conditions, is_setting
from fedsim.config.resolve import from_flags, load_config, to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import fields
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Layout, Slot
from fedsim.studies import sweep
from fedsim.systems.clock import LocalSchedule, Series
from fedsim.systems.distributions import constant, parse
from fedsim.systems.trace import read_trace
from fedsim.testing.rounds import small
from fedsim.training.assemble import clock_of, prepare

# resolve


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


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"algorithm": "fedldd"}, ["algorithm:", "'fedldd'", "did you mean 'fedld'?", "fedavg"]),
        ({"algoritm": "fedld"}, ["unknown key", "did you mean 'algorithm'?"]),
        ({"lr": 0.1}, ["did you mean 'train.lr'?"]),
        ({"margin": "marglog"}, ["did you mean 'marg_log'?", "sigma_stitch"]),
        ({"data": {"partition": "dirichelt"}}, ["data.partition:", "did you mean 'dirichlet'?"]),
        ({"data": {"augment": "flop"}}, ["data.augment:", "did you mean 'flip'?"]),
        ({"model": {"norm": "layer"}}, ["model.norm:", "'batch' or 'group'"]),
        ({"data": {"alpha": 0}}, ["data.alpha: 0 given", "greater than 0"]),
        ({"data": {"alpha": float("nan")}}, ["data.alpha:", "finite"]),
        ({"train": {"rounds": 1.5}}, ["train.rounds: 1.5 given", "integer"]),
        ({"train": {"rounds": True}}, ["train.rounds: True given", "must not be true or false"]),
        ({"train": {"epochs": 2}}, ["train.epochs", "did you mean 'train.local_epochs'?"]),
        ({"data": {"dir": "s3://b/d"}}, ["data.dir: 's3://b/d' given; must be a path", "mount"]),
        ({"mu": 1}, ["did you mean 'fed", ".mu'?"]),
        ({"engine": {"actors": "many"}}, ["'many' given", "auto, per-client or a whole number"]),
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


def test_fast_is_two_settings():
    fast = {"engine.fast": ("--fast", True)}
    settings = {key: setting.value for key, setting in from_flags(fast).items()}
    assert settings == {"engine.precision": "bf16", "engine.deterministic": False}
    assert from_flags({"engine.fast": ("--fast", None)}) == {}
    with pytest.raises(ConfigError, match=r"^--fast: engine\.precision is also given by --prec"):
        from_flags(fast | {"engine.precision": ("--precision", "tf32")})


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
        ("seed: 2020-13-45\n", "exp.yaml:1 (seed): not a value of YAML (month must be"),
        ("preset: ''\n", "exp.yaml (preset): unknown preset ''"),
        ("- 1\n- 2\n", "exp.yaml:1 (the file): must hold lines"),
        ("train: 5\n", "exp.yaml:1 (train): 5 given; train is a section"),
        ("train:\n  lr: {a: 1}\n", "exp.yaml:2 (train.lr): sections are one level deep"),
        ("train:\n  lr: [1, 2]\n", "exp.yaml:2 (train.lr): must be a valid number"),
        ("2: 3\n", "exp.yaml:1 (2): a key must be a text"),
        ("preset: tabel3\n", "exp.yaml (preset): unknown preset 'tabel3' (did you mean 'table3'?)"),
        ("grid:\n  seed: [1, 2]\n", "exp.yaml (grid): is done by 'fedsim sweep"),
    ],
)
def test_a_file_is_refused_with_its_line(tmp_path: Path, text: str, wanted: str) -> None:
    assert wanted in file_refusal(tmp_path, text)


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
        ("about: 3\n", "3 given; must be a valid string"),
    ],
)
def test_a_grid_of_another_shape_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiments.parse(text, "g")
    assert wanted in str(error.value)


# sections


USER = {"level": "user", "clip": 1.0}
SPEEDS = {"mode": "async", "upload_mb_s": 1}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"train": {"cohort": "poisson", "selection": "oort"}}, "train.cohort: poisson given"),
    ({"train": {"selection": "size"}, "clock": SPEEDS}, "effect without clock.mode=sync"),
    (
        {"train": {"selection": "size", "schedule": "a:b"}},
        "train.selection: size given; it has no effect without train.schedule=synchronous",
    ),
    ({"train": {"schedule": "a:b"}, "clock": SPEEDS}, "train.schedule: a:b given"),
    ({"train": {"selection": "fixed"}}, "train.selection: fixed given; give train.clients"),
    ({"train": {"clients": []}}, "train.clients: must be ids of clients"),
    ({"train": {"clients": "0,a"}}, "train.clients: '0,a' given; must be ids of clients"),
    ({"train": {"local_steps": 9, "local_epochs": 2}}, "given with train.local_epochs=2"),
    ({"train": {"local_steps": 9, "lr_schedule": "warmup_round"}}, "warmup_round given"),
    ({"train": {"shuffle": "dataloader"}}, "needs train.local_steps and train.sample_rate=1"),
    (
        {"train": {"shuffle": "dataloader", "local_steps": 9, "sample_rate": 0.5}},
        "needs train.local_steps and train.sample_rate=1",
    ),
    ({"clock": {"mode": "async"}}, "clock.mode: async given, but nothing takes time"),
    ({"clock": SPEEDS | {"deadline": 3}}, "clock.deadline: 3.0 given; it has no effect"),
    ({"clock": {"upload_mb_s": "uniform(-1, 1)"}}, "(1e-100 to 1e100), this goes from -1 to 1"),
    ({"clock": {"availability": True}}, "clock.availability: True given"),
    ({"clock": {"availability": 0}}, "none of them would ever answer"),
    ({"clock": {"work": "normal(1, 1)"}}, "must be a number, choice(a, b, ...), uni"),
    ({"clock": {"work": None}}, "null given; must be a number"),
    ({"async": {"bufer": 3}}, "async.bufer: unknown key"),
    ({"clock": SPEEDS, "async": {"mixing": 1.5}}, "async.mixing: 1.5 given"),
    ({"clock": SPEEDS, "async": {"slope": 2}}, "effect without async.staleness=hinge"),
    (
        {"attack": {"name": "ipm", "fraction": 0.2, "clients": "1"}},
        "0.2 given beside attack.clients",
    ),
    ({"dp": {"level": "user"}}, "give the norm to clip updates (or dp.quantile, to adapt it)"),
    ({"dp": {"level": "example"}}, "dp.clip: is missing; give the norm to clip gradients to"),
    ({"dp": {"level": "example", "clip": 1, "quantile": 0.5}}, "effect without dp.level=user"),
    ({"dp": {**USER, "clip_lr": 0.1}}, "dp.clip_lr: 0.1 given; it has no effect without dp.quant"),
    (
        {"dp": {**USER, "mechanism": "banded", "quantile": 0.5}},
        "dp.quantile: 0.5 given; it has no effect without dp.mechanism=gaussian",
    ),
    ({"dp": {**USER, "population": 9}}, "it has no effect without dp.noise_cohort"),
    ({"dp": {**USER, "noise_cohort": 9, "population": 8}}, "dp.noise_cohort: 9 given, more than"),
]


@pytest.mark.parametrize(("sections", "message"), REFUSED)
def test_what_a_section_refuses(sections, message):
    with pytest.raises(ConfigError) as error:
        RunConfig(**sections)
    assert message in str(error.value)


def another(key: str) -> Any:
    """A valid value of a key that is not its default."""
    kind, default = fields()[key].annotation, fields()[key].default
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    kinds = get_args(kind) or (kind,)
    if str in kinds:
        return "0,3"
    return True if bool in kinds else 3 if int in kinds else 0.25


def unmet(key: str) -> bool:
    """Whether the defaults leave a key without effect."""
    needed = (condition.partition("=") for condition in conditions(key))
    return any(not equals or str(fields()[k].default) != v for k, equals, v in needed)


@pytest.mark.parametrize("key", [key for key in KEYS if unmet(key)])
def test_a_key_without_effect_is_refused(key):
    section, _, leaf = key.partition(".")
    with pytest.raises(ConfigError, match=rf"^{key}: \S+ given; it has no effect without "):
        RunConfig(**{section: {leaf: another(key)}})


def test_what_a_key_depends_on_is_a_key_with_such_a_value():
    for key in KEYS:
        for condition in conditions(key):
            other, _, values = condition.partition("=")
            kind = str(fields()[other].annotation)
            choices = values.split("|") if "Literal" in kind else ()
            assert all(f"{choice}'" in kind for choice in choices if choice), condition
        section, _, leaf = key.rpartition(".")
        assert not KEYS[key].column_with or f"{section}.{KEYS[key].column_with}" in KEYS, leaf


def test_flags_are_of_one_key_and_roles_are_those_that_resuming_needs():
    names = [name for flags in flag_names().values() for flag in flags for name in flag.split("/")]
    assert len(names) == len(set(names))
    assert {"engine.kind", "engine.gpus_per_client", "label"} <= FREE
    assert {key for key in FREE if not key.startswith("engine.")} == {"label"}
    decisive = {"client_batch", "on_client_failure", "precision", "deterministic", "server_device"}
    assert decisive == {key[7:] for key in KEYS if key.startswith("engine.")} - {
        key[7:] for key in FREE
    }
    for column in ("algorithm", "num_clients", "train.lr", "fedprox.mu", "best_by", "margin"):
        assert is_setting(column)
    for column in ("seed", "label", "train.threads", "target_accuracy", "final_test_r@0.9"):
        assert not is_setting(column)


# local steps


@pytest.mark.parametrize(
    ("method", "sections", "message"),
    [
        ("fedpac", {}, r"\(train.local_steps\) cannot be combined with local training in phases"),
        ("centralized", {"train": {"sample_rate": 0.5}}, "pooled training .* below 1"),
        (
            "fedavg",
            {"dp": {"level": "example", "clip": 1.0}},
            "cannot be combined with privacy of samples",
        ),
        (
            "fedavg",
            {"train": {"shuffle": "dataloader"}, "data": {"heldout_clients": 1}},
            "train.shuffle=dataloader cannot be combined with data.heldout_clients",
        ),
    ],
)
def test_combinations_that_are_refused(method, sections, message):
    train = {"local_steps": 3, "sample_rate": 1.0} | sections.get("train", {})
    with pytest.raises(ConfigError, match=message):
        prepare(small(method, "mlp", **sections | {"train": train}))


# search


def space_of(text: str, *sets: str) -> search.Space:
    found = experiments.parse(text, "search.yaml")
    return search.make_space(found.search, found.settings, from_flags({}, sets))


def test_forms_nested_and_dotted() -> None:
    space = space_of("""
search:
  train.lr: loguniform(1e-4, 1)
  train: {momentum: "uniform(0, 0.9)"}
  train.local_epochs: int(1, 4)
  server: choice(null, 'fedgh,fedadam', fedgh)
""")
    assert [(key, d.form, d.values) for key, d in space.items()] == [
        ("train.lr", "loguniform", (1e-4, 1)),
        ("train.momentum", "uniform", (0, 0.9)),
        ("train.local_epochs", "int", (1, 4)),
        ("server", "choice", (None, "fedgh,fedadam", "fedgh")),
    ]
    assert space["train.local_epochs"].listed == range(1, 5)
    assert space["train.lr"].listed is None
    assert str(space["server"]) == "choice(null, 'fedgh,fedadam', fedgh)"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("train.lrr: uniform(1, 2)", "unknown key 'train.lrr' (did you mean 'train.lr'?)"),
        ("train.lr: uniform(2, 1)", "must be uniform(a, b) of numbers with a below b"),
        ("train.lr: loguniform(0, 1)", "must be loguniform(a, b) with a above 0"),
        ("train.lr: uniform(0.1, .inf)", "must be uniform(a, b) of numbers with a below b"),
        ("train.lr: uniform(0, 1)", "0.0 given; must be greater than 0"),
        ("train.batch_size: int(1, 2.5)", "must be int(a, b) of whole numbers with a below b"),
        ("train.local_epochs: uniform(1, 4)", "must be a valid integer"),
        ("algorithm: choice(fedavg, fedpro)", "unknown algorithm 'fedpro' (did you mean 'fedprox'"),
        ("train.lr: choice(0.1, -1)", "-1 given; must be greater than 0"),
        ("train.lr: choice()", "must be choice(a, b, ...) with at least one value"),
        ("train.lr: choice(1, 1.0)", "has 1.0 twice"),
        ("train.lr: choice([1], 2)", "must be uniform(a, b), loguniform(a, b), int(a, b) or"),
        ("train.lr: normal(0, 1)", "must be uniform(a, b), loguniform(a, b), int(a, b) or choice"),
        ("train.lr: [0.1, 0.2]", "must be uniform(a, b), loguniform(a, b), int(a, b) or choice"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_its_line(line: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        space_of(f"train: {{rounds: 2}}\nsearch:\n  {line}\n")
    assert str(error.value).startswith("search.yaml:3 (")
    assert wanted in str(error.value)


def test_a_flag_takes_the_place_of_a_searched_key() -> None:
    text = "search:\n  train.lr: uniform(0.1, 1)\n  train.momentum: uniform(0, 0.5)\n"
    assert list(space_of(text, "train.lr=0.3")) == ["train.momentum"]
    with pytest.raises(ConfigError, match="nothing to search"):
        space_of(text, "train.lr=0.3", "train.momentum=0")


def test_keys_on_the_command_line() -> None:
    found = search.from_flags(["train.lr=loguniform(1e-3, 1)"])
    assert search.make_space(found, {}, {})["train.lr"].values == (1e-3, 1)
    with pytest.raises(ConfigError, match=r"--search train\.lr: 'fast' given; must be uniform"):
        search.make_space(search.from_flags(["train.lr=fast"]), {}, {})
    with pytest.raises(ConfigError, match="must be key=value"):
        search.from_flags(["train.lr"])
    with pytest.raises(ConfigError, match="also given by"):
        search.from_flags(["seed=int(1, 2)", "seed=int(1, 3)"])


def test_run_and_sweep_name_the_command_that_searches(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text("search:\n  train.lr: uniform(0.1, 1)\ngrid: {seed: [0, 1]}\n")
    with pytest.raises(ConfigError, match=r"\(search\): is done by 'fedsim tune .*yaml'"):
        load_config(file=file)
    with pytest.raises(ConfigError, match=r"search\.yaml:2 .*: a search is run by 'fedsim tune'"):
        sweep.expand(sweep.load(str(file)), {})


# experiments


# clock settings


LAYOUT = Layout(
    (
        Slot(name="conv", shape=(4,), start=0, stop=4),
        Slot(name="norm", shape=(2,), start=4, stop=6, batchnorm=True),
        Slot(name="head", shape=(3,), start=6, stop=9, head=True),
        Slot(name="norm.mean", shape=(2,), start=9, stop=11, role="stat", batchnorm=True),
    )
)


def clock(method="fedavg", train=None, algorithm=None, **section):
    config = RunConfig(algorithm=method, train=train or {}, clock=section, seed=3)
    algorithm = algorithm or algorithms.load(method, config.hyperparameters[method])
    return clock_of(config, 3, algorithm, LAYOUT)


def trace(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_clock_of_a_section():
    found = clock(
        train={"local_epochs": 2, "batch_size": 8},
        samples_per_second="lognormal(100, 0.5)", availability="0.9", work="uniform(0.5, 1)",
        deadline=5, late="partial",
    )  # fmt: skip
    assert found.distributions == {
        "samples_per_second": parse("lognormal(100, 0.5)"),
        "availability": constant(0.9),
    }
    assert (found.seed, found.deadline, found.late) == (3, 5.0, "partial")
    assert found.work == parse("uniform(0.5, 1)")
    assert found.schedule == LocalSchedule(2, 8, True)
    assert found.vector_bytes == 4 * 11


def test_what_stays_on_the_client_is_not_sent():
    assert clock("fedbn").vector_bytes == 4 * 7
    assert clock("fedbn", samples_per_second=1).vector_bytes == 4 * 7
    assert clock("fedpac").vector_bytes == 4 * 8


def test_the_epochs_of_all_phases_count_and_batch_norm_that_does_not_train_skips_nothing():
    assert clock("fedpac", {"local_epochs": 3}, samples_per_second=1).schedule.epochs == 1 + 3
    assert not clock(train={"frozen_bn": True}, samples_per_second=1).schedule.skips_single


def test_steps_in_place_of_epochs_are_what_takes_time():
    fixed = clock(train={"local_steps": 7, "batch_size": 8}, samples_per_second=10.0)
    assert [fixed.schedule.steps(n) for n in (3, 100)] == [7, 7]
    assert fixed.participation(0, 0, 20).compute == pytest.approx(
        4.8
    )  # samples 8 + 8 + 4, 8 + 8 + 4, 8
    half = clock(train={"local_steps": 7, "batch_size": 8}, samples_per_second=10.0, work=0.5)
    assert half.participation(0, 0, 20).max_steps == 4


class Curious(LocalRule):
    def phases(self, env):
        return (Phase(len(env.x), 0.1),)


def test_a_plan_that_depends_on_the_data_is_refused_with_a_clock_alone():
    assert clock(algorithm=Algorithm(local=Curious())).vector_bytes == 44
    with pytest.raises(ConfigError, match="clock: algorithm fedavg plans its training with more"):
        clock(algorithm=Algorithm(local=Curious()), samples_per_second=1)


def test_a_deadline_needs_something_that_takes_time(tmp_path):
    with pytest.raises(ConfigError, match=r"clock\.deadline: 5 given, but nothing takes time"):
        clock(deadline=5, availability=0.5)
    path = trace(tmp_path, "client_id,upload_mb_s", "0,1", "1,1", "2,1")
    assert clock(deadline=5, trace=str(path)).timed


def test_a_trace(tmp_path):
    path = trace(
        tmp_path,
        "round,client_id,samples_per_second,availability",
        *("1,2,10,1", "1,0,20,0.5", "1,1,30,0", "5,0,40,0.25", "3,0,50,1"),
    )
    assert read_trace(path, 3) == {
        "samples_per_second": {
            0: Series((0, 2, 4), (20.0, 50.0, 40.0)),
            1: Series((0,), (30.0,)),
            2: Series((0,), (10.0,)),
        },
        "availability": {
            0: Series((0, 2, 4), (0.5, 1.0, 0.25)),
            1: Series((0,), (0.0,)),
            2: Series((0,), (1.0,)),
        },
    }


def test_a_trace_and_a_key_for_the_same_are_refused(tmp_path):
    path = trace(tmp_path, "client_id,upload_mb_s", "0,1", "1,1", "2,1")
    with pytest.raises(ConfigError, match=r"clock\.upload_mb_s: 3\.0 given; clock\.trace .* too"):
        clock(upload_mb_s=3, trace=str(path))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["client_id,speed", "0,1"], "unknown column 'speed'"),
        (["client,upload_mb_s", "0,1"], "needed are the columns client_id"),
        (["client_id,upload_mb_s", "0,1", "3,1"], "row 3: client_id 3 must be 0 to 2"),
        (["client_id,upload_mb_s", "0,1", "0,2"], "row 3: client_id 0 is given twice"),
        (["client_id,upload_mb_s", "0,1", "2,2"], "trace.csv: no row of client_id 1 for round 1"),
        (["client_id,round,upload_mb_s", "0,2,1"], "no row of client_id 0 for round 1"),
        (["client_id,upload_mb_s", "0,fast"], "row 2: upload_mb_s 'fast' must be above 0"),
        (
            ["client_id,availability", "0,0", "1,0", "2,0"],
            "trace.csv: availability is 0 in all rows",
        ),
        (["client_id,availability", "0,2"], "row 2: availability '2' must be from 0 to 1"),
    ],
)
def test_traces_that_are_refused(tmp_path, lines, message):
    path = trace(tmp_path, *lines)
    with pytest.raises(DataError) as error:
        read_trace(path, 3)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)
