"""What a process of fedsim changes in torch and in its allocator, and that torch gets it back."""

from __future__ import annotations

import platform
import subprocess
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch

from fedsim.config.sections import EngineConfig
from fedsim.engine.devices import (
    Findings,
    Kind,
    client_device,
    collected,
    configure,
    forward_passes,
    record,
    torch_flags,
    trains_on_gpu,
)
from tests.commands import clean_environment


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
