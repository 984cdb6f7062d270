"""Fine-tuning of the final model by client, and its scores before and after."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

import fedsim
from fedsim import models
from fedsim.core.errors import DivergedError, WorkerError
from fedsim.core.layout import FlatModel
from fedsim.core.rng import torch_generator
from fedsim.core.types import RoundContext, Training
from fedsim.engine.worker import Worker
from fedsim.testing.rounds import config, results
from fedsim.training import driver, finetune
from tests.algorithms.training import dataset, worker
from tests.tasks import run, tasks

OWN = {"num_clients": 8, "test_fraction": 0.5, "client_test_fraction": 0.3}


def settings(name="fedavg", model="mlp", epochs=2, **sections):
    sections["data"] = OWN | sections.get("data", {})
    sections["evaluation"] = {"every": 3, "finetune_epochs": epochs}
    return config(name, model, **sections)


def table_bytes(store):
    return results(store) | {"final": (store.path / "final_clients.csv").read_bytes()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: fedsim.run(settings(name), folder / name) for name in ("fedavg", "local")}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_worker_fine_tunes_on_plain_cross_entropy_whatever_the_method(optimizer):
    training = Training(
        local_epochs=1, batch_size=8, momentum=0.9, weight_decay=0.01, optimizer=optimizer
    )
    ctx = RoundContext(round=4, num_rounds=4, num_clients=3, lr=0.05, seed=0)
    both = tasks([1, 0], ctx, work="finetune")
    assert both[0].title == "fine-tuning"
    assert replace(both[0], work="train").title == "round 5"
    found = {}
    for name in ("fedprox", "moon", "fedld", "centralized"):
        w = worker(name, "mlp", training=training)
        w = Worker(replace(w.spec, finetune_epochs=3), w.device)
        assert w.spec.blocks(both) == [(both[1],), (both[0],)]
        start = w.flat.vector()
        (update,), (delta,) = run(w, [1], ctx, start, work="finetune")
        found[name] = delta
        assert (update.num_samples, update.num_steps) == (20, 3 * 3)
    data, index = dataset(), w.spec.partition.train[1]
    model = FlatModel(models.build(w.spec.model, 0), torch.device("cpu"))
    order = torch_generator(0, "shuffle", 4, 1)
    x, y = w.transforms.train(torch.tensor(data.x[index])), torch.tensor(data.y[index])
    parameters, same = model.model.parameters(), {"weight_decay": 0.01, "fused": True}
    optimiser = (
        torch.optim.SGD(parameters, 0.05, momentum=0.9, **same)
        if optimizer == "sgd"
        else torch.optim.AdamW(parameters, 0.05, **same)
    )
    for _ in range(3):
        for batch in torch.randperm(20, generator=order).split(8):
            optimiser.zero_grad()
            functional.cross_entropy(model.model(x[batch]), y[batch]).backward()
            optimiser.step()
    for ours in found.values():  # the same operations in the same order: no bit differs
        np.testing.assert_array_equal(ours, model.vector() - start)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_before_is_the_final_model_and_after_is_better_on_own_data(runs, name):
    store = runs[name]
    table = store.read("final_clients")
    assert table["client_id"].tolist() == list(range(8))
    assert set(table["held_out"]) == {0}
    assert set(table["split"]) == {"own_test"}
    for client in (0, 7):
        predicted = fedsim.predict(store.path, client=client, split="own_test")
        row = table.loc[client]
        right = predicted["label"] == predicted["prediction"]
        assert (row["num_samples"], row["accuracy"]) == (len(right), right.mean())
    assert table["finetuned_loss"].mean() < table["loss"].mean()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_some_clients_at_a_time_give_the_same_rows(runs, name, tmp_path, monkeypatch):
    monkeypatch.setattr(finetune, "FEWEST", 3)
    monkeypatch.setattr(finetune, "MEMORY", 1)
    assert table_bytes(fedsim.run(settings(name), tmp_path / "run")) == table_bytes(runs[name])


@pytest.mark.integration
def test_interrupted_while_fine_tuning_and_resumed(runs, tmp_path, monkeypatch):
    def stop(*_):
        raise WorkerError("a node was lost")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "final_scores", stop)
        with pytest.raises(WorkerError):
            fedsim.run(settings(), tmp_path / "run")
    assert not (tmp_path / "run" / "final_clients.csv").exists()
    monkeypatch.setattr(driver, "run_round", stop)  # no round is done again
    assert table_bytes(fedsim.resume(tmp_path / "run")) == table_bytes(runs["fedavg"])


@pytest.mark.integration
@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_a_client_that_diverges(tmp_path, monkeypatch, policy):
    class Broken:
        """An executor whose third client diverges in fine-tuning."""

        def __init__(self, executor):
            self.executor = executor

        def __getattr__(self, name):
            return getattr(self.executor, name)

        def run(self, tasks, models, states):
            updates = self.executor.run(tasks, models, states)
            if tasks[0].work != "finetune":
                return updates
            return [replace(u, diverged="tensor w") if u.client_id == 2 else u for u in updates]

    make = driver.make_executor
    monkeypatch.setattr(driver, "make_executor", lambda *given: Broken(make(*given)))
    given = settings(engine={"on_client_failure": policy})
    if policy == "raise":
        with pytest.raises(DivergedError, match=r"^fine-tuning, client 2: tensor w is NaN"):
            fedsim.run(given, tmp_path / "run")
        return
    store = fedsim.run(given, tmp_path / "run")
    table = store.read("final_clients")
    assert table["client_id"][table["finetuned_loss"].isna()].tolist() == [2]
    assert store.read("errors")["client_id"].tolist() == [2]
