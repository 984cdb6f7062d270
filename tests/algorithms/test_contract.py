"""What every method of ``fedsim list algorithms`` keeps to."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from methods import NUM_CLIENTS, config, results, uneven
from stopping import Stop, Stopper

import fedsim
from fedsim import algorithms
from fedsim.config.resolve import RunConfig, load_config, to_yaml
from fedsim.core.errors import ConfigError
from fedsim.core.types import RoundContext
from fedsim.engine.serial import SerialExecutor
from fedsim.training import driver
from fedsim.training.log import RoundLog
from fedsim.training.round import draw_cohort, lr_at, run_round
from fedsim.training.setup import make_executor, prepare, start_of

every_method = pytest.mark.parametrize("name", algorithms.names())


def rounds_of(setup, clients_of):
    """The states before and after each round, with who took part."""
    setup, state = start_of(setup)
    executor = make_executor(setup)
    try:
        for t in range(setup.config.train.rounds):
            n = setup.partition.num_clients
            ctx = RoundContext(t, 10, n, lr_at(setup.config, t), setup.config.seed)
            before = state
            log = RoundLog(t + 1)
            state = run_round(setup, executor, before, ctx, log)
            yield clients_of(ctx), before, state, log
    finally:
        executor.close()


@every_method
def test_finite_moving_and_states_survive_not_being_sampled(name):
    setup = prepare(config(name))
    initial, seen = setup.initial.copy(), set()
    for clients, before, after, log in rounds_of(setup, lambda ctx: draw_cohort(ctx, 2)):
        assert np.isfinite(after.params).all()
        (row,) = log.tables["rounds"]
        assert np.isfinite(row["train_loss"])
        mixed_by_the_server = "exchange.models" in after.server  # pfedla, for every client
        for client in set(after.clients) - set(clients):
            if mixed_by_the_server:
                models = (s.server["exchange.models"][client] for s in (before, after) if s.server)
                assert len({m.tobytes() for m in models}) == 1
                continue
            assert client in seen
            for key, value in after.clients[client].items():
                np.testing.assert_array_equal(value, before.clients[client][key])
        seen |= set(clients)
    kept = [a for c in seen if c in after.clients for a in after.clients[c].values()]
    moved = not np.array_equal(after.params, initial)
    assert moved or any(not np.array_equal(a, initial) for a in kept if a.shape == initial.shape)
    assert len(seen) < NUM_CLIENTS


@every_method
def test_arrival_order_does_not_matter(name, tmp_path, monkeypatch):
    reference = results(fedsim.run(config(name), tmp_path / "in_order"))
    train = SerialExecutor.train
    monkeypatch.setattr(SerialExecutor, "train", lambda *given: train(*given)[::-1])
    assert results(fedsim.run(config(name), tmp_path / "reversed")) == reference


@every_method
def test_stopped_and_resumed(name, tmp_path):
    reference = results(fedsim.run(config(name), tmp_path / "through"))
    with pytest.raises(Stop):
        fedsim.run(config(name), tmp_path / "stopped", Stopper(2))
    assert not (tmp_path / "stopped" / "summary.csv").exists()
    assert results(driver.resume(tmp_path / "stopped")) == reference


ALONE = {"feddyn": "subtracts h", "pfedla": "mixes its clients", "matched_mean": "channels"}
"""Methods whose server part and clients belong together, and a word of the reason."""
OF_OWN_CLIENTS = {"fednova", "fedpac", "fedcm", "scaffold", *ALONE}


@every_method
@pytest.mark.parametrize("server", ["fedgh", "fedld", "simagg"])
def test_a_server_rule_and_margin_control_go_with_any_clients(name, server, tmp_path):
    own = config(name, train={"rounds": 2}, evaluation={"every": 2})
    sections = {
        key: getattr(own, key) for key in ("data", "model", "train", "evaluation", "engine")
    }
    both = RunConfig(algorithm=name, server=server, margin="sigma_damp", **sections)
    if name in ALONE:
        with pytest.raises(ConfigError, match=f"cannot serve {name}, which .*{ALONE[name]}"):
            fedsim.run(both, tmp_path / "run")
        return
    table = fedsim.run(both, tmp_path / "run").read("rounds")
    assert np.isfinite(table["train_loss"]).all()
    assert np.isfinite(table["update_norm"]).all()


@every_method
def test_a_server_part_serves_others_unless_it_needs_its_own_clients(name):
    if name in OF_OWN_CLIENTS:
        with pytest.raises(ConfigError, match=f"server '{name}' cannot serve fedprox: it "):
            algorithms.compose("fedprox", {}, server=name)
    else:
        composed = algorithms.compose("fedprox", {}, server=name)
        assert composed.server.reduce == algorithms.load(name).server.reduce
        assert composed.server.then == algorithms.load(name).server.then


@every_method
def test_one_client_without_batchnorm(name, tmp_path):
    one = config(name, "mlp", data={"num_clients": 1}, train={"sample_rate": 1.0})
    table = fedsim.run(one, tmp_path / "run").read("rounds")
    assert np.isfinite(table["train_loss"]).all()
    assert table["test_accuracy"].iloc[-1] > 0.05
    assert table["conflict_ratio"].isna().all()


@every_method
def test_a_client_with_one_sample(name, tmp_path):
    file = uneven(tmp_path / "clients.csv")
    data = {"partition_file": str(file), "min_samples": 1}
    store = fedsim.run(config(name, data=data, train={"sample_rate": 1.0}), tmp_path / "run")
    clients = store.read("clients")
    assert (clients["status"] == "ok").all()
    assert sorted(clients["num_samples"].unique())[0] == 1
    assert np.isfinite(store.read("rounds")["test_loss"].iloc[-1])


@every_method
def test_a_warm_up_begins_at_a_rate_of_zero(name, tmp_path):
    train = {"lr_schedule": "warmup_round", "weight_decay": 0.01}
    store = fedsim.run(config(name, train=train), tmp_path / "run")
    rounds = store.read("rounds")
    assert rounds["lr"].iloc[0] == 0.0 < rounds["lr"].iloc[1]
    assert (store.read("clients")["status"] == "ok").all()
    assert np.isfinite(rounds["train_loss"]).all()


@every_method
def test_the_configuration_round_trips_through_yaml(name, tmp_path):
    options = {k: p.default for k, p in algorithms.parameters(name).items()}
    original = config(name)
    text = to_yaml(original)
    assert yaml.safe_load(text)[name] == options if options else name not in yaml.safe_load(text)
    file = tmp_path / "config.yaml"
    file.write_text(text)
    again = load_config(file=file)
    assert again.hyperparameters == original.hyperparameters
    assert to_yaml(again) == text


@every_method
def test_reductions_take_the_cohort_in_any_order(name):
    """The server's step of given updates, as it is for the API: rules of updates alone."""
    server = algorithms.load(name).server
    if server.own_clients and name != "fednova":
        pytest.skip("its server needs more than updates")
    rng = np.random.default_rng(0)
    g, n, steps = rng.normal(size=(5, 40)), rng.integers(1, 50, 5), rng.integers(1, 9, 5)
    given = {"num_steps": steps} if name == "fednova" else {}
    step = fedsim.aggregate(g, n, name, **given)
    assert np.isfinite(step).all()
    np.testing.assert_array_equal(fedsim.aggregate(g, n, name, **given), step)
    zero = fedsim.aggregate(np.zeros((5, 40)), n, name, **given)
    np.testing.assert_array_equal(zero, np.zeros(40))
