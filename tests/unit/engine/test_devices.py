"""Blocks of tasks: cut by version, named, and updates of pooled samples shared out."""

from __future__ import annotations

import platform
import subprocess
import sys
import warnings
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
import fedsim.engine
from fedsim.config.run import RunConfig
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError
from fedsim.core.types import GIB, ClientUpdate, ModelSpec, RoundContext, Training
from fedsim.engine import devices, registry
from fedsim.engine.blocks import (
    Stacking,
    clients_of,
    in_calls,
    num_calls,
    shared_out,
    tasks_per_call,
)
from fedsim.engine.devices import (
    CONTEXT,
    Findings,
    Kind,
    client_device,
    collected,
    configure,
    forward_passes,
    out_of_memory,
    record,
    tensor_fraction,
    torch_flags,
    trains_on_gpu,
)
from fedsim.engine.footprint import WORKSPACES, PeakMemory, check, need_of
from fedsim.engine.ray import pool
from fedsim.engine.worker import Worker
from fedsim.models import build
from fedsim.testing.rounds import config
from fedsim.training.assemble import prepare, start_of
from tests import seams
from tests.algorithms.training import worker
from tests.commands import clean_environment
from tests.tasks import models, tasks

OLD = RoundContext(round=1, num_rounds=5, num_clients=8, lr=0.1, seed=0)

NEW = replace(OLD, round=2)


def update(client, delta=None):
    delta = np.full(2, client, np.float32) if delta is None else delta
    return ClientUpdate(client_id=client, num_samples=99, num_steps=4, delta=delta)


def test_the_tasks_with_the_most_steps_come_first_and_then_the_smallest_clients():
    own = tasks([4, 0, 2, 1, 3], NEW)
    made = Stacking(2, 10, False).blocks(zip(own, [1, 3, 3, 5, 1], strict=True))
    assert [clients_of(block) for block in made] == [(1, 0), (2, 3), (4,)]
    assert sorted(sum(made, ()), key=own.index) == own


def test_a_block_has_tasks_of_one_version():
    spec = prepare(config("fedavg", "mlp", engine={"client_batch": 3})).spec
    mixed = [*tasks([7, 1, 5, 4], NEW), *tasks([0, 6, 3, 2], OLD)]
    made = spec.blocks(mixed)
    assert [{task.version for task in block} for block in made] == [{1}, {1}, {2}, {2}]
    assert [len(block) for block in made] == [3, 1, 3, 1]
    assert spec.blocks(mixed[::-1]) == made
    assert spec.blocks([]) == []
    older = [block for block in made if block[0].version == 1]
    assert older == spec.blocks(tasks([0, 2, 3, 6], OLD)), "they are cut as if alone"


MB = 1 << 20


@pytest.mark.parametrize(
    ("tasks", "size", "actors", "calls"),
    [
        (50, 6.5, 1, 3),  # 19 tasks of 6.5 MiB make 128 MiB
        (50, 6.5, 4, 4),
        (50, 6.5, 2, 4),  # 38 in the first two calls: one more for each actor
        (5, 6.5, 2, 2),
        (10, 97.6, 2, 10),  # one alone is most of a call
        (8, 300, 1, 8),
        (1000, 0.01, 3, 3),
        (1, 0.01, 3, 3),
    ],
)
def test_calls_carry_so_many_bytes_and_actors_get_equally_many(tasks, size, actors, calls):
    found = num_calls(tasks, int(size * MB), actors)
    assert found == calls
    assert -(-tasks // found) <= tasks_per_call(int(size * MB))


def test_blocks_share_a_call_in_order_and_stay_whole():
    sizes = [1, 2, 3, 7, 1, 1]
    blocks = [tuple(tasks(range(n), NEW)) for n in sizes]
    cut = [[len(block) for block in call] for call in in_calls(blocks, 4)]
    assert cut == [[1, 2], [3], [7], [1, 1]]
    assert [[len(b) for b in call] for call in in_calls(blocks, 1)] == [[n] for n in sizes]
    assert list(in_calls([], 4)) == []


def test_the_update_of_pooled_samples_is_that_of_each_owner():
    work = [*tasks([1], NEW, owners=(1, 5)), *tasks([3, 0], NEW)]
    found = shared_out([update(1), update(3)], work, range(10, 16))
    assert [u.client_id for u in found] == [1, 3, 5]
    assert [u.num_samples for u in found] == [11, 99, 15]
    assert found[0].delta is found[2].delta
    assert [u.num_steps for u in found] == [4, 4, 4]
    assert shared_out([], work, []) == []


@pytest.mark.parametrize("clients", [(0, 1), (1, 0)])
def test_tasks_of_two_versions_start_from_their_own(clients):
    w = worker("fedavg", "mlp")
    start = w.flat.vector()
    sent = models(OLD, start) | models(NEW, start * 2)
    both = [*tasks(clients[:1], OLD), *tasks(clients[1:], NEW)]
    reports, deltas = w.run([(task,) for task in both], sent, {})
    assert [r.version for r in reports] == [1, 2]
    for task, delta in zip(both, deltas, strict=True):
        _, (own,) = w.run([(task,)], {task.version: sent[task.version]}, {})
        assert delta.tobytes() == own.tobytes()


@pytest.mark.integration
def test_an_executor_checks_settings_before_anything_starts(tmp_path, monkeypatch):
    def check_settings(engine):
        raise ConfigError(f"engine.max_retries {engine.max_retries}: at most 2 here")

    monkeypatch.setattr(seams, "check_settings", check_settings, raising=False)
    kind = "tests.seams:make_executor"
    config = RunConfig(data={"name": "mnist"}, engine={"kind": kind})
    with pytest.raises(ConfigError, match=r"^engine\.max_retries 3: at most 2 here$"):
        fedsim.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("rayy", "--engine 'rayy': must be one of ray, .*serial, or module:function .*'ray'"),
        ("worker", "--engine 'worker': must be one of"),
        ("nowhere:make", "engine.kind: 'nowhere' cannot be imported"),
        ("fedsim.engine.serial:mak_executor", "has no function 'mak_executor' .*'make_executor'"),
    ],
)
def test_an_unknown_executor_is_refused_before_the_data_are_read(kind, said, tmp_path):
    config = RunConfig(data={"name": "mnist", "dir": str(tmp_path)}, engine={"kind": kind})
    with pytest.raises(ConfigError, match=said):
        fedsim.run(config, tmp_path / "run")


@pytest.mark.integration
def test_the_built_in_executors_are_those_of_the_files():
    assert {"ray", "serial"} <= set(registry.names())
    for name in registry.names():
        assert callable(registry.load(name))
        registry.check(EngineConfig(kind=name))


def test_flags_come_back():
    deterministic = torch.utils.deterministic
    before = deterministic.fill_uninitialized_memory, torch.get_num_threads()
    restore = torch_flags()
    deterministic.fill_uninitialized_memory = not before[0]
    torch.set_num_threads(before[1] + 1)
    restore()
    assert (deterministic.fill_uninitialized_memory, torch.get_num_threads()) == before


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_precision_and_reproducibility_are_two_settings(precision, deterministic):
    gpu, restore = client_device(gpu=True), torch_flags()
    try:
        configure(1, precision, deterministic, gpu)
        reduced = precision != "float32"
        assert torch.backends.cuda.matmul.allow_tf32 is reduced
        assert torch.backends.cudnn.allow_tf32 is reduced
        assert torch.backends.cudnn.benchmark is not deterministic
        assert torch.are_deterministic_algorithms_enabled() is deterministic
    finally:
        restore()
    context, layout = forward_passes(precision, gpu)
    assert (context is not nullcontext) is (precision == "bf16")
    assert (layout == torch.channels_last) is (precision == "bf16")
    assert forward_passes(precision, client_device(gpu=False)) == (
        nullcontext,
        torch.preserve_format,
    )


@pytest.fixture
def warn_only():
    """Torch warns of operations without a deterministic kernel, as on a GPU."""
    restore = torch_flags()
    torch.use_deterministic_algorithms(True, warn_only=True)
    configure(torch.get_num_threads(), "float32", True, client_device(gpu=False))
    yield
    restore()


def put(*texts):
    """Calls such an operation, and warns of something else."""
    torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    for text in texts:
        warnings.warn(text, stacklevel=1)


def test_operations_without_a_deterministic_kernel_are_collected(warn_only):
    names, shown = set(), warnings.showwarning
    attention = "Memory Efficient attention defaults to a non-deterministic algorithm. To"
    with pytest.warns(UserWarning, match=r"^something else$") as others, collected(names):
        put(attention, "something else")
    assert (names, len(others)) == ({"put_", "Memory Efficient attention"}, 1)
    assert warnings.showwarning is shown


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_they_are_collected_again_in_the_next_run_whatever_python_shows(warn_only):
    for _ in range(2):
        names = set()
        configure(torch.get_num_threads(), "float32", True, client_device(gpu=False))
        with collected(names):
            put()
            put()
        assert names == {"put_"}


def test_what_env_json_says_of_the_device():
    cpu, h200, a100 = Kind("cpu"), Kind("NVIDIA H200", 132), Kind("NVIDIA A100", 108)
    assert record([], "tf32", False, []) == {}
    assert record({cpu}, "tf32", False, [Findings()]) == {
        "name": "cpu",
        "precision": "float32",
        "deterministic": True,
        "nondeterministic": [],
        "uncaptured": {},
    }
    found = [
        Findings(frozenset({"b", "a"}), {"train": "why"}),
        Findings(frozenset({"b"}), {"finetune": "because"}),
    ]
    assert record({h200}, "tf32", False, found) == {
        "name": "NVIDIA H200",
        "multiprocessors": 132,
        "precision": "tf32",
        "deterministic": False,
        "nondeterministic": ["a", "b"],
        "uncaptured": {"finetune": "because", "train": "why"},
    }
    mixed = record({h200, a100}, "bf16", True, [])
    assert mixed["name"] == (
        "NVIDIA A100 with 108 multiprocessors, NVIDIA H200 with 132 multiprocessors"
    )
    assert "multiprocessors" not in mixed


@pytest.mark.parametrize(
    ("engine", "gpu_here", "found"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"address": "local"}, True, True),
        ({"address": "auto"}, True, False),
        ({"gpus_per_client": 0}, True, False),
        ({"gpus_per_client": 0.5, "address": "auto"}, False, True),
        ({"kind": "serial"}, True, False),
        ({"kind": "serial", "gpus_per_client": 1}, False, True),
    ],
)
def test_whether_clients_train_on_gpus(engine, gpu_here, found, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    assert trains_on_gpu(EngineConfig(**engine)) is found


FAULTS = """
import resource
from fedsim.engine.devices import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        bytearray(b"x") * (96 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

default = faults()
keep_freed_memory()
faults()
print(default, faults())
"""


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator")
def test_freed_memory_is_taken_again():
    run = subprocess.run(
        [sys.executable, "-c", FAULTS],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    default, kept = map(int, run.stdout.split())
    # 96 MiB are 48 huge pages or 24576 small ones, twenty times
    assert default >= 20 * 48
    assert kept < 48


def test_tensors_get_the_share_less_what_the_process_itself_takes():
    assert tensor_fraction(16 * GIB, 0.25) == 0.25 - 0.5 / 16
    with pytest.raises(ConfigError, match=r"^--gpus-per-client 0\.03: .*") as error:
        tensor_fraction(16 * GIB, 0.03)
    least = float(str(error.value).rpartition(" ")[2])
    assert tensor_fraction(16 * GIB, least + 1e-4) > 0


class Driver:
    """What torch's Python code asks of its compiled part, on a machine with one GPU of 16 GiB.

    The functions of ``torch.cuda`` themselves are torch's own, with their checks of arguments.
    """

    def __init__(self, monkeypatch):
        self.caps = []
        numbers = {"total_memory": 16 * GIB, "multi_processor_count": 132}
        properties = SimpleNamespace(name="NVIDIA H200", **numbers)
        stats = {"reserved_bytes": {"all": {"current": 9 * GIB}}}
        runtime = SimpleNamespace(cudaMemGetInfo=lambda index: (4 * GIB, 16 * GIB))
        for module in (torch.cuda, torch.cuda.memory):
            monkeypatch.setattr(module, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
        replaced = {
            (torch.cuda, "_get_device_properties"): lambda index: properties,
            (torch._C, "_cuda_setMemoryFraction"): lambda *cap: self.caps.append(cap),
            (torch._C, "_cuda_memoryStats"): lambda index: stats,
        }
        for (module, name), function in replaced.items():
            monkeypatch.setattr(module, name, function, raising=False)


@pytest.fixture
def driver(monkeypatch):
    return Driver(monkeypatch)


@pytest.mark.parametrize(
    ("gpu", "share", "caps"),
    [
        (False, 0.5, []),
        *((True, whole, []) for whole in (1.0, 2.0)),
        *((True, 1 / n, [(1 / n - 1 / 32, 0)]) for n in (2, 4, 8, 16)),
    ],
)
def test_only_a_shared_gpu_is_capped(driver, gpu, share, caps):
    devices.limit_memory(devices.client_device(gpu), share)
    assert driver.caps == caps


def test_a_client_actor_starts_on_a_fraction_of_a_gpu(driver, monkeypatch):
    actor, worker, check = pool.ClientActor(), mock.Mock(), mock.Mock()
    context = SimpleNamespace(get_assigned_resources=lambda: {"GPU": 0.5})
    monkeypatch.setattr(pool, "Worker", worker)
    monkeypatch.setattr(pool.footprint, "check_worker", check)
    monkeypatch.setattr(pool.ray, "get_gpu_ids", lambda: ["3"])
    monkeypatch.setattr(pool.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(pool.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: None)
    assert actor.build("spec") == (devices.Kind("NVIDIA H200", 132), "127.0.0.1")
    assert driver.caps == [(0.5 - 1 / 32, 0)]
    worker.assert_called_once_with("spec", torch.device("cuda", 0), 0.5)
    check.assert_called_once_with(worker.return_value)


@pytest.mark.parametrize(
    ("total", "held", "message", "share", "end"),
    [
        (80, 9, "Tried to allocate 3.00 GiB. GPU 0", 0.125, "; --gpus-per-client 0.2 would fit"),
        (80, 9, "Tried to allocate 1024.0 MiB.", 0.125, "; --gpus-per-client 0.1666 would fit"),
        (80, 69, "CUDA error: out of memory", 0.5, "; --gpus-per-client 1 would fit"),
        (16, 15, "Tried to allocate 2.00 GiB.", 1.0, "evaluation.batch_size or model would help"),
        (80, 8, "Tried to allocate 2.00 GiB.", 2.0, "of which other processes have the rest"),
    ],
)
def test_what_would_help_where_memory_runs_out(total, held, message, share, end):
    text = out_of_memory(total * GIB, held * GIB, message, share)
    assert text.startswith(f"out of GPU memory: {held} GiB in use and ")
    assert text.endswith(end)


def test_the_reason_of_a_failure(driver):
    on_gpu, on_cpu = devices.client_device(True), devices.client_device(False)
    for error in (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
    ):
        assert "--gpus-per-client" in devices.reason(error, 0.125, on_gpu)
        assert "--gpus-per-client" not in devices.reason(error, 0.125, on_cpu)
    for error in (ValueError("on purpose"), RuntimeError("CUDA error: an illegal memory access")):
        assert devices.reason(error, 0.125, on_gpu) == f"{type(error).__name__}: {error}"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_capped_process_runs_out_at_its_share():
    device = torch.device("cuda", 0)
    total = torch.cuda.get_device_properties(device).total_memory
    share = 4 * GIB / total
    devices.limit_memory(device, share)
    held = []
    try:
        held += [torch.empty(GIB, dtype=torch.uint8, device=device) for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError) as error:
            torch.empty(GIB, dtype=torch.uint8, device=device)
        text = devices.reason(error.value, share, device)
    finally:
        held.clear()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    assert "3 GiB in use and 1 GiB more asked for" in text
    assert "would fit" in text


CTX = RoundContext(round=0, num_rounds=2, num_clients=10, lr=0.1, seed=0)


def spec_of(name, size=32, channels=3, classes=10):
    return ModelSpec(name=name, num_classes=classes, in_channels=channels, image_size=size)


def test_the_parts_of_a_linear_model():
    spec = ModelSpec(name="logistic", num_classes=256, in_channels=1, image_size=32)
    model = build(spec, seed=0)
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
    model = build(spec, seed=0)
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
