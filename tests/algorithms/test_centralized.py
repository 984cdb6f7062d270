"""Centralized: one learner on the pooled samples of the round's clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.rng import torch_generator
from fedsim.core.types import ClientUpdate, Training
from fedsim.engine.blocks import shared_out
from fedsim.engine.ray.calls import TaskCall
from fedsim.engine.worker import with_deltas
from fedsim.models import build
from fedsim.schedules.base import Roster
from fedsim.systems.clock import Clock
from fedsim.testing.rounds import config, rounds, small
from fedsim.training.assemble import prepare
from tests.rounding import of_update, sgd_operations
from tests.tasks import models, tasks

from .training import context, dataset, worker

TRAINING = Training(local_epochs=2, batch_size=7, momentum=0.9, weight_decay=0.01)


def plain_loop(start, index, round, lr=0.05):
    """The weights (D,) after torch's SGD on those samples, in fedsim's order of batches."""
    w = worker("centralized", "mlp", training=TRAINING)
    model = FlatModel(build(w.spec.model, 0), torch.device("cpu"))
    model.load(torch.from_numpy(start))
    data, order = dataset(), torch_generator(0, "shuffle", round, 0)
    x = (torch.tensor(data.x[index]).float() / 255 - 0.5) / 0.5
    y = torch.tensor(data.y[index])
    optimiser = torch.optim.SGD(
        model.model.parameters(), lr, momentum=0.9, weight_decay=0.01, fused=True
    )
    for _ in range(TRAINING.local_epochs):
        for batch in torch.randperm(len(x), generator=order).split(TRAINING.batch_size):
            optimiser.zero_grad()
            functional.cross_entropy(model.model(x[batch]), y[batch]).backward()
            optimiser.step()
    return model.vector()


def planned(w, clients, ctx):
    """The tasks of a round of those clients."""
    roster = Roster(
        sizes=[30, 20, 10],
        cohort_size=3,
        held_out=(),
        clock=Clock(),
        assign=w.spec.algorithm.assign,
        lr=lambda _: 0.05,
    )
    return roster.plan(clients, ctx).tasks


def pooled(w, clients, start, ctx):
    """The updates of a round of those clients."""
    work = planned(w, clients, ctx)
    done = with_deltas(*w.run(w.spec.blocks(work), models(ctx, start), {}))
    return shared_out(done, work, [30, 20, 10])


def test_it_equals_a_plain_pytorch_loop_on_the_same_batches():
    w = worker("centralized", "mlp", training=TRAINING)
    everything = np.concatenate(w.spec.partition.train)
    first = ours = theirs = w.flat.vector()
    for round in range(3):
        updates = pooled(w, [2, 0, 1], ours, context(round))
        ours = ours + updates[0].delta
        theirs = plain_loop(theirs, everything, round)
        steps = 2 * -(-60 // 7) * (round + 1)
        operations = sgd_operations(steps, layers=2, width=64)
        moved, size = np.abs(theirs - first).max(), np.abs(theirs).max()
        error = of_update(np.float32, moved, size, steps, operations)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=error)
        assert [u.num_samples for u in updates] == [30, 20, 10]
        assert {u.num_steps for u in updates} == {2 * -(-60 // 7)}
    assert np.abs(theirs - first).max() > 100 * error


def test_every_client_of_the_round_has_the_update_of_the_pool():
    w = worker("centralized")
    (task,) = planned(w, [2, 1], context())
    assert (task.client, task.owners) == (1, (1, 2))
    updates = pooled(w, [2, 1], w.flat.vector(), context())
    assert [u.client_id for u in updates] == [1, 2]
    assert updates[0].train_loss == updates[1].train_loss
    first, second = (u.delta for u in updates)
    assert first.shape == second.shape == (w.flat.layout.size,)
    assert np.abs(first).max() > 0
    assert first.ctypes.data == second.ctypes.data, "one array, not a copy for each client"
    assert planned(w, [], context()) == ()
    assert w.spec.blocks([]) == []


@pytest.mark.parametrize(("pools", "rows"), [(True, [0, 0, 0]), (False, [0, 1, 2])])
def test_the_one_update_that_stays_on_a_node_is_that_of_every_client(pools, rows, monkeypatch):
    own = tasks([0], context(), owners=(0, 1, 2)) if pools else tasks(range(3), context())
    updates = [
        ClientUpdate(client_id=t.client, num_samples=1, num_steps=1, delta=np.empty(0)) for t in own
    ]
    monkeypatch.setattr("ray.get", lambda ref: updates)
    call = TaskCall(
        blocks=(tuple(own),),
        models=models(context(), np.zeros(4)),
        states={},
        sizes={},
        ranges=(slice(0, 2), slice(2, 4)),
    )
    assert call.clients == (0, 1, 2)
    found = shared_out(call.fetch(["updates", "left", "right"]), own, [1, 1, 1])
    assert [u.client_id for u in found] == [0, 1, 2]
    assert [(u.held.parts, u.held.row) for u in found] == [(("left", "right"), r) for r in rows]


@pytest.mark.integration
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_at_rate_1_it_is_one_client_with_all_samples_byte_by_byte(model, tmp_path):
    settings = {"model": model, "train": {"sample_rate": 1.0, "local_epochs": 2}}
    pooled = fedsim.run(config("centralized", **settings), tmp_path / "pooled")
    split = pooled.read("split")
    split.loc[split["part"] == "train", "client_id"] = 0
    split.to_csv(tmp_path / "one.csv", index=False, float_format="%.0f")
    data = {"partition_file": str(tmp_path / "one.csv"), "num_clients": 1}
    one = fedsim.run(config("fedavg", data=data, **settings), tmp_path / "one")
    for file in ("classes.csv", "confusion.csv"):
        assert (pooled.path / file).read_bytes() == (one.path / file).read_bytes()
    a, b = (fedsim.load_model(store.path).state_dict() for store in (pooled, one))
    assert all(torch.equal(a[name], b[name]) for name in b)


@pytest.mark.integration
def test_a_round_sees_the_samples_of_its_clients_and_sends_no_model():
    for r in rounds(small("centralized")):
        clients = r.tables["clients"]
        assert [row["client_id"] for row in clients] == r.clients
        total = sum(row["num_samples"] for row in clients)
        assert {row["num_steps"] for row in clients} == {-(-total // 20)}
        assert r.row["uplink_bytes"] == r.row["downlink_bytes"] == 0
        assert r.row["conflict_ratio"] == 0
        assert len(r.after.clients) == 0


def test_a_clock_is_refused():
    clock = {"samples_per_second": 100.0}
    wanted = r"^clock.samples_per_second: 100.0 given; algorithm centralized trains on pooled data"
    with pytest.raises(ConfigError, match=wanted):
        prepare(config("centralized", clock=clock))


def test_it_takes_no_other_server():
    with pytest.raises(ConfigError, match="cannot serve centralized, which trains on pooled data"):
        rounds(small("centralized").model_copy(update={"server": "fedld"}))
