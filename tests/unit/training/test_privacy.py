"""Privacy of clients and of samples in runs, and malicious clients."""

from __future__ import annotations

import json
import math
from itertools import combinations, product

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import pld, rdp
from safetensors.numpy import load_file
from torch import nn

import fedsim
from fedsim.attacks import ATTACKS
from fedsim.attacks.alie import alie_z
from fedsim.config import experiments
from fedsim.config.attack import AttackConfig
from fedsim.config.resolve import resolve
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.settings import InvalidSetting
from fedsim.core.types import RoundContext
from fedsim.engine.worker import Worker
from fedsim.identity.resume import is_complete
from fedsim.schedules.selection import Poisson
from fedsim.testing.rounds import config, difference, results, rounds, small
from fedsim.training.assemble import prepare
from fedsim.training.malicious import check_effects, warn_of_weak_rounds
from fedsim.training.privacy import warn_of_delta
from fedsim.training.setup import needs_whole_updates
from fedsim.training.summary import UNDER_ATTACK
from tests.stopping import Stop, Stopper
from tests.unit.schedules.test_selection import clients, roster

UNIFORM = {"fedavg": {"weights": "uniform"}}
USER = {"level": "user", "clip": 0.5}
POISSON = {"rounds": 3, "sample_rate": 0.5, "cohort": "poisson"}


def user(method="fedavg", **sections):
    model = sections.pop("model", "mlp")
    given = UNIFORM if method == "fedavg" else {}
    dp = USER | sections.pop("dp", {})
    return config(method, model, **{**given, "dp": dp, **sections})


def epsilons(settings):
    return [r.row["epsilon"] for r in rounds(settings)]


def test_poisson_sampling_draws_each_client_by_itself():
    of = roster(sizes=(1,) * 40, m=4)
    found = np.zeros((400, 40))
    for t in range(len(found)):
        ctx = RoundContext(round=t, num_rounds=400, num_clients=40, lr=0.1, seed=0)
        found[t, clients(Poisson().plan(of, {}, ctx, pytest.fail))] = 1
    sizes = found.sum(1)
    assert sizes.min() == 0
    assert sizes.mean() == pytest.approx(4, abs=4 * math.sqrt(3.6 / 400))
    assert sizes.var() == pytest.approx(3.6, rel=0.3)
    assert np.abs(found.mean(0) - 0.1).max() < 4 * math.sqrt(0.09 / 400)
    held = roster(sizes=(1,) * 4, m=3, held_out=(0,))
    ctx = RoundContext(round=0, num_rounds=9, num_clients=3, lr=0.1, seed=0, num_held_out=1)
    assert clients(Poisson().plan(held, {}, ctx, pytest.fail)) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.integration
def test_epsilon_of_poisson_cohorts_is_that_of_dp_accounting():
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(
        1.5, sampling_prob=0.5, value_discretization_interval=1e-3
    )
    dp = {"noise_multiplier": 1.5, "delta": 1e-3}
    wanted = [one.self_compose(t).get_epsilon_for_delta(1e-3) for t in (1, 2, 3)]
    found = epsilons(user(train=POISSON, dp=dp))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    accountant = rdp.RdpAccountant()
    wanted = []
    for _ in range(3):
        event = dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.GaussianDpEvent(1.5))
        wanted.append(accountant.compose(event).get_epsilon(1e-3))
    found = epsilons(user(train=POISSON, dp={**dp, "accountant": "rdp"}))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.integration
def test_epsilon_of_other_cohorts():
    """All clients: the Gaussian mechanism; in turn: as often as a client takes part."""
    gaussian = [dp_accounting.get_epsilon_gaussian(1 / math.sqrt(t), 1e-5) for t in (1, 2, 3)]
    found = epsilons(user(train={"sample_rate": 1.0}))
    np.testing.assert_allclose(found, gaussian, rtol=1e-12)
    found = epsilons(user(train={"sample_rate": 0.75, "selection": "round_robin"}))
    np.testing.assert_allclose(found, gaussian, rtol=1e-12)
    found = epsilons(user(train={"selection": "round_robin"}))  # 2 of 8 clients
    np.testing.assert_allclose(found, [gaussian[0]] * 3, rtol=1e-12)
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    replaced = dp_accounting.SampledWithoutReplacementDpEvent(
        8, 2, dp_accounting.GaussianDpEvent(2.0 / 2)
    )
    wanted = [accountant.compose(replaced).get_epsilon(1e-5) for _ in range(3)]
    found = epsilons(user(dp={"noise_multiplier": 2.0, "accountant": "rdp"}))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.integration
def test_a_deployment_has_an_epsilon_of_its_own():
    dp = {"noise_multiplier": 0.8, "population": 10_000, "noise_cohort": 100}
    settings = user(train=POISSON, dp={**dp, "accountant": "rdp"})
    setup = prepare(settings)
    # as much noise on the mean as there: z C / 100 on that of 4 clients
    assert setup.algorithm.server.reduction.noise_multiplier == pytest.approx(0.8 * 4 / 100)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(0.8))
    accountant = rdp.RdpAccountant().compose(event, 3)
    own = dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.GaussianDpEvent(0.032))
    row = rounds(settings)[-1].row
    assert row["deployment_epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-12)
    wanted = rdp.RdpAccountant().compose(own, 3).get_epsilon(1e-5)
    assert row["epsilon"] == pytest.approx(wanted, rel=1e-12)
    of_run, of_deployment = setup.budget.lines(3)
    assert "neighbours add or remove one, Poisson sampling with q=0.5, delta=1e-05" in of_run
    assert "a deployment of 10000 clients would have epsilon" in of_deployment
    assert "q=0.01, delta=1e-05" in of_deployment


@pytest.mark.integration
def test_the_noise_for_an_epsilon_is_written_and_the_run_repeats_without_looking_for_it(tmp_path):
    settings = user(dp={"epsilon": 6.0, "accountant": "rdp"}, train=POISSON)
    done = fedsim.run(settings, tmp_path / "run", progress=False)
    written = experiments.read(done.path / "config.yaml").settings
    noise = written["dp.noise_multiplier"].value
    epsilon = done.rounds["epsilon"].iloc[-1]
    assert 6 / (1 + 1e-5) < epsilon <= 6  # a relative step in z is one of at most a few in epsilon
    given = user(dp={"noise_multiplier": noise, "accountant": "rdp"}, train=POISSON)
    assert results(fedsim.run(given, tmp_path / "given", progress=False)) == results(done)
    again = resolve(written)
    assert (again.dp.noise_multiplier, again.dp.epsilon) == (noise, 6.0)
    assert prepare(again).config.dp == again.dp
    assert is_complete(settings, done.path)
    with pytest.raises(ConfigError, match=r"finished with another dp\.epsilon"):
        is_complete(user(dp={"epsilon": 5.0, "accountant": "rdp"}, train=POISSON), done.path)


@pytest.mark.parametrize(
    ("dp", "train", "reason"),
    [
        ({"noise_multiplier": 0.5}, {}, "it is 17.78: leave that out"),
        ({"epsilon": 1e-6, "delta": 1e-12}, {"sample_rate": 1}, "any noise it is .* or more"),
        ({"noise_multiplier": None, "epsilon": None}, {}, "null given; give it, or dp.epsilon"),
        ({"level": "example"}, {}, "6.0 given; it has no effect without dp.level=user"),
        ({"epsilon": 0}, {}, "greater than 0"),
    ],
)
def test_an_epsilon_that_cannot_be(dp, train, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(user(dp={"epsilon": 6.0, "accountant": "rdp", **dp}, train=POISSON | train))


@pytest.mark.integration
def test_the_epsilon_of_a_deployment_is_what_is_asked_for():
    dp = {"epsilon": 2.0, "noise_cohort": 100, "population": 10_000, "accountant": "rdp"}
    columns = prepare(user(dp=dp, train=POISSON)).budget.columns(3)
    assert 2 / (1 + 1e-5) < columns["deployment_epsilon"] <= 2 < columns["epsilon"]


@pytest.mark.integration
def test_without_noise_and_clipping_it_is_fedavg():
    plain = [r.content() for r in rounds(config("fedavg", "mlp", **UNIFORM))]
    own = ("epsilon", "server.csv")
    for dp in ({"clip": 1e30, "noise_multiplier": 0.0},):
        found = [r.content() for r in rounds(user(dp=dp))]
        found = [{k: v for k, v in r.items() if not any(x in k for x in own)} for r in found]
        wanted = [{k: v for k, v in r.items() if "epsilon" not in k} for r in plain]
        assert difference(wanted, found, "fedavg") is None


@pytest.mark.slow
@pytest.mark.integration
def test_a_round_without_clients_releases_noise():
    found = rounds(user(train={"rounds": 8, "sample_rate": 0.125, "cohort": "poisson"}))
    empty = [r for r in found if r.row["cohort_size"] == 0]
    assert empty
    for r in empty:
        assert r.row["update_norm"] > 0
        assert r.row["epsilon"] > 0
        assert r.row["conflict_ratio"] is None
    without = rounds(
        config("fedavg", "mlp", train={"rounds": 8, "sample_rate": 0.125, "cohort": "poisson"})
    )
    assert [r.row["cohort_size"] for r in without] == [r.row["cohort_size"] for r in found]
    assert all((r.row["update_norm"] is None) == (r.row["cohort_size"] == 0) for r in without)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("fedprox", {"server": "fedavg", **UNIFORM}),
        ("fedld", {"server": "fedavg", **UNIFORM}),
        ("moon", {"server": "fedavg", **UNIFORM}),
        ("fedadam", {"fedadam": {"weights": "uniform"}}),
        ("fedavg", {"fedavg": {"weights": "samples"}, "dp": {"max_samples": 20}}),
        ("scaffold", {"dp": {"clip_control": 5.0}}),
        ("fedavg", {"dp": {"quantile": 0.5, "count_noise": 2.0}}),
        ("fedavg", {"compress": {"name": "top_k"}}),
        ("fedavg", {"attack": {"name": "sign_flip"}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_private_run_resumes_to_the_same_bytes(tmp_path, method, sections):
    sections = {
        "train": {"rounds": 3, "sample_rate": 0.5, "cohort": "poisson"},
        "engine": {"checkpoint_every": 1},
        **sections,
    }
    server = sections.pop("server", None)

    def settings():
        made = user(method, **sections)
        if server is not None:
            made = fedsim.RunConfig(
                **{**made.model_dump(exclude={"hyperparameters"}), "server": server, **UNIFORM}
            )
        return made

    whole = fedsim.run(settings(), tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        fedsim.run(settings(), tmp_path / "cut", [Stopper(1)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)
    assert np.diff(whole.rounds.epsilon).min() > 0
    assert whole.summary["epsilon"] == whole.rounds.epsilon.iloc[-1]


@pytest.mark.integration
def test_privacy_in_blocks_as_alone():
    """Trained together as one model, clients send the same up to rounding."""
    train = {**POISSON, "momentum": 0.0}
    one, two = (rounds(user(train=train, engine={"client_batch": n})) for n in (1, 3))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.after.params, b.after.params, rtol=0, atol=2e-5)


TURNS = {"rounds": 3, "sample_rate": 0.5, "selection": "round_robin"}


@pytest.mark.integration
def test_banded_noise_has_the_epsilon_of_independent_noise_and_other_models():
    independent, banded = (
        user(train=TURNS, dp={"mechanism": mechanism, "noise_multiplier": 1.5})
        for mechanism in ("gaussian", "banded")
    )
    assert epsilons(independent) == epsilons(banded)
    ends = [rounds(settings)[-1].after.params for settings in (independent, banded)]
    assert not np.array_equal(*ends)
    one = user(train=TURNS, dp={"mechanism": "banded", "bands": 1, "noise_multiplier": 1.5})
    assert all(
        a.after.params.tobytes() == b.after.params.tobytes()
        for a, b in zip(rounds(independent), rounds(one), strict=True)
    )


@pytest.mark.parametrize(
    ("train", "dp", "message"),
    [
        ({}, {}, "dp.mechanism: banded needs train.selection=round_robin"),
        (TURNS, {"bands": 3}, "dp.bands: 3 given; a client may take part again after 2 rounds"),
    ],
)
def test_banded_noise_needs_turns(train, dp, message):
    with pytest.raises(ConfigError, match=message):
        prepare(user(train=train, dp={"mechanism": "banded", **dp}))


@pytest.mark.parametrize(
    ("dp", "warned"),
    [
        ({"level": "user", "delta": 0.5}, "dp.delta=0.5 is not below 1 / 4 clients"),
        ({"level": "user", "delta": 0.25}, "dp.delta=0.25 is not below 1 / 4 clients"),
        ({"level": "user", "delta": 0.2}, ""),
        ({"level": "example", "delta": 0.1}, "dp.delta=0.1 is not below 1 / 30 training samples"),
        ({}, ""),
    ],
)
def test_a_delta_that_protects_nobody_is_warned_of(dp, warned, caplog):
    given = {"dp": {"clip": 1.0, **dp}} if dp else {}
    warn_of_delta(config("fedavg", **given), [10, 20, 30, 5])
    assert caplog.text.count("\n") == bool(warned)
    assert warned in caplog.text


def example(method="fedavg", model="mlp", **sections):
    dp = {"level": "example", "clip": 1.0, "accountant": "rdp", **sections.pop("dp", {})}
    return config(method, model, dp=dp, **sections)


def wanted(z, q, steps, delta):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    return rdp.RdpAccountant().compose(event, steps).get_epsilon(delta)


@pytest.mark.slow
@pytest.mark.integration
def test_epsilons_of_clients_are_those_of_dp_accounting():
    settings = example(
        dp={"noise_multiplier": 1.5, "delta": 1e-3}, train={"rounds": 4, "sample_rate": 0.5}
    )
    steps, seen = {}, 0
    for made in rounds(settings):
        for row in made.tables["clients"]:
            client, n = row["client_id"], row["num_samples"]
            seen += client in steps
            steps[client] = steps.get(client, 0) + row["num_steps"]
            found = wanted(1.5, min(1, 20 / n), steps[client], 1e-3)
            assert row["epsilon"] == pytest.approx(found, rel=1e-12)
    assert seen


@pytest.mark.slow
@pytest.mark.integration
def test_a_run_resumes_to_the_same_bytes(tmp_path):
    def settings():
        return example(
            train={"rounds": 3, "sample_rate": 0.5}, engine={"checkpoint_every": 1}
        )  # fmt: skip

    whole = fedsim.run(settings(), tmp_path / "whole", progress=False)
    with pytest.raises(Stop):
        fedsim.run(settings(), tmp_path / "cut", [Stopper(1)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)
    assert whole.clients.epsilon.notna().all()


@pytest.mark.parametrize(
    ("method", "sections", "reason"),
    [
        ("centralized", {}, "pooled training"),
        ("fedsam", {}, "clients that see more of their samples"),
        ("moon", {}, "clients that see more of their samples"),
        ("scaffold", {"scaffold": {"option": "I"}}, "clients that see more of their samples"),
        ("fedavg", {"model": "cnn"}, "BatchNorm that trains.*model.norm=group"),
        ("fedld_released", {}, "margin=softmax_frob"),
        ("fedavg", {"train": {"selection": "oort"}}, "train.selection=power_of_choice or oort"),
        ("fedavg", {"evaluation": {"finetune_epochs": 1}}, "evaluation.finetune_epochs"),
        ("fedavg", {"engine": {"client_batch": 2}}, "engine.client_batch.*dp.level=example"),
    ],
)
def test_what_cannot_be_private_is_refused_with_the_reason(method, sections, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(example(method, **sections))


@pytest.mark.integration
@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedcm", "fednova", "fedprox"])
def test_methods_whose_clients_only_correct_gradients_run(method):
    sections = {"train": {"momentum": 0.0}} if method == "feddyn" else {}
    assert np.isfinite(rounds(example(method, **sections))[-1].after.params).all()


class Counting(nn.Module):
    """Its loss is no function of the sample alone, which vmap cannot express."""

    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1)) * (1.0 if float(x.sum()) >= 0 else 2.0)


def counting(num_classes, in_channels, image_size):
    return Counting(num_classes)


def test_a_model_without_gradients_by_sample_is_refused_before_the_first_round():
    given = f"{__name__}:counting"
    prepare(config("fedavg", given))
    message = rf"dp\.level: example given; torch\.func\.vmap.* cannot run model\.name={given}: Runt"
    with pytest.raises(ConfigError, match=message):
        prepare(example("fedavg", given))


def test_batchnorm_that_does_not_train_has_gradients_by_sample():
    prepare(example("fedavg", "cnn", train={"frozen_bn": True}))


NAMES = ATTACKS.names()
THIRD = {"fraction": 0.4}


def attacked(name, method="fedavg", **sections):
    attack = {"name": name, **THIRD, **sections.pop("attack", {})}
    return small(method, attack=attack, **sections)


def ran(tmp_path, method="fedavg", **sections):
    return fedsim.run(config(method, **sections), tmp_path, progress=False)


@pytest.mark.parametrize(
    ("given", "key", "reason"),
    [
        ({"scale": 2}, "scale", "2.0 given; give attack.name too"),
        ({"clients": "1"}, "clients", "give attack.name too"),
        ({"name": "sign_flp"}, "name", "did you mean 'sign_flip'"),
        ({"name": "ipm", "scale": 0}, "scale", "greater than 0"),
        ({"name": "ipm", "fraction": 1.1}, "fraction", "less than or equal to 1"),
        ({"name": "ipm", "clients": "1;2"}, "clients", "ids of clients, separated by commas"),
        ({"name": "ipm", "clients": "-1"}, "clients", "ids of clients, separated by commas"),
        ({"name": "ipm", "clients": []}, "clients", "ids of clients, separated by commas"),
        ({"name": "mimic", "scale": 2}, "scale", "mimic has none; only alie, backdoor"),
        ({"name": "ipm", "source": 1, "target": 2}, "source", "ipm has none; only backdoor, label"),
        ({"name": "backdoor", "pixels": 0}, "pixels", "greater than or equal to 1"),
        ({"name": "ipm", "pixels": 2}, "pixels", "2 given; ipm has none; only backdoor"),
        ({"name": "mimic", "knowledge": "own"}, "knowledge", "mimic has none; only alie"),
        ({"name": "ipm", "warmup": 2}, "warmup", "ipm has none; only mimic"),
        ({"name": "min_max", "bound": "max"}, "bound", "min_max has none; only min_sum"),
        ({"name": "ipm", "perturbation": "std"}, "perturbation", "only min_max, min_sum"),
        ({"name": "ipm", "start_round": 0}, "start_round", "greater than or equal to 1"),
        ({"name": "sign_flip", "scale": "auto"}, "scale", "'auto' given; must be a valid number"),
        ({"name": "alie", "scale": "atuo"}, "scale", "'atuo' given; must be"),
    ],
)
def test_settings_that_cannot_be_used(given, key, reason):
    with pytest.raises(InvalidSetting) as error:
        AttackConfig(**given)
    assert error.value.key == f"attack.{key}"
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        ({"clients": "2,8"}, r"^attack\.clients: 8 given; it is no client that trains"),
        ({"fraction": 0.1}, r"^attack\.fraction: 0\.1 given; of 8 clients that is none$"),
        ({"name": "label_flip", "source": 1, "target": 10}, r"^attack\.target: 10 .* 0 to 9$"),
        ({"name": "backdoor", "pixels": 9}, r"^attack\.pixels: 9 given; the images have 8 x 8"),
        ({"name": "label_flip", "source": 1}, r"^attack\.source: give attack\.target too"),
        ({"name": "label_flip", "target": 0}, r"^attack\.target: give attack\.source too"),
        ({"name": "label_flip", "source": 1, "target": 1}, r"^attack\.source: 1 is attack\.target"),
        ({"name": "backdoor", "source": 0}, r"^attack\.source: 0 is attack\.target"),
        ({"scale": "auto", "knowledge": "own"}, r"^attack\.knowledge: own given beside attack\.sc"),
    ],
)
def test_attackers_and_classes_that_do_not_exist(attack, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(config("fedavg", attack={"name": "ipm", **attack}))


def test_the_malicious_clients_are_the_same_for_every_method_and_seed():
    settings = [
        config(method, attack={"name": name, **THIRD}).model_copy(update={"seed": seed})
        for method, seed, name in product(("fedavg", "fedld"), (0, 1), ("sign_flip", "alie"))
    ]
    found = {prepare(each).malicious for each in settings}
    assert len(found) == 1
    assert len(*found) == 3
    other = prepare(config("fedavg", data={"seed": 1}, attack={"name": "alie", **THIRD}))
    assert {other.malicious} != found


def test_held_out_clients_are_not_malicious():
    data = {"heldout_clients": 3}
    setup = prepare(config("fedavg", data=data, attack={"name": "sign_flip", "fraction": 1.0}))
    assert setup.malicious == setup.partition.participants


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_malicious_in_blocks_as_alone(name):
    """Trained together as one model, clients send the same up to rounding."""
    one, two = (
        rounds(attacked(name, engine={"client_batch": batch}, train={"momentum": 0.0}))
        for batch in (1, 3)
    )
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.after.params, b.after.params, rtol=0, atol=2e-5)
    honest = rounds(small("fedavg", train={"momentum": 0.0}))
    assert np.abs(honest[-1].after.params - one[-1].after.params).max() > 1e-3


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", NAMES)
def test_without_attackers_and_before_the_start_nothing_changes(name):
    honest = [r.content() for r in rounds(small("fedavg"))]
    for attack, before in ({"fraction": 0}, 3), ({"start_round": 3}, 2):
        found = [r.content() for r in rounds(attacked(name, attack=attack))]
        assert len(found) == len(honest) == 3
        found, wanted = ([without_columns(r) for r in each[:before]] for each in (found, honest))
        assert difference(wanted, found, "a run without an attack") is None


def without_columns(content):
    """The cells without the columns that only attacked runs have."""
    return {k: v for k, v in content.items() if not k.endswith(("attacker", *UNDER_ATTACK))}


@pytest.mark.integration
def test_the_pass_before_training_sees_the_flipped_labels():
    """All clients flip 2 to 7, and pass over their data once: nobody has seen a 2."""
    flip = {"name": "label_flip", "source": 2, "target": 7, "fraction": 1.0}
    (round,) = rounds(small("fediir", attack=flip, train={"rounds": 1, "sample_rate": 1.0}))
    gradient = round.after.server.probe["gm"]
    assert (gradient[2] >= 0).all()  # (softmax - 0) times features of a ReLU
    (honest,) = rounds(small("fediir", train={"rounds": 1, "sample_rate": 1.0}))
    assert (honest.after.server.probe["gm"][2] < 0).any()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("name", ["gaussian", "backdoor", "alie", "mimic", "min_sum"])
def test_an_attacked_run_resumes_to_the_same_bytes(tmp_path, name):
    own = {"warmup": 2} if name == "mimic" else {}
    sections = {
        "train": {"rounds": 4, "sample_rate": 0.5},
        "attack": {"name": name, **THIRD, "start_round": 2, **own},
        "engine": {"checkpoint_every": 1},
    }
    whole = ran(tmp_path / "whole", **sections)
    with pytest.raises(Stop):
        fedsim.run(config("fedavg", **sections), tmp_path / "cut", [Stopper(2)], progress=False)
    assert results(fedsim.resume(tmp_path / "cut", progress=False)) == results(whole)


@pytest.mark.slow
@pytest.mark.integration
def test_what_a_run_writes(tmp_path):
    attack = {"name": "ipm", "clients": [1, 6], "scale": 2}
    store = ran(tmp_path / "run", attack=attack, train={"rounds": 2, "sample_rate": 1.0})
    clients = store.clients
    assert list(clients.columns)[-1] == "attacker"
    assert (clients.attacker == clients.client_id.isin([1, 6])).all()
    assert json.loads((store.path / "env.json").read_text())["malicious_clients"] == [1, 6]
    assert (store.summary["attack.name"], store.summary["attack.clients"]) == ("ipm", "1,6")
    norms = clients[clients["round"] == 1].set_index("client_id").update_norm
    assert norms[1] == norms[6]  # what is sent, not what was trained
    for table in ("partition", "split"):
        found = store.read(table).dropna(subset=["client_id"])
        assert list(found.columns)[-1] == "malicious"
        assert (found.malicious == found.client_id.isin([1, 6])).all()
    plain = ran(tmp_path / "plain", train={"rounds": 1})
    assert "attacker" not in plain.clients.columns
    assert not any("malicious" in plain.read(table).columns for table in ("partition", "split"))
    assert "benign_test_accuracy" not in plain.rounds.columns
    assert not any(key.startswith("attack") for key in plain.summary)
    load_file(store.path / "model.safetensors")


FLIPPED = {
    "data": {"num_clients": 20, "test_fraction": 0.2, "alpha": 100.0},
    "train": {"rounds": 30, "sample_rate": 1.0, "lr": 0.05, "batch_size": 20},
    "engine": {"client_batch": 20},
}


def final_accuracy(folder, server, **sections):
    """The robust rules have their default f, a fifth of the clients (Bulyan: fewer)."""
    given = config("fedavg", "mlp", **FLIPPED).model_dump() | {"server": server} | sections
    return fedsim.run(RunConfig(**given), folder, progress=False).summary["final_test_accuracy"]


@pytest.mark.slow
@pytest.mark.integration
def test_flipped_signs_break_the_mean_and_not_robust_rules(tmp_path):
    """Digits, 20 % of the clients flip and enlarge their updates: FedAvg falls below 30 %."""
    attack = {"name": "sign_flip", "fraction": 0.2, "scale": 5.0}
    plain = final_accuracy(tmp_path / "plain", "fedavg")
    assert plain > 0.85
    assert final_accuracy(tmp_path / "mean", "fedavg", attack=attack) < 0.3
    for name in ("krum", "multikrum", "geometric_median", "trimmed_mean", "coordinate_median"):
        found = final_accuracy(tmp_path / name, f"nnm,{name}", attack=attack)
        assert found > plain - 0.1, name


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "split", "sections"),
    [
        ("fedavg", None, {}),
        ("fedavg", "own_test", {"data": {"client_test_fraction": 0.2}}),
        ("fedpac", "test", {}),
        ("fedpac", "own_test", {"data": {"client_test_fraction": 0.2}}),
    ],
)
def test_the_accuracy_of_benign_clients(tmp_path, method, split, sections):
    """By hand from evaluations.csv; the column is there from the first round, evaluated or not."""
    evaluation = {"every": 2, "clients_every": 2 * (split == "own_test")}
    attack = {"name": "gaussian", "clients": "1,6", "scale": 10.0}
    store = ran(
        tmp_path, method, **sections, evaluation=evaluation, attack=attack, train={"rounds": 2}
    )
    found = store.rounds.benign_test_accuracy
    assert np.isnan(found[0])
    if split is None:
        wanted = store.rounds.test_accuracy[1]
    else:
        rows = store.read("evaluations").query("split == @split")
        assert rows.client_id.nunique() == 8
        wanted = rows[~rows.client_id.isin([1, 6])].accuracy.mean()
    assert found[1] == pytest.approx(wanted, abs=1e-12)
    assert store.summary["final_benign_test_accuracy"] == found[1]
    assert store.summary["last10_benign_test_accuracy"] == found[1]


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedpac"])
@pytest.mark.parametrize(
    "attack",
    [
        {"name": "backdoor", "target": 3, "scale": 2.0},
        {"name": "label_flip", "source": 1, "target": 7},
    ],
)
def test_the_success_of_an_attack(method, attack):
    """By hand: the share of the triggered test images that are given the target class."""
    settings = small(method, attack={**attack, "clients": "1,6"})
    setup = prepare(settings)
    last = rounds(settings)[-1]
    test = setup.dataset.test[:60]
    y = setup.dataset.y[test]
    x = setup.dataset.x[test][y != 3 if attack["name"] == "backdoor" else y == 1].copy()
    if attack["name"] == "backdoor":
        x[:, :, -3:, -3:] = 255
    benign = [c for c in range(8) if c not in (1, 6)] if setup.personalised else [None]
    states = [last.after.clients.get(c) or {} for c in benign]
    worker = Worker(setup.spec, torch.device("cpu"))
    rates = []
    for state in states:
        worker.flat.load(worker._start(torch.from_numpy(last.after.params), state))
        worker.flat.mode(train=False)
        logits = worker.flat.model(worker.transforms.test(torch.from_numpy(x)))
        rates.append((logits.argmax(1) == attack["target"]).double().mean().item())
    assert last.row["attack_success_rate"] == pytest.approx(np.mean(rates), abs=1e-12)


@pytest.mark.slow
@pytest.mark.integration
def test_a_backdoor_is_learnt(tmp_path):
    """Half of the clients poison: the model keeps its accuracy and sees the trigger."""
    sections = {
        "data": {"num_clients": 4, "test_fraction": 0.2, "alpha": 100.0},
        "train": {"rounds": 8, "sample_rate": 1.0, "lr": 0.1, "local_epochs": 2},
    }
    attack = {"name": "backdoor", "clients": "1,2", "target": 4}
    summary = ran(tmp_path, attack=attack, **sections).summary
    assert summary["final_attack_success_rate"] > 0.7
    assert summary["final_test_accuracy"] > 0.8


@pytest.mark.parametrize(
    ("attack", "whole"),
    [
        ({"name": "min_sum", "bound": "max", "knowledge": "own"}, None),
        ({"name": "min_max", "perturbation": "unit_vec"}, None),
        ({"name": "min_max", "perturbation": "std"}, "attack.perturbation=std"),
        ({"name": "alie", "knowledge": "own"}, "attack.name=alie"),
    ],
)
def test_what_needs_whole_updates(attack, whole):
    setup = prepare(config("fedavg", attack={**attack, **THIRD}))
    assert needs_whole_updates(setup) == whole
    assert setup.attack.cohort.knows == attack.get("knowledge", "benign")


MALICIOUS = {"clients": "0,1"}


@pytest.mark.parametrize(
    ("attack", "sections", "reason"),
    [
        ({"name": "sign_flip", "start_round": 4}, {}, "attack.start_round: 4 given.*never starts"),
        ({"name": "mimic", "warmup": 9}, {}, "attack.warmup: 9 given; the attack has 3 rounds"),
        (
            {"name": "mimic", "warmup": 3, "start_round": 3}, {},
            "attack.warmup: 3 given; the attack has 1 round",
        ),
        ({"name": "alie", "clients": "0,1,2"}, {"train": {"sample_rate": 1}}, None),
        ({"name": "ipm", "fraction": 1.0}, {}, "needs a benign client beside it"),
        (
            {"name": "backdoor", "poisoned": 0.001, **MALICIOUS}, {},
            "changes no training sample of 2 malicious clients",
        ),
        (
            {"name": "label_flip", **MALICIOUS},
            {"train": {"selection": "fixed", "clients": "2,3,4"}}, "selects no malicious client",
        ),
    ],
)  # fmt: skip
def test_an_attack_without_effect_is_refused_before_the_run(tmp_path, attack, sections, reason):
    if reason is None:
        check_effects(prepare(small("fedavg", "mlp", attack=attack, **sections)))
        return
    with pytest.raises(ConfigError, match=reason):
        ran(tmp_path / "run", model="mlp", attack=attack, **sections)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("clients", "rate", "given"),
    [
        ("0", 1.0, {}),  # one of eight: below 0 in all rounds
        ("0,1,2", 0.5, {}),
        ("0,1,2", 1.0, {}),
        ("0,1,2", 0.5, {"scale": 0.1}),
        ("0,1,2", 0.5, {"scale": "auto"}),
        ("0,1,2", 0.5, {"knowledge": "own"}),  # one malicious client knows no deviation
    ],
)
def test_rounds_without_an_attack_are_counted(clients, rate, given, caplog):
    """Against all cohorts that may be drawn."""
    malicious, m = set(map(int, clients.split(","))), int(8 * rate)
    drawn = [len(malicious & {*cohort}) for cohort in combinations(range(8), m)]
    attacked = [f for f in drawn if 0 < f < m]
    own = given.get("knowledge") == "own"
    weak = [(own and f == 1) or ("scale" not in given and alie_z(m, f) <= 0) for f in attacked]
    share = 100 * sum(weak) / len(attacked)
    attack = {"name": "alie", "clients": clients, **given}
    warn_of_weak_rounds(
        prepare(config("fedavg", "mlp", attack=attack, train={"sample_rate": rate}))
    )
    shown = "in all rounds" if share == 100 else f"in {share:.2g} % of the rounds"
    assert (shown in caplog.text) == bool(share)
    assert caplog.text.count("\n") == bool(share)
