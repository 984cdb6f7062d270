"""What is declared of keys: effects, roles, flags; and what single sections refuse."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import pytest

from fedsim.cli.options import flag_names
from fedsim.config.keys import FREE, KEYS, conditions, is_setting
from fedsim.config.resolve import from_flags, load_config, resolve, to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import SHORTHANDS, fields
from fedsim.core.errors import ConfigError

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
    ({"train": {"selection": "best"}}, "train.selection: 'best' given"),
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
    ({"train": {"local_steps": 0}}, "local_steps: 0 given"),
    ({"clock": {"mode": "async"}}, "clock.mode: async given, but nothing takes time"),
    ({"clock": SPEEDS | {"deadline": 3}}, "clock.deadline: 3.0 given; it has no effect"),
    ({"clock": {"samples_per_second": "0"}}, "'0' given; must be above 0"),
    ({"clock": {"upload_mb_s": "uniform(-1, 1)"}}, "(1e-100 to 1e100), this goes from -1 to 1"),
    ({"clock": {"availability": "1.5"}}, "'1.5' given; must be from 0 to 1"),
    ({"clock": {"availability": True}}, "clock.availability: True given"),
    ({"clock": {"availability": 0}}, "none of them would ever answer"),
    ({"clock": {"work": "normal(1, 1)"}}, "must be a number, choice(a, b, ...), uni"),
    ({"clock": {"work": None}}, "null given; must be a number"),
    ({"clock": {"late": "never"}}, "'never' given; must be 'drop' or 'partial'"),
    ({"clock": {"speed": 1}}, "unknown key 'clock.speed'"),
    ({"async": {"bufer": 3}}, "async.bufer: unknown key"),
    ({"clock": SPEEDS, "async": {"buffer": 0}}, "async.buffer: 0 given"),
    ({"clock": SPEEDS, "async": {"mixing": 1.5}}, "async.mixing: 1.5 given"),
    ({"clock": SPEEDS, "async": {"slope": 2}}, "effect without async.staleness=hinge"),
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
    ({"dp": {**USER, "delta": 1.0}}, "dp.delta: 1.0 given"),
    ({"dp": {**USER, "noise_multiplier": 1e30}}, "dp.noise_multiplier: 1e+30 given"),
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
    for column in ("seed", "label", "train.threads", "target_accuracy", "final_test_accuracy"):
        assert not is_setting(column)


def test_fast_is_two_settings():
    [(key, meant)] = SHORTHANDS.items()
    settings = from_flags({key: ("--fast", True)})
    assert {name: setting.value for name, setting in settings.items()} == meant
    config = load_config(overrides=settings)
    assert (config.engine.precision, config.engine.deterministic) == ("bf16", False)
    both = {"engine.precision": ("--precision", "tf32"), key: ("--fast", True)}
    message = r"^--fast: engine\.precision is also given by --precision"
    with pytest.raises(ConfigError, match=message):
        from_flags(both)
    assert from_flags({key: ("--fast", None)}) == {}


def test_the_clipping_norm_of_the_first_round():
    assert RunConfig().dp.level is None
    assert RunConfig(dp=USER).dp.clip_norm == 1.0
    assert RunConfig(dp={"level": "user", "quantile": 0.5}).dp.clip_norm == 0.1


def test_distributions_in_text_are_the_same_configuration():
    texts = resolve(from_flags({}, ["clock.availability=0.9", "clock.work=choice(0.5,1)"]))
    same = RunConfig(clock={"availability": 0.9, "work": "choice(0.5,1)"})
    assert to_yaml(texts) == to_yaml(same)
