"""Section dp with level=example in whole runs: epsilons, refusals, resume."""

from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp
from torch import nn

import fedsim
from fedsim.core.errors import ConfigError, DivergedError
from fedsim.testing.rounds import config, results, rounds
from fedsim.training.assemble import prepare
from fedsim.training.privacy import epsilon_of_samples
from tests.stopping import Stop, Stopper


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
def test_epsilon_by_privacy_loss_distributions():
    settings = example(dp={"accountant": "pld", "noise_multiplier": 2.0, "delta": 1e-4})
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=20 / 80)
    found = epsilon_of_samples(settings, 80, 7)
    assert found == pytest.approx(one.self_compose(7).get_epsilon_for_delta(1e-4), rel=1e-12)
    full = dp_accounting.get_epsilon_gaussian(2.0 / np.sqrt(5), 1e-4)
    assert epsilon_of_samples(settings, 12, 5) == pytest.approx(full, rel=1e-12)
    assert epsilon_of_samples(example(dp={"noise_multiplier": 0.0}), 80, 7) is None


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


@pytest.mark.integration
@pytest.mark.parametrize("level", ["example", "user"])
def test_too_much_noise_is_said(level):
    dp = {"level": level, "noise_multiplier": 1e6, "clip": 1e30}
    given = example(dp=dp, train={"rounds": 2}, fedavg={"weights": "uniform"})
    with pytest.raises(DivergedError, match=r"lower dp\.noise_multiplier=1e\+06, dp\.clip or tra"):
        rounds(given)
    quiet = example(dp=dp | {"noise_multiplier": 0.0}, train={"lr": 1e30})
    if level == "example":
        with pytest.raises(DivergedError, match=r"infinite; lower train\.lr, or leave"):
            rounds(quiet)
