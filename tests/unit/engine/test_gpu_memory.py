"""Sharing the memory of a GPU: the cap, and what is said where it does not suffice."""

from __future__ import annotations

import re
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from fedsim.core.errors import ConfigError
from fedsim.core.types import GIB
from fedsim.engine import devices
from fedsim.engine.devices import (
    CONTEXT,
    Usage,
    explain,
    is_out_of_memory,
    requested_bytes,
    tensor_fraction,
)
from fedsim.engine.ray import pool


def test_tensors_get_the_share_less_what_the_process_itself_takes():
    assert tensor_fraction(16 * GIB, 0.25) == 0.25 - 0.5 / 16
    assert tensor_fraction(80 * GIB, 0.1) * 80 * GIB + CONTEXT == pytest.approx(8 * GIB)


def test_a_share_that_no_process_fits_into_is_refused():
    with pytest.raises(ConfigError) as error:
        tensor_fraction(16 * GIB, 0.03)
    message = str(error.value)
    assert message.startswith("--gpus-per-client 0.03: that is 0.48 GiB of a GPU with 16.0 GiB")
    least = float(message.rpartition(" ")[2])
    assert tensor_fraction(16 * GIB, least + 1e-4) > 0
    with pytest.raises(ConfigError):
        tensor_fraction(16 * GIB, least - 1e-4)


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


@pytest.mark.parametrize("gpu", [False, True])
def test_every_part_of_torch_takes_the_device(gpu):
    device = devices.client_device(gpu)
    assert device.type == ("cuda" if gpu else "cpu")
    if gpu:
        assert torch.cuda.memory._get_device_index(device) == 0
        assert torch.get_device_module(device) is torch.cuda


def test_a_client_actor_starts_on_a_fraction_of_a_gpu(driver, monkeypatch):
    actor, worker, check = pool.ClientActor(), mock.Mock(), mock.Mock()
    context = SimpleNamespace(
        get_assigned_resources=lambda: {"GPU": 0.5}, get_node_id=lambda: "node"
    )
    monkeypatch.setattr(pool, "with_samples", lambda spec: spec)
    monkeypatch.setattr(pool, "Worker", worker)
    monkeypatch.setattr(pool.footprint, "check_worker", check)
    monkeypatch.setattr(pool.ray, "get_gpu_ids", lambda: ["3"])
    monkeypatch.setattr(pool.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(pool.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: None)
    assert actor.build("spec").device == devices.Kind("NVIDIA H200", 132)
    assert driver.caps == [(0.5 - 1 / 32, 0)]
    worker.assert_called_once_with("spec", torch.device("cuda", 0), 0.5)
    check.assert_called_once_with(worker.return_value)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total", 20 << 20),
        ("CUDA out of memory. Tried to allocate 1.50 GiB. GPU", 3 << 29),
        ("CUDA out of memory. Tried to allocate 512 bytes.", 512),
        ("CUDA error: out of memory", 0),
    ],
)
def test_what_was_asked_for(text, amount):
    assert requested_bytes(text) == amount


def test_what_counts_as_out_of_memory():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))
    assert not is_out_of_memory(ValueError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory"))


def test_the_fraction_that_would_fit():
    text = explain(Usage(80 * GIB, 40 * GIB, 9 * GIB, 3 * GIB), 0.125)
    assert text == (
        "out of GPU memory: 9 GiB in use and 3 GiB more asked for, on 0.125 of a GPU with 80 GiB; "
        "--gpus-per-client 0.2 would fit: one client needs about 12.5 GiB"
    )


@pytest.mark.parametrize("total", [8, 24, 80])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3333, 0.5, 0.9])
@pytest.mark.parametrize("beyond", [0.01, 0.4, 3.0])
def test_the_suggestion_is_a_larger_fraction_that_holds_the_need(total, share, beyond):
    total *= GIB
    held = max(0, int(share * total) - CONTEXT)
    usage = Usage(total, total // 2, held, int(beyond * GIB))
    text = explain(usage, share)
    assert "\n" not in text
    if usage.needed > total:
        assert "too much for this GPU" in text
        return
    [suggested] = map(float, re.findall(r"--gpus-per-client (\S+) would fit", text))
    assert share < suggested <= 1
    assert usage.needed <= suggested * total
    clients = round(1 / suggested)
    assert clients * suggested <= 1, "as many processes as that fit on the GPU"
    assert clients == 1 or usage.needed * devices.HEADROOM > total / (clients + 1)


def test_a_model_that_is_too_large_for_the_gpu():
    text = explain(Usage(16 * GIB, 0, 15 * GIB, 2 * GIB), 1.0)
    assert (
        "one client needs about 17.5 GiB, too much for this GPU: a smaller train.batch_size" in text
    )
    assert "--gpus-per-client" not in text


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_a_gpu_that_others_fill(share):
    usage = Usage(80 * GIB, 1 * GIB, 8 * GIB, 2 * GIB)
    text = explain(usage, share)
    assert text.endswith("which that fraction holds, but other processes have 70.5 GiB")


def test_the_reason_of_a_failure(driver):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has")
    on_gpu, on_cpu = devices.client_device(True), devices.client_device(False)
    usage = Usage(16 * GIB, 4 * GIB, 9 * GIB, 3 * GIB)
    assert devices.reason(error, 0.125, on_gpu) == explain(usage, 0.125)
    assert devices.reason(ValueError("on purpose"), 0.125, on_gpu) == "ValueError: on purpose"
    assert devices.reason(RuntimeError("CUDA error: out of memory"), 1.0, on_cpu).startswith(
        "Runtime"
    )


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
    assert "one client needs about 4.5 GiB" in text
