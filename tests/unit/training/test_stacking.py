"""``engine.client_batch``: which clients train together, and how many ``auto`` takes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from operator import attrgetter

import numpy as np
import pytest
import torch
import yaml

import fedsim
from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalRule, Uplink
from fedsim.config.resolve import to_yaml
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.core.layout import FlatModel
from fedsim.core.types import ModelSpec, RoundContext
from fedsim.engine.blocks import Stacking, clients_of
from fedsim.engine.ray.cluster import memory_of
from fedsim.identity import resume
from fedsim.models import registry
from fedsim.testing.rounds import rounds
from fedsim.training import stacking
from fedsim.training.assemble import prepare
from tests.rounding import rounding, sgd_operations
from tests.tasks import tasks

CTX = RoundContext(round=0, num_rounds=5, num_clients=8, lr=0.1, seed=0)


def config(batch=1, model="mlp", clients=10, rate=1.0, method="fedavg", size=10, **sections):
    return RunConfig(
        algorithm=method,
        data={"num_clients": clients},
        model={"name": model},
        train={"rounds": 2, "sample_rate": rate, "batch_size": size},
        engine={"kind": "serial", "client_batch": batch},
        **sections,
    )


def settings(config):
    return resume.decisive(config)


# Blocks


def blocks(spec, clients, **given):
    """The clients of each block of a round."""
    return [clients_of(block) for block in spec.blocks(tasks(clients, CTX, **given))]


def test_the_clients_with_the_most_steps_come_first_and_then_the_smallest_ids():
    steps = {4: 1, 0: 3, 2: 3, 1: 5, 3: 1}
    made = Stacking(2, 10, False).blocks(zip(tasks(steps, CTX), steps.values(), strict=True))
    assert [clients_of(block) for block in made] == [(1, 0), (2, 3), (4,)]


def test_blocks_depend_on_the_cohort_and_not_on_the_order_in_which_it_is_named():
    spec = prepare(config(3)).spec
    steps = [-(-len(own) // 10) for own in spec.partition.train]
    cohort = [7, 1, 5, 3, 2]
    expected = sorted(cohort, key=lambda client: (-steps[client], client))
    assert blocks(spec, cohort) == [tuple(expected[:3]), tuple(expected[3:])]
    assert spec.blocks(tasks(cohort[::-1], CTX)) == spec.blocks(tasks(cohort, CTX))


def test_with_a_clock_the_steps_that_clients_have_time_for_decide():
    setup = prepare(config(3, clock={"work": "uniform(0.1, 1)"}))
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
    spec = prepare(config(3, method="fediir")).spec
    alone = [(1,), (4,), (6,)]
    assert blocks(spec, [6, 1, 4], work="probe") == alone
    assert blocks(spec, [6, 1, 4], work="loss") == alone
    assert blocks(prepare(config()).spec, [6, 1, 4]) == alone


def test_the_width_of_batches_is_one_number_for_the_run():
    spec = prepare(config(3)).spec
    assert spec.stacking.width == 10
    few = prepare(config(3, clients=40, size=500)).spec
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
    setup = prepare(config("auto", **changes))
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
        prepare(config(4, method="fedpac"))


def training(part, batch, model="mlp"):
    """A run that trains a part of the model."""
    settings = config(batch, model)
    changed = settings.model.model_copy(update={"trainable": part})
    return settings.model_copy(update={"model": changed})


@pytest.mark.parametrize("part", ["head", "lora(2)", "head.*"], ids=["head", "lora", "a pattern"])
def test_a_part_of_the_model_is_refused_before_the_data_are_read(part, monkeypatch):
    monkeypatch.setattr(
        "fedsim.training.assemble.deal", lambda config: pytest.fail("reads the data")
    )
    with pytest.raises(ConfigError) as refused:
        prepare(training(part, 4))
    assert str(refused.value) == (
        "engine.client_batch: 4 given, but algorithm fedavg with model mlp cannot be stacked: "
        "the model has parameters that are not trained; 1 and auto train these clients one by one"
    )


def test_a_block_takes_five_vectors_of_memory_for_each_client():
    one, ten = (EngineConfig(client_batch=n, actors=1) for n in (1, 10))
    assert memory_of(ten, 1000) - memory_of(one, 1000) == 5 * 10 * 1000


# What it decides


def test_it_decides_results():
    wanted = config(4)
    written = yaml.safe_load(to_yaml(prepare(wanted).config))
    assert resume.difference(wanted, written) is None
    other = resume.difference(config(5), written)
    assert other == "engine.client_batch (4, wanted 5)"


@pytest.mark.integration
def test_a_finished_run_of_auto_counts_whatever_number_that_was(tmp_path):
    wanted = config("auto")
    store = fedsim.run(wanted, tmp_path / "run")
    assert yaml.safe_load((store.path / "config.yaml").read_text())["engine"]["client_batch"] == 10
    assert resume.is_complete(wanted, store.path)
    assert resume.is_complete(config(10), store.path)
    with pytest.raises(ConfigError, match=r"another engine\.client_batch \(10, wanted 1\)"):
        resume.is_complete(config(), store.path)


@pytest.mark.integration
def test_it_cannot_change_when_a_run_is_resumed(tmp_path):
    store = fedsim.run(config(4), tmp_path / "run")
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
        settings = config(batch, method=f"{__name__}:{method.__name__}")
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
