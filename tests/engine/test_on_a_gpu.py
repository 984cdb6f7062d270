"""The same bytes on one kind of GPU, whatever the number of actors that share it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fedsim
from fedsim import algorithms
from fedsim.config.run import RunConfig
from fedsim.core.errors import FedsimError
from fedsim.engine import serial
from fedsim.engine.worker import Worker
from fedsim.testing.rounds import difference, rounds, small
from fedsim.training import driver
from tests.stopping import Stopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.ray,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


FILES = ("rounds.csv", "clients.csv", "classes.csv", "partition.csv", "model.safetensors")

MODELS = {
    "cnn": {},
    "resnet18": {"image_size": 32, "augment": "crop_flip"},
    "cnn_reddi": {"image_size": 28},
}


def run(method, model, out, session=None, **engine):
    config = RunConfig(
        algorithm=method,
        data={"num_clients": 8, **MODELS[model]},
        model={"name": model},
        train={"rounds": 3, "sample_rate": 0.5},
        engine=engine,
    )
    store = fedsim.run(config, out, session=session)
    return {name: (store.path / name).read_bytes() for name in FILES}


@pytest.mark.parametrize(
    ("method", "model", "precision", "batch"),
    [
        ("fedld", "cnn", "float32", 1),
        ("fedbn", "resnet18", "float32", 1),
        ("fedpac", "cnn_reddi", "float32", 1),
        ("fedld", "resnet18", "tf32", 1),
        ("fedld", "cnn_reddi", "bf16", 1),
        ("fedavg", "cnn_reddi", "float32", 2),
        ("fedld", "cnn", "tf32", 2),
    ],
)
def test_same_bytes_for_any_number_of_actors(method, model, precision, batch, shared_ray, tmp_path):
    same = {"precision": precision, "client_batch": batch}
    serial = {"kind": "serial", "gpus_per_client": 1} | same
    reference = run(method, model, tmp_path / "serial", **serial)
    assert run(method, model, tmp_path / "again", **serial) == reference
    engines = {
        "default": {},
        "one": {"gpus_per_client": 1, "cpus_per_client": 0.1},
        "four": {"gpus_per_client": 0.25, "cpus_per_client": 0.1},
        "eight": {"gpus_per_client": 0.125, "cpus_per_client": 0.1},
        "small": {"gpus_per_client": 0.0625, "cpus_per_client": 0.1},
        "own": {"gpus_per_client": 0.125, "cpus_per_client": 0.1, "actors": "per-client"},
    }
    for name, engine in engines.items():
        got = run(method, model, tmp_path / name, shared_ray, **same, **engine)
        assert [f for f in FILES if got[f] != reference[f]] == [], f"serial and {name} differ"


ON_CARD = {"kind": "serial", "gpus_per_client": 1.0}

DRAWING = {"cnn_reddi": {"image_size": 14}, "cnn": {}, "resnet18": {"image_size": 32}}


@pytest.fixture
def contents(monkeypatch):
    """What the rounds of a configuration are compared by, and the worker that did them."""

    def of(configuration, static=None):
        made = []

        def worker(*given):
            made.append(Worker(*given, static=static))
            return made[-1]

        monkeypatch.setattr(serial, "Worker", worker)
        return [r.content() for r in rounds(configuration)], made[-1]

    return of


def unequal(method, model="cnn", precision="float32", **sections):
    """Clients of unequal sizes on a GPU: short batches, and single samples."""
    plain = algorithms.load(method).local.plain_sgd
    train = {"batch_size": 6, "local_epochs": 2, "momentum": 0.0 if plain else 0.9}
    data = {"partition": "dirichlet", "alpha": 0.5, "min_samples": 1}
    engine = ON_CARD | {"precision": precision} | sections.pop("engine", {})
    train |= sections.pop("train", {})
    data |= sections.pop("data", {})
    return small(method, model, train=train, data=data, engine=engine, **sections)


def replayed_as_launched(contents, configuration):
    """The worker whose recorded steps gave the bytes of steps launched kernel by kernel."""
    launched, _ = contents(configuration, static=False)
    replayed, worker = contents(configuration)
    assert difference(launched, replayed, "steps that are launched") is None
    return worker


@pytest.mark.parametrize("method", algorithms.names())
def test_a_recorded_step_has_the_bytes_of_a_launched_one(method, contents):
    worker = replayed_as_launched(contents, unequal(method))
    assert worker.findings.uncaptured == {}
    assert len(worker.steps._recorded) >= 2


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("model", DRAWING)
def test_recorded_steps_of_models_with_statistics_and_dropout(model, precision, contents):
    configuration = unequal("fedavg", model, precision, data=DRAWING[model])
    assert replayed_as_launched(contents, configuration).findings.uncaptured == {}


@pytest.mark.parametrize(
    "train",
    [
        {"optimizer": "adamw", "momentum": 0.0, "lr_schedule": "cosine"},
        {"clip_norm": 0.5, "lr_head": 0.1},
        {"batch_size": 1},
    ],
    ids=["adamw", "clip", "single"],
)
def test_recorded_steps_of_other_settings(train, contents):
    worker = replayed_as_launched(contents, unequal("fedprox", train=train))
    assert worker.findings.uncaptured == {}


@pytest.mark.parametrize("model", ["cnn", "mlp"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fediir"])
def test_a_stack_has_the_same_bytes_twice_and_launched(method, model, contents):
    configuration = unequal(method, model, engine={"client_batch": 3})
    worker = replayed_as_launched(contents, configuration)
    assert worker.findings.uncaptured == {}
    first, again = contents(configuration)[0], contents(configuration)[0]
    assert difference(first, again, "the first time") is None


def test_a_schedule_of_the_learning_rate_records_nothing_anew(contents):
    def recorded(schedule):
        train = {"rounds": 5, "sample_rate": 1.0, "lr_schedule": schedule}
        return len(contents(unequal("fedavg", train=train))[1].steps._recorded)

    assert recorded("cosine") == recorded("constant") > 0


def test_a_model_that_waits_for_the_gpu_is_launched_and_says_so(contents):
    """After it, a model with dropout is recorded in the same process, with the same bytes."""
    model = f"{__name__}:waiting"
    worker = replayed_as_launched(contents, unequal("fedavg", model))
    assert list(worker.findings.uncaptured) == ["Waits"]
    again = unequal("fedavg", "cnn_reddi", data={"image_size": 14})
    assert replayed_as_launched(contents, again).findings.uncaptured == {}


class Waits(torch.nn.Module):
    """Looks at a value in the middle of its forward pass."""

    def __init__(self, num_classes, in_channels, image_size):
        super().__init__()
        self.layer = torch.nn.Linear(in_channels * image_size**2, num_classes)

    def forward(self, x):
        logits = self.layer(x.flatten(1))
        return logits if float(logits.detach().sum()) < 1e9 else 2 * logits


def waiting(num_classes, in_channels, image_size):
    return Waits(num_classes, in_channels, image_size)


@pytest.mark.parametrize("batch", [1, 3])
def test_killed_and_resumed(batch, tmp_path):
    """A run that is stopped in its third round ends with the bytes of one that was not."""

    def config():
        return RunConfig(
            algorithm="scaffold",
            data={"num_clients": 8, "image_size": 14},
            model={"name": "cnn_reddi"},
            train={"rounds": 4, "sample_rate": 0.5, "batch_size": 20, "lr_schedule": "cosine"},
            engine=ON_CARD | {"client_batch": batch},
        )

    reference = fedsim.run(config(), tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        fedsim.run(config(), stopped, [Stopper(2, KeyboardInterrupt)])
    again = driver.resume(stopped)
    for name in FILES:
        assert (again.path / name).read_bytes() == (reference.path / name).read_bytes(), name


class Greedy(nn.Module):
    """Asks for a tenth of the GPU in each training step."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and torch.is_grad_enabled() and len(x) > 2:  # a new model sees two images
            total = torch.cuda.get_device_properties(x.device).total_memory
            torch.empty(total // 10, dtype=torch.uint8, device=x.device)
        return x


def greedy(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    pixels = in_channels * image_size**2
    return nn.Sequential(Greedy(), nn.Flatten(), nn.Linear(pixels, num_classes))


def test_out_of_memory_names_the_fraction_that_fits(shared_ray, tmp_path):
    config = RunConfig(
        model={"name": f"{__name__}:greedy"},
        train={"rounds": 1},
        engine={"gpus_per_client": 0.0625, "max_retries": 0, "cpus_per_client": 0.1},
    )
    fits = r"out of GPU memory: .*; --gpus-per-client 0\.\d+ would fit"
    with pytest.raises(FedsimError, match=fits):
        fedsim.run(config, tmp_path / "run", session=shared_ray)
