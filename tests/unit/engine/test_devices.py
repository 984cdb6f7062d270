"""What a process of fedsim changes in torch and in its allocator, and that torch gets it back."""

from __future__ import annotations

import platform
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from fedsim.engine.devices import client_device, configure, forward_passes, torch_flags
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
