"""Stacked clients, the cache of features, fine-tuning, and refused combinations."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

import fedsim
from fedsim import models
from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DivergedError, WorkerError
from fedsim.core.layout import FlatModel
from fedsim.core.rng import torch_generator
from fedsim.core.types import ModelSpec, RoundContext, Training
from fedsim.engine.blocks import Stacking, clients_of
from fedsim.engine.worker import Worker
from fedsim.identity import resume
from fedsim.models import registry
from fedsim.models.vision import SplitModel
from fedsim.server import Received
from fedsim.server.optimizers import Multiply
from fedsim.testing.rounds import config as rounds_config
from fedsim.testing.rounds import results, rounds
from fedsim.training import assemble, driver, finetune, stacking
from fedsim.training.assemble import prepare
from fedsim.training.combinations import REFUSED, TRAITS, check, table
from fedsim.training.features import with_features
from tests import decomposing
from tests.algorithms.training import dataset, worker
from tests.rounding import rounding, sgd_operations
from tests.tasks import run, tasks
from tests.unit.models.test_trainable import config as trainable_config

CTX = RoundContext(round=0, num_rounds=5, num_clients=8, lr=0.1, seed=0)


def stacking_config(
    batch=1, model="mlp", clients=10, rate=1.0, method="fedavg", size=10, **sections
):
    return RunConfig(
        algorithm=method,
        data={"num_clients": clients},
        model={"name": model},
        train={"rounds": 2, "sample_rate": rate, "batch_size": size},
        engine={"kind": "serial", "client_batch": batch},
        **sections,
    )


# Blocks
def blocks(spec, clients, **given):
    """The clients of each block of a round."""
    return [clients_of(block) for block in spec.blocks(tasks(clients, CTX, **given))]


def test_the_clients_with_the_most_steps_come_first_and_then_the_smallest_ids():
    steps = {4: 1, 0: 3, 2: 3, 1: 5, 3: 1}
    made = Stacking(2, 10, False).blocks(zip(tasks(steps, CTX), steps.values(), strict=True))
    assert [clients_of(block) for block in made] == [(1, 0), (2, 3), (4,)]


def test_blocks_depend_on_the_cohort_and_not_on_the_order_in_which_it_is_named():
    spec = prepare(stacking_config(3)).spec
    steps = [-(-len(own) // 10) for own in spec.partition.train]
    cohort = [7, 1, 5, 3, 2]
    expected = sorted(cohort, key=lambda client: (-steps[client], client))
    assert blocks(spec, cohort) == [tuple(expected[:3]), tuple(expected[3:])]
    assert spec.blocks(tasks(cohort[::-1], CTX)) == spec.blocks(tasks(cohort, CTX))


def test_with_a_clock_the_steps_that_clients_have_time_for_decide():
    setup = prepare(stacking_config(3, clock={"work": "uniform(0.1, 1)"}))
    sizes = [len(own) for own in setup.partition.train]
    steps = {}
    for client, n in enumerate(sizes):
        most = setup.clock.participation(0, client, n).max_steps
        steps[client] = -(-n // 10) if most is None else most
    made = setup.spec.blocks(setup.roster.plan(range(10), CTX).tasks)
    order = [client for block in made for client in clients_of(block)]
    assert order == sorted(steps, key=lambda client: (-steps[client], client))
    assert order != sorted(steps, key=lambda client: (-sizes[client], client))


def test_a_probe_and_clients_without_client_batch_go_one_by_one():
    spec = prepare(stacking_config(3, method="fediir")).spec
    alone = [(1,), (4,), (6,)]
    assert blocks(spec, [6, 1, 4], work="probe") == alone
    assert blocks(spec, [6, 1, 4], work="loss") == alone
    assert blocks(prepare(stacking_config()).spec, [6, 1, 4]) == alone


def test_the_width_of_batches_is_one_number_for_the_run():
    spec = prepare(stacking_config(3)).spec
    assert spec.stacking.width == 10
    few = prepare(stacking_config(3, clients=40, size=500)).spec
    assert few.stacking.width == max(map(len, few.partition.train)) < 500


# How many
def flat(spec):
    return FlatModel(registry.build(spec, 0), torch.device("cpu"))


def automatic(spec, width, limits=stacking.CPU):
    return stacking.automatic(spec, flat(spec), width, limits)


def test_operations_and_memory_of_a_sample_by_hand():
    spec = ModelSpec(name="mlp", num_classes=10, in_channels=1, image_size=8)
    flops, kept = stacking.costs(spec, flat(spec))
    assert flops == 2 * (64 * 64 + 64 * 10)
    # the input of each linear layer, and the output of the ReLU, which is that of the second
    assert kept == 4 * (64 + 2 * 64)


def test_auto_takes_as_many_as_the_memory_holds_between_five_and_fifty():
    small = ModelSpec(name="logistic", num_classes=10, in_channels=1, image_size=8)
    assert automatic(small, 10) == 50
    between = ModelSpec(name="mlp", num_classes=10, in_channels=1, image_size=56)
    # 5 vectors of 201,418 floats, and 10 times the sample's 3,136 + 2 * 64
    assert (32 << 20) // (20 * 201_418 + 10 * 4 * (3136 + 128)) == 8
    assert automatic(between, 10) == 8
    large = replace(between, image_size=128)
    assert automatic(large, 2) == 5


def test_auto_trains_large_steps_one_by_one():
    large = ModelSpec(name="cnn_fedavg", num_classes=10, in_channels=1, image_size=28)
    assert automatic(large, 10) == 1


def test_a_gpu_takes_larger_steps_and_blocks_than_a_cpu():
    job = ModelSpec(name="cnn_reddi", num_classes=10, in_channels=3, image_size=32)  # pfl_cifar10
    assert (automatic(job, 10), automatic(job, 10, stacking.GPU)) == (1, 50)
    assert automatic(job, 100, stacking.GPU) == 1  # 10.1 GFLOP
    # of less than five clients where they take as much as that; see the test before for the 4 MiB
    between = ModelSpec(name="mlp", num_classes=10, in_channels=1, image_size=56)
    assert automatic(between, 10, stacking.GPU._replace(memory=9 << 20)) == 2


@pytest.mark.parametrize(("gpus", "found"), [(0, 1), (1, 10), (0.0625, 10)])
def test_auto_knows_the_device_by_the_configuration(gpus, found):
    given = RunConfig(
        data={"num_clients": 10, "image_size": 28},
        model={"name": "cnn_reddi"},
        train={"sample_rate": 1.0, "batch_size": 10},
        engine={"client_batch": "auto", "gpus_per_client": gpus},
    )
    assert prepare(given).config.engine.client_batch == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, 10),
        ({"clients": 50, "rate": 0.1}, 5),
        ({"clients": 4}, 1),
        ({"clients": 40, "rate": 0.1}, 1),
        ({"method": "fedpac"}, 1),
    ],
    ids=["ten", "five of fifty", "four", "four of forty", "a method that cannot"],
)
def test_auto_is_written_as_the_number_that_it_stands_for(changes, found):
    setup = prepare(stacking_config("auto", **changes))
    assert setup.config.engine.client_batch == found
    assert "client_batch: auto" not in to_yaml(setup.config)
    assert (setup.spec.stacking is None) == (found == 1)
    if found > 1:
        assert prepare(setup.config).spec.stacking == setup.spec.stacking


def test_what_cannot_be_stacked_is_refused_with_the_reason():
    message = (
        r"^engine\.client_batch: 4 given, but algorithm fedpac with model mlp cannot be stacked: "
        r"local training has two phases; 1 and auto"
    )
    with pytest.raises(ConfigError, match=message):
        prepare(stacking_config(4, method="fedpac"))


def training(part, batch, model="mlp"):
    """A run that trains a part of the model."""
    settings = stacking_config(batch, model)
    changed = settings.model.model_copy(update={"trainable": part})
    return settings.model_copy(update={"model": changed})


@pytest.mark.parametrize("part", ["head", "lora(2)"])
def test_a_part_of_the_model_is_refused(part):
    with pytest.raises(ConfigError, match=r"mlp cannot be stacked: .* parameters that are not tr"):
        prepare(training(part, 4))


# What it decides
def test_it_decides_results():
    wanted = stacking_config(4)
    written = yaml.safe_load(to_yaml(prepare(wanted).config))
    assert resume.difference(wanted, written) is None
    other = resume.difference(stacking_config(5), written)
    assert other == "engine.client_batch (4, wanted 5)"


@pytest.mark.integration
def test_it_cannot_change_when_a_run_is_resumed(tmp_path):
    store = fedsim.run(stacking_config(4), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"engine\.client_batch cannot change in a run that"):
        resume.configuration(store.path, {"engine.client_batch": 1})


class Halved(LocalRule):
    """Uploads half of what it learnt, and keeps half of what it would keep."""

    stackable = True

    def finish(self, env, s):
        with torch.no_grad():
            env.flat.flat.lerp_(env.start, 0.5)
        return Uplink()


def halved() -> Algorithm:
    return Algorithm(local=Halved(), personal=attrgetter("head"))


def plain() -> Algorithm:
    return Algorithm(personal=attrgetter("head"))


@pytest.mark.slow
@pytest.mark.integration
def test_a_model_changed_by_finish_is_what_a_block_uploads_and_keeps_too():
    found = {}
    for method, batch in product((plain, halved), (1, 4)):
        settings = stacking_config(batch, method=f"{__name__}:{method.__name__}")
        settings = settings.model_copy(
            update={"train": settings.train.model_copy(update={"rounds": 1})}
        )
        (r,) = rounds(settings)
        heads = [r.after.clients[c]["personal"] for c in r.clients]
        moved = np.stack(heads) - r.before.params[-heads[0].size :]
        found[method, batch] = r.row["update_norm"], np.linalg.norm(moved)
    # 144 images of 64 pixels in batches of 10, two linear layers
    tolerance = rounding(np.float32, sgd_operations(steps=15, layers=2, width=64))
    assert found[halved, 1] == pytest.approx(np.array(found[plain, 1]) / 2, rel=tolerance)
    assert found[halved, 4] == pytest.approx(found[halved, 1], rel=tolerance)


FILES = ("rounds.csv", "clients.csv", "classes.csv", "model.safetensors")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of the features."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "features"


def spec_of(name="cnn", trainable="head", **changes):
    return prepare(trainable_config(name, trainable, **changes)).spec


def contents(store):
    return {name: (store.path / name).read_bytes() for name in FILES}


def augmented(folder):
    found = decomposing.digits(folder)
    return replace(found, pipeline=replace(found.pipeline, augment="flip"))


class Renormalised(nn.Module):
    """Subtracts the mean of the batch: what a sample gives depends on those beside it."""

    def forward(self, x):
        return x - x.mean(0)


class Refusing(nn.Module):
    """Takes two samples, with which networks are tried, and no others."""

    def forward(self, x):
        if len(x) != 2:
            raise ValueError("two only")
        return x


class Own(nn.Module):
    """A network of the user's, whose forward pass nobody knows."""

    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.features(x).relu())


def perceptron(*more, activation=nn.ReLU):
    def make(num_classes, in_channels, image_size):
        hidden = nn.Linear(in_channels * image_size**2, 8)
        features = nn.Sequential(nn.Flatten(), hidden, activation(), *more)
        return SplitModel(features, nn.Linear(8, num_classes))

    return make


def own(num_classes, in_channels, image_size):
    return Own(num_classes)


drawing, averaging = perceptron(nn.Dropout(0.1)), perceptron(Renormalised())
refusing, smooth = perceptron(Refusing()), perceptron()


# A sweep, whose runs have them in common
# What the features are
@pytest.mark.parametrize("trainable", ["head", "head.*", "head.weight"])
def test_workers_get_features_and_leave_the_frozen_part_out(trainable):
    spec = spec_of(trainable=trainable)
    found = with_features(spec)
    flat = assemble.FlatModel(models.build(spec.model, spec.seed), torch.device("cpu"))
    flat.mode(train=False)
    x = torch.from_numpy(spec.dataset.x).float().div(255).sub(0.5).div(0.5)
    with torch.no_grad():
        expected = flat.model.features(x).numpy()
    assert found.dataset.x.dtype == np.float32
    np.testing.assert_allclose(found.dataset.x, expected, rtol=1e-5, atol=1e-6)
    assert isinstance(found.dataset.x.base, np.memmap)
    assert found.dataset.inputs == "features"
    assert found.cut == "features"
    assert set(found.frozen) == ({"head.bias"} if trainable == "head.weight" else set())


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("cnn", {"data": f"{__name__}:augmented"}, "data.augment=flip draws"),
        (f"{__name__}:drawing", {}, f"{__name__}:drawing draws in training (dropout)"),
        (
            f"{__name__}:averaging",
            {},
            f"{__name__}:averaging gives others in training, or beside other samples",
        ),
    ],
)
def test_where_something_draws_every_pass_goes_through_the_network(
    name, changes, reason, folder, caplog
):
    caplog.set_level("INFO", "fedsim")
    spec = spec_of(name, **changes)
    assert with_features(spec) is spec
    assert not folder.exists()
    (record,) = caplog.records
    text = f"model.trainable=head: features are computed anew in every pass, since {reason}"
    assert record.getMessage() == text


@pytest.mark.parametrize(
    ("name", "trainable", "method"),
    [
        ("cnn", "all", "fedavg"),
        ("cnn", "norm", "fedavg"),
        ("cnn", "features.4.*,head.*", "fedavg"),
        ("tests.unit.models.test_trainable:vit", "lora(2)", "fedavg"),
        ("cnn", "head", "fedsr"),
        (f"{__name__}:own", "head", "fedavg"),
    ],
)
def test_other_networks_see_the_samples(name, trainable, method, folder):
    spec = spec_of(name, trainable, method=method)
    assert with_features(spec) is spec
    assert not folder.exists()


# The file
def test_a_file_for_whatever_decides_the_features(folder, monkeypatch):
    def files():
        return len(list(folder.iterdir()))

    spec = spec_of(f"{__name__}:smooth")
    with_features(spec)
    with_features(replace(spec, seed=8, batch_size=7, threads=3))  # decide nothing
    assert files() == 1
    x = np.array(spec.dataset.x)
    x[-1] += 1
    data = replace(spec.dataset, x=x)
    with_features(replace(spec, dataset=data))
    pipeline = replace(spec.dataset.pipeline, mean=(0.4,))
    with_features(replace(spec, dataset=replace(spec.dataset, pipeline=pipeline)))
    frozen = {name: array + np.float32(1e-7) for name, array in spec.frozen.items()}
    with_features(replace(spec, frozen=frozen))
    monkeypatch.setitem(globals(), "smooth", perceptron(activation=nn.GELU))  # other code
    with_features(spec)
    assert files() == 5


# Runs
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "model", "changes"),
    [
        ("scaffold", {}, {}),
        ("local", {}, {}),
        ("moon", {"projection": 6}, {}),
        ("fedavg", {}, {"train": {"local_epochs": 2, "optimizer": "adamw", "momentum": 0.0}}),
    ],
)
def test_a_run_is_that_of_the_whole_network(method, model, changes, tmp_path, folder, monkeypatch):
    settings = trainable_config("cnn", "head", method, model=model, **changes)
    cold = fedsim.run(settings, tmp_path / "cold")
    (path,) = folder.iterdir()
    warm = fedsim.run(settings, tmp_path / "warm")
    assert contents(cold) == contents(warm)
    assert [*folder.iterdir()] == [path]
    monkeypatch.setattr(assemble, "with_features", lambda spec: spec)
    whole = fedsim.run(settings, tmp_path / "whole")
    for name in ("rounds", "clients"):
        ours, theirs = (getattr(store, name) for store in (cold, whole))
        timed = [c for c in ours if "seconds" in c]
        pd.testing.assert_frame_equal(
            ours.drop(columns=timed), theirs.drop(columns=timed), rtol=1e-5, atol=1e-7
        )
    ours, theirs = (load_file(s.path / "model.safetensors") for s in (cold, whole))
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.integration
def test_the_run_leaves_a_whole_network_which_predicts_the_same(tmp_path, folder):
    settings = trainable_config("cnn", "head")
    store = fedsim.run(settings, tmp_path / "run")
    setup, final = prepare(settings), load_file(store.path / "model.safetensors")
    models.build(setup.model, 5).load_state_dict(final, strict=True)
    for name, array in setup.frozen.items():
        assert final[name].numpy().tobytes() == array.tobytes(), name
    files = [*folder.iterdir()]
    frame = fedsim.predict(store.path)
    assert [*folder.iterdir()] == files
    right = (frame["label"] == frame["prediction"]).mean()
    assert right == store.rounds["test_accuracy"].iloc[-1]
    x = torch.from_numpy(setup.dataset.x[frame["sample"]]).float().div(255).sub(0.5).div(0.5)
    with torch.no_grad():
        chances = fedsim.load_model(store.path)(x).softmax(1).numpy()
    columns = [f"probability_{k}" for k in range(10)]
    np.testing.assert_allclose(frame[columns], chances, rtol=1e-4, atol=1e-6)


class Stop(fedsim.Callback):
    def on_round_end(self, round, rows):
        raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.integration
def test_a_resumed_run_has_the_same_bytes(tmp_path):
    settings = trainable_config("cnn", "head", "scaffold")
    whole = fedsim.run(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(settings, tmp_path / "half", callbacks=[Stop()])
    assert contents(fedsim.resume(tmp_path / "half")) == contents(whole)


OWN = {"num_clients": 8, "test_fraction": 0.5, "client_test_fraction": 0.3}


def finetune_settings(name="fedavg", model="mlp", epochs=2, **sections):
    sections["data"] = OWN | sections.get("data", {})
    sections["evaluation"] = {"every": 3, "finetune_epochs": epochs}
    return rounds_config(name, model, **sections)


def table_bytes(store):
    return results(store) | {"final": (store.path / "final_clients.csv").read_bytes()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: fedsim.run(finetune_settings(name), folder / name) for name in ("fedavg", "local")
    }


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
    assert table_bytes(fedsim.run(finetune_settings(name), tmp_path / "run")) == table_bytes(
        runs[name]
    )


@pytest.mark.integration
def test_interrupted_while_fine_tuning_and_resumed(runs, tmp_path, monkeypatch):
    def stop(*_):
        raise WorkerError("a node was lost")

    with monkeypatch.context() as patch:
        patch.setattr(driver, "final_scores", stop)
        with pytest.raises(WorkerError):
            fedsim.run(finetune_settings(), tmp_path / "run")
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
    given = finetune_settings(engine={"on_client_failure": policy})
    if policy == "raise":
        with pytest.raises(DivergedError, match=r"^fine-tuning, client 2: tensor w is NaN"):
            fedsim.run(given, tmp_path / "run")
        return
    store = fedsim.run(given, tmp_path / "run")
    table = store.read("final_clients")
    assert table["client_id"][table["finetuned_loss"].isna()].tolist() == [2]
    assert store.read("errors")["client_id"].tolist() == [2]


PRIVATE = {"dp": {"level": "user", "clip": 1.0, "max_samples": 9}}
SECURE = {"train": {"secure_aggregation": True}}
ASYNC = {"clock": {"mode": "async", "samples_per_second": "lognormal(100, 0.5)"}}
MIXED = ASYNC | {"async_": {"mixing": 0.5, "buffer": 1}}
COMPRESSED = {"compress": {"name": "top_k"}}


class Mine:
    """A cohort transform that says nothing of itself."""

    name: ClassVar[str] = "mine"
    needs_own_clients: ClassVar[bool] = False

    def __call__(self, cohort, state, ctx):
        return Received(cohort=cohort)


class Alone(Mine):
    """One that each client could do."""

    by_client: ClassVar[bool] = True


class Seeing(Multiply):
    blind: ClassVar[bool] = False


def answer(cohort, state, ctx):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("sections", "changes", "server", "reason"),
    [
        (COMPRESSED, {"needs_exact_updates": True}, {}, "keeps the sum of the updates"),
        (COMPRESSED, {}, {"needs_same_start": True}, "needs clients' exact models"),
        (MIXED, {"measures_progress": True}, {}, "measures what clients did"),
        (MIXED, {"needs_exact_updates": True}, {}, "sums of updates on both sides"),
        (PRIVATE, {}, {"receive": (Alone(),)}, "transforms of the cohort"),
        (PRIVATE, {}, {"optimizers": (Seeing(1.0),)}, "optimisers that see the cohort"),
        (PRIVATE, {}, {"exchange": answer, "sums": True}, "is neither clipped nor noised"),
        (SECURE, {}, {"receive": (Mine(),)}, "needs? single updates"),
        (SECURE, {}, {"receive": (Alone(),)}, None),
        (SECURE, {}, {"exchange": answer}, "needs what single clients send"),
        (SECURE, {}, {"exchange": answer, "sums": True}, None),
    ],
)
def test_parts_of_ones_own_are_refused_by_what_they_declare(sections, changes, server, reason):
    setup = prepare(rounds_config("fedavg", "mlp", **sections))
    # private servers are made after the check
    plain = prepare(rounds_config("fedavg", "mlp")).algorithm.server
    given = replace(setup.algorithm, server=replace(plain, **server), **changes)
    if reason is None:
        check(replace(setup, algorithm=given))
        return
    with pytest.raises(ConfigError, match=reason):
        check(replace(setup, algorithm=given))


def test_the_table_names_what_there_is():
    used = {name for one, other, _ in REFUSED for name in (one, other)}
    assert used == TRAITS.keys()
    assert len({(one, other) for one, other, _ in REFUSED}) == len(REFUSED)
    assert len(table().splitlines()) == len(REFUSED) + 2
