"""Section dp with level=user in whole runs: epsilons, refusals, resume, engines."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

import fedsim
from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext
from fedsim.schedules.selection import Poisson
from fedsim.testing.rounds import config, difference, results, rounds
from fedsim.training.assemble import prepare
from fedsim.training.privacy import warn_of_delta
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


@pytest.mark.parametrize(
    ("method", "sections", "reason"),
    [
        ("fedld", {}, "a rule other than the mean"),
        ("krum", {}, "a rule other than the mean"),
        ("fednova", {}, "transforms of the cohort"),
        ("fedcm", {}, "what clients send beside the update"),
        ("feddyn", {}, "server optimisers that see the cohort"),
        ("centralized", {}, "pooled training"),
        ("fedavg", {"fedavg": {"weights": "samples"}}, "weights by samples .*dp.max_samples"),
        ("fedavg", {"model": "cnn"}, "running statistics of BatchNorm .*model.norm=group"),
        ("fedavg", {"train": {"selection": "size"}}, "train.selection=size"),
        ("fedavg", {"attack": {"name": "alie"}}, "attacks that know the benign updates"),
        ("fedavg", {"dp": {"clip_control": 1.0}}, "^dp.clip_control: 1 given; only clients of sca"),
        ("fedavg", {"dp": {"max_samples": 5}}, "^dp.max_samples: 5 given; .* the same$"),
        ("fedavg", {"dp": {"quantile": 0.5}}, "^dp.count_noise: 0.1, .* must be above 0.5"),
        ("scaffold", {}, "^dp.clip_control: is missing"),
    ],
)
def test_what_user_level_privacy_cannot_go_with(method, sections, reason):
    with pytest.raises(ConfigError, match=reason):
        prepare(user(method, **sections))


@pytest.mark.parametrize(
    ("method", "reason"),
    [("fedld", "needs single updates"), ("nnm", "which need single updates"), ("scaffold", None)],
)
def test_what_secure_aggregation_excludes(method, reason):
    settings = config(method, "mlp", train={"secure_aggregation": True})
    if reason is None:
        prepare(settings)
        return
    with pytest.raises(ConfigError, match=f"^secure aggregation .*{reason}"):
        prepare(settings)


@pytest.mark.integration
def test_in_blocks_as_alone():
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
