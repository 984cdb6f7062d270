"""FedBN: everything that belongs to a BatchNorm module stays on its client."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import fedsim
from fedsim import algorithms, models
from fedsim.core.errors import ConfigError
from fedsim.core.layout import layout_of, select
from fedsim.core.types import ModelSpec, Training
from fedsim.engine.base import OUTPUTS
from fedsim.engine.serial import SerialExecutor
from fedsim.schedules.base import draw_cohort
from fedsim.storage.checkpoint import ServerState
from fedsim.training.assemble import prepare
from fedsim.training.round import run_round
from fedsim.training.rows import RoundLog
from fedsim.training.setup import Setup
from tests.oracles import aggregation as oracle

from .cases import assert_step, draw, every_cohort, every_input
from .training import context, train, worker


def personal_names(model, **hyperparameters):
    personal = algorithms.load("fedbn", hyperparameters).personal
    return {slot.name for slot in layout_of(model).slots if personal(slot)}


@every_input
@every_cohort
def test_server_oracle(sampler, m):
    g, n, _ = draw(sampler, m)
    assert_step(fedsim.aggregate(g, n, "fedbn"), oracle.mean(g, n), g)


def test_resnet50_keeps_all_batchnorms_local_downsample_included():
    # 53 BatchNorms of weight, bias, mean and variance (the counters are not federated): 212 slots;
    # the names of the 4 downsample ones lack "bn", so selection by name finds 16 slots fewer.
    model = models.build(ModelSpec(name="resnet50", num_classes=2, in_channels=3, image_size=32), 0)
    by_module = {
        f"{name}.{tensor}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for tensor in ("weight", "bias", "running_mean", "running_var")
    }
    assert len(by_module) == 212
    assert personal_names(model) == by_module
    missed = by_module - personal_names(model, bn_selection="name")
    assert len(missed) == 16
    assert all("downsample.1" in name for name in missed)


def test_after_a_round_only_the_norms_differ_between_clients():
    w = worker("fedbn")
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    reports, deltas = train(w)
    assert np.all(deltas[:, mask] == 0)
    assert np.all(np.abs(deltas[:, ~mask]).max(axis=1) > 0)
    own = [r.state["personal"] for r in reports]
    assert all(len(state) == mask.sum() for state in own)
    assert not np.array_equal(own[0], own[1])
    assert not np.array_equal(own[0], own[2])


def test_the_first_update_is_that_of_fedavg_outside_the_norms():
    w = worker("fedbn")
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    _, deltas = train(w)
    _, expected = train(worker("fedavg"))
    np.testing.assert_array_equal(deltas[:, ~mask], expected[:, ~mask])


def test_a_client_resumes_with_its_own_norms_and_the_newest_rest():
    # lr 0 and frozen statistics: what goes in comes out. Client 0's state is from its first round.
    w = worker("fedbn")
    reports, deltas = train(w)
    start = w.flat.vector()
    still = worker("fedbn", training=Training(batch_size=8, weight_decay=0.0, frozen_bn=True))
    moved = start + deltas.mean(axis=0)
    again, nothing = train(still, (0,), 5, 0.0, moved, {0: reports[0].state})
    np.testing.assert_array_equal(again[0].state["personal"], reports[0].state["personal"])
    assert np.all(nothing == 0)
    mask = select(w.flat.layout, algorithms.load("fedbn").personal)
    own = moved.copy()
    own[mask] = reports[0].state["personal"]
    np.testing.assert_array_equal(
        still.evaluate(moved, reports[0].state, "test", OUTPUTS),
        worker("fedavg").evaluate(own, {}, "test", OUTPUTS),
    )


@pytest.mark.parametrize(
    ("model", "selection"),
    [
        ({"name": "mlp"}, "module"),
        ({"name": "cnn"}, "name"),  # features.1, ... by name
        ({"name": "cnn", "norm": "group"}, "module"),
    ],
)
def test_a_model_of_which_nothing_stays_on_the_clients_is_refused(model, selection):
    config = fedsim.RunConfig(algorithm="fedbn", model=model, fedbn={"bn_selection": selection})
    with pytest.raises(ConfigError, match=r"clients keep to themselves .* no such tensor"):
        prepare(config)


@pytest.mark.integration
def test_a_client_that_is_not_sampled_keeps_its_norms():
    w = worker("fedbn")
    config = fedsim.RunConfig(algorithm="fedbn", evaluation={"every": 100})
    setup = Setup(
        config=config,
        dataset=w.spec.dataset,
        partition=w.spec.partition,
        model=w.spec.model,
        algorithm=w.spec.algorithm,
        layout=w.flat.layout,
        initial=w.flat.vector(),
        cohort_size=1,
        alpha=None,
    )
    mask = select(w.flat.layout, w.spec.algorithm.personal)
    executor = SerialExecutor(w.spec)
    states = [ServerState(params=setup.initial)]
    cohorts = []
    for t in range(4):
        cohorts += draw_cohort(context(t), 1)
        states.append(run_round(setup, executor, states[-1], context(t), RoundLog(t + 1)))
        np.testing.assert_array_equal(states[-1].params[mask], setup.initial[mask])
        for client in range(3):
            before, after = states[-2].clients.get(client), states[-1].clients.get(client)
            if client == cohorts[-1]:
                own = setup.initial[mask] if before is None else before["personal"]
                assert not np.array_equal(after["personal"], own)
            else:
                assert after is before
    executor.close()
    assert len(set(cohorts)) > 1
    assert len(set(cohorts)) < 4
