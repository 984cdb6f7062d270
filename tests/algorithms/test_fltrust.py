"""FLTrust: by hand, against loops over vectors, what it promises, and the server's own training."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, ContractError, DivergedError
from fedsim.core.types import ClientTask, RoundContext
from fedsim.server.base import RuleState
from fedsim.testing.rounds import rounds, small
from fedsim.training.assemble import make_executor, prepare
from fedsim.training.round import root_update
from tests.oracles import byzantine as oracle

from .cases import assert_step, draw, every_input
from .serving import LAYOUT, cohort

CTX = RoundContext(round=0, num_rounds=1, num_clients=10, lr=0.1, seed=0)


def step(updates, own):
    return fedsim.aggregate(updates, np.ones(len(updates)), "fltrust", reference=own)


def said(updates, own, layout=None):
    """The server's answer."""
    given = replace(cohort(updates, layout=layout), reference=np.asarray(own, float))
    return algorithms.load("fltrust").server.step(RuleState(), given, CTX)


def test_by_hand():
    # own = (2, 0). Cosines 1, 0.6, 0, -1; weights 1, 0.6, 0, 0; of length 2: (2, 0), (1.2, 1.6).
    # ((2, 0) + 0.6 (1.2, 1.6)) / 1.6 = (2.72, 0.96) / 1.6 = (1.7, 0.6).
    g = [[5.0, 0.0], [3.0, 4.0], [0.0, 7.0], [-1.0, 0.0]]
    answer = said(g, [2.0, 0.0])
    np.testing.assert_allclose(answer.step, [1.7, 0.6], rtol=1e-14)
    assert answer.metrics == {"trusted": 0.5}


@every_input
@pytest.mark.parametrize("m", [1, 2, 5, 11])
def test_oracle(sampler, m):
    g, _, _ = draw(sampler, m)
    rng = np.random.default_rng(m)
    for own in (rng.normal(size=g.shape[1]), 1e-3 * g[0], g.mean(axis=0) + 0.1):
        assert_step(step(g, own), oracle.fltrust(g, own), [own])


def test_lengths_and_samples_of_updates_do_not_count():
    rng = np.random.default_rng(1)
    g, own = rng.normal(size=(7, 30)), rng.normal(size=30)
    plain = step(g, own)
    factors = 10.0 ** rng.uniform(-6, 6, size=(7, 1))
    np.testing.assert_allclose(step(factors * g, own), plain, rtol=1e-10, atol=1e-12)
    by_samples = fedsim.aggregate(g, rng.integers(1, 99, 7), "fltrust", reference=own)
    np.testing.assert_array_equal(by_samples, plain)
    np.testing.assert_allclose(step(g, 3 * own), 3 * plain, rtol=1e-12)


def test_flipped_updates_have_no_weight():
    rng = np.random.default_rng(2)
    own = rng.normal(size=30)
    benign = own + rng.normal(size=(4, 30)) / 5
    everybody = [*benign, *(-1e9 * benign)]
    np.testing.assert_allclose(step(everybody, own), step(benign, own), rtol=1e-12)
    assert np.linalg.norm(step(everybody, own)) <= np.linalg.norm(own) * (1 + 1e-12)


def test_without_anybody_who_agrees_the_model_stays():
    for g, own in (([[-1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [2.0, 0.0]), ([[1.0, 1.0]], [0.0, 0.0])):
        answer = said(g, own)
        np.testing.assert_array_equal(answer.step, [0, 0])
        assert answer.metrics == {"trusted": 0.0}


def test_statistics_are_averaged_by_the_cosines():
    g = np.random.default_rng(3).normal(size=(3, 6))
    g[:, :4] = [[2, 0, 0, 0], [3, 4, 0, 0], [-1, 0, 0, 0]]
    found = said(g, [1.0, 0, 0, 0, 50, 50], LAYOUT).step
    np.testing.assert_allclose(found[:4], [1.36 / 1.6, 0.48 / 1.6, 0, 0], rtol=1e-14)
    np.testing.assert_allclose(found[4:], (g[0, 4:] + 0.6 * g[1, 4:]) / 1.6, rtol=1e-14)


def test_an_update_of_the_server_is_needed():
    with pytest.raises(ContractError, match=r"server's own update: give reference \(d,\)"):
        fedsim.aggregate(np.ones((2, 3)), [1, 1], "fltrust")
    with pytest.raises(ContractError, match=r"give reference \(d,\), finite, got shape \(4,\)"):
        step(np.ones((2, 3)), np.ones(4))


def test_the_root_set_is_of_the_validation_part():
    config = small("fltrust", "mlp")
    setup = prepare(config)
    own = setup.root
    assert len(own) == len(set(own.tolist())) == 100
    assert set(own.tolist()) < set(setup.dataset.val.tolist())
    fewer = prepare(small("fltrust", "mlp", fltrust={"samples": 10})).root
    assert len(fewer) == 10
    np.testing.assert_array_equal(prepare(config).root, own)
    other = small("fltrust", "mlp", data={"seed": 1})
    assert not np.array_equal(prepare(other).root, own)


def test_too_few_validation_samples_are_refused():
    for data, has in (({"val_fraction": 0.0}, 0), ({"val_fraction": 0.1}, 50)):
        with pytest.raises(
            ConfigError, match=rf"fltrust\.samples: 100 .* has {has}: set data\.val"
        ):
            prepare(small("fltrust", "mlp", data=data))


def composed(name, **sections):
    """``--server fltrust`` for a method."""
    given = small("fltrust", **sections.pop("small", {})).model_dump(by_alias=True)
    return RunConfig(**given | {"algorithm": name, "server": "fltrust"} | sections)


@pytest.mark.parametrize(
    ("name", "sections", "why"),
    [
        ("fedbn", {}, "slots that stay on the clients"),
        ("fednova", {}, "multiplies the step by the clients' steps"),
        (
            "fedavg",
            {"clock": {"mode": "async", "samples_per_second": "100"}},
            "clock.mode=async.* older models than the server",
        ),
    ],
)
def test_what_is_refused(name, sections, why):
    with pytest.raises(ConfigError, match=why):
        prepare(composed(name, **sections))


@pytest.mark.integration
def test_a_round_is_the_rule_on_the_servers_own_training(monkeypatch):
    """Its update is that of a client with these samples, in one step over all of them."""
    own, sent = [], []

    def seen(*given):
        own.append(root_update(*given))
        return own[-1]

    def arrival(updates):
        sent.extend(u.delta.astype(np.float64) for u in updates)
        return updates

    monkeypatch.setattr("fedsim.training.round.root_update", seen)
    config = small("fltrust", "mlp", train={"rounds": 1, "batch_size": 100, "lr": 0.1})
    (made,) = rounds(config, arrival=arrival)
    expected = oracle.fltrust(sent, own[0].astype(np.float64))
    assert_step(made.after.params - made.before.params, expected, own, 1e-5)

    setup = prepare(config)
    train = (setup.root, *setup.partition.train[1:])
    setup = replace(setup, partition=replace(setup.partition, train=train))
    with closing(make_executor(setup)) as executor:
        ctx = replace(CTX, num_clients=8)
        models = {0: (setup.initial, {})}
        (client,) = executor.run([ClientTask(client=0, ctx=ctx)], models, {})
    assert_step(own[0], client.delta, own, 1e-5)


@pytest.mark.integration
def test_a_server_that_diverges_ends_the_run():
    with pytest.raises(
        DivergedError, match=r"round 1, the server's own training: tensor .* is NaN"
    ):
        rounds(small("fltrust", "mlp", train={"lr": 1e30}, engine={"on_client_failure": "drop"}))


@pytest.mark.integration
def test_the_root_set_is_marked_in_the_split(tmp_path):
    config = small("fltrust", "mlp", train={"rounds": 1})
    run = fedsim.run(config, tmp_path / "run").path
    rows = pd.read_csv(run / "split.csv")
    assert len(fedsim.predict(run)), "the split of now has it too"
    assert rows.loc[rows["root"] == 1, "part"].eq("val").all()
    np.testing.assert_array_equal(
        np.sort(rows.loc[rows["root"] == 1, "sample"]), prepare(config).root
    )


@pytest.mark.integration
def test_privacy_of_samples_adds_no_noise_to_the_servers_own_training():
    given = {"train": {"rounds": 1, "lr": 0.1}}
    dp = {"level": "example", "clip": 0.1, "noise_multiplier": 5.0, "accountant": "rdp"}
    own = []
    for config in (small("fltrust", "mlp", **given), small("fltrust", "mlp", **given, dp=dp)):
        setup = prepare(config)
        with closing(make_executor(setup)) as executor:
            own.append(root_update(setup, executor, {0: (setup.initial, {})}, CTX))
    assert own[0].tobytes() == own[1].tobytes()
