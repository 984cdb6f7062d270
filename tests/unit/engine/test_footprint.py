"""The estimate of a training step's memory, against what PyTorch's profiler sees allocated."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from fedsim import models
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import GIB, ModelSpec, RoundContext, Training
from fedsim.engine.devices import CONTEXT
from fedsim.engine.footprint import WORKSPACES, PeakMemory, check, need_of
from fedsim.engine.transfer import KEPT
from fedsim.engine.worker import Worker
from fedsim.models.registry import zeros
from fedsim.training.assemble import prepare, start_of
from tests.tasks import tasks

CTX = RoundContext(round=0, num_rounds=2, num_clients=10, lr=0.1, seed=0)


def spec_of(name, size=32, channels=3, classes=10):
    return ModelSpec(name=name, num_classes=classes, in_channels=channels, image_size=size)


def allocated(model, spec, batch):
    """The most bytes that were allocated at once in a step, by the profiler's events."""
    x = torch.rand(batch, *zeros(spec).shape[1:])
    labels = torch.zeros(batch, dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        nn.functional.cross_entropy(model(x), labels).backward()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


@pytest.mark.parametrize(("name", "batch"), [("cnn", 20), ("mlp", 20), ("resnet18", 4)])
def test_a_traced_step_takes_what_a_real_one_allocates(name, batch):
    spec = spec_of(name)
    model = models.build(spec, seed=0)
    x = zeros(spec)[:1].expand(batch, 3, 32, 32).contiguous()
    measured = allocated(model, spec, batch) + x.nbytes
    training = Training(batch_size=batch, momentum=0.0)
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    need = need_of(model, spec, training, evaluation_batch=1)
    # small tensors are rounded up, a CPU's kernels take workspaces of their own, and a traced
    # gradient is there twice for a moment, since the trace holds it when it becomes p.grad
    largest = max(p.nbytes for p in model.parameters())
    traced = need - CONTEXT - WORKSPACES - (1 + KEPT) * weights
    assert 0.9 * measured < traced < 1.1 * measured + largest
    assert all(p.grad is None or p.device.type == "cpu" for p in model.parameters())


def test_the_parts_of_a_linear_model():
    spec = ModelSpec(name="logistic", num_classes=256, in_channels=1, image_size=32)
    model = models.build(spec, seed=0)
    weights = 4 * (256 * 1024 + 256)
    none, momentum, adam = (
        need_of(model, spec, Training(batch_size=512, **kind), evaluation_batch=1)
        for kind in ({"momentum": 0.0}, {"momentum": 0.5}, {"optimizer": "adamw", "momentum": 0.0})
    )
    assert momentum - none == weights
    assert adam - none == 2 * weights
    batches = [
        need_of(model, spec, Training(batch_size=b, momentum=0.0), evaluation_batch=1)
        for b in (512, 1024)
    ]
    assert batches[1] - batches[0] >= 512 * 4 * (1024 + 256)  # images and logits


@pytest.mark.parametrize(
    ("model", "block", "momentum"),
    [
        ("cnn", 5, 0.9),
        ("mlp", 10, 0.5),
        pytest.param("cnn", 1, 0.0, marks=pytest.mark.slow),
        pytest.param("cnn_fedavg", 1, 0.9, marks=pytest.mark.slow),
        pytest.param("cnn_fedavg", 5, 0.0, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_of_a_call_is_what_its_tensors_take(model, block, momentum):
    """As on a GPU: samples, models and updates are copied to a device of their own."""
    given = RunConfig(
        data={"num_clients": 10, "image_size": 28, "partition": "iid"},
        model={"name": model},
        train={"sample_rate": 1.0, "batch_size": 20, "momentum": momentum},
        engine={"kind": "serial", "client_batch": block},
    )
    setup, start = start_of(prepare(given))
    with PeakMemory() as memory:
        worker = Worker(setup.spec, torch.device("cpu"), apart=True)
        blocks = setup.spec.blocks(tasks(range(10), CTX))
        worker.train(blocks, {0: (start.params, {})}, {})
    own = setup.spec.model, setup.spec.training, 1
    sizes = {"clients": block, "cohort": 10, "samples": worker.samples.nbytes}
    need = need_of(worker.flat.model, *own, **sizes) - CONTEXT - WORKSPACES
    peak = memory.peak + worker.samples.nbytes  # these are not copied here
    # kernels of a CPU take workspaces of their own, those of blocks copies of what is padded; only
    # one of two global vectors is there, and a traced gradient is there twice for each client
    assert 0.9 * peak < need < 1.1 * peak + (1 + block) * start.params.nbytes


def test_what_does_not_fit_its_room_stays_with_the_host():
    spec = ModelSpec(name="logistic", num_classes=256, in_channels=1, image_size=32)
    model = models.build(spec, seed=0)
    vector = 4 * (256 * 1024 + 256)

    def need(**sizes):
        return need_of(model, spec, Training(batch_size=1), 1, **sizes)

    assert need(cohort=50) - need() == 50 * vector
    assert need(cohort=10_000) - need() == (128 << 20) // vector * vector
    assert need(samples=10**9) - need() == 10**9
    room = 40 * vector
    assert need(cohort=40, samples=room, room=room) - need() == 2 * room
    assert need(cohort=41, samples=room + 1, room=room) == need()


def test_a_model_that_looks_at_values_has_no_estimate():
    class Picky(nn.Linear):
        def forward(self, x):
            x = x.flatten(1)
            return super().forward(x if x.sum().item() < 1 else x + 1)

    spec = spec_of("logistic", size=4, channels=1)
    assert need_of(Picky(16, 10), spec, Training(), evaluation_batch=1) is None


def test_a_fraction_that_is_too_small():
    with pytest.raises(ConfigError) as error:
        check(13 * GIB, 80 * GIB, 0.1)
    assert str(error.value) == (
        "--gpus-per-client 0.1: training one client takes an estimated 13.0 GiB of GPU memory, and "
        "0.1 of a GPU with 80.0 GiB is 8.0 GiB; --gpus-per-client 0.2 would fit"
    )
