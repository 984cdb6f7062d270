"""What every method of ``fedsim list algorithms`` keeps to."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from methods import NUM_CLIENTS, config, results, uneven

import fedsim
from fedsim import algorithms
from fedsim.config import load_config, to_yaml
from fedsim.contracts import RoundContext
from fedsim.engine.serial import SerialExecutor
from fedsim.oneround import draw_cohort, lr_at, run_round
from fedsim.roundlog import RoundLog
from fedsim.setup import make_executor, prepare, start_of

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
def test_arrival_order_and_batchnorm(name, tmp_path, monkeypatch):
    reference = results(fedsim.run(config(name), tmp_path / "in_order"))
    train = SerialExecutor.train
    monkeypatch.setattr(SerialExecutor, "train", lambda *given: train(*given)[::-1])
    assert results(fedsim.run(config(name), tmp_path / "reversed")) == reference


@every_method
def test_one_client_without_batchnorm(name, tmp_path):
    one = config(name, "mlp", data={"num_clients": 1}, train={"sample_rate": 1.0})
    rounds = fedsim.run(one, tmp_path / "run").read("rounds")
    assert np.isfinite(rounds["train_loss"]).all()
    assert rounds["test_accuracy"].iloc[-1] > 0.05
    assert rounds["conflict_ratio"].isna().all()


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
