"""The cores, GPUs and memory of this machine, and what a process that trains takes of it."""

import math
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROCESS = 460 << 20
"""Bytes that a process takes once torch (a CUDA build) is imported and has trained a step."""
MODEL_COPIES = 4
"""Vectors of the model that a process holds at most: weights, gradients, momentum, update."""
BLOCK_COPIES = 5
"""Vectors that each client of a block takes beside these: start, weights, momentum, gradient, and
the buffer that the next gradient is made in."""

GPU_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""One of these is there on Linux where torch can find a GPU: of NVIDIA, below Windows, of AMD."""


def processor() -> dict[str, str]:
    """This machine's processor and torch's instruction set: on both the last digits depend."""
    import torch

    entries: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.exists():
        pairs = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
        entries = {key.strip(): value.strip() for key, _, value in reversed(list(pairs))}
    return {
        "architecture": platform.machine(),
        "model": entries.get("model name") or platform.processor() or "unknown",
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }


KIND = {
    "name": "device",
    "multiprocessors": "multiprocessors",
    "precision": "precision",
    "server": "server's device",
}
"""What makes the kind of device, on which results depend, and how messages name it. CUDA's
generators draw by the number of multiprocessors."""


def kind_of(part: Mapping[str, Any]) -> dict[str, Any]:
    """The kind of device by a part of env.json or by a checkpoint, as far as it is known."""
    device = part.get("device")  # a name, of an executor of the user's
    described = device if isinstance(device, Mapping) else {"name": device}
    described = {"server": part.get("server_device", "cpu"), **described}
    return {key: described[key] for key in KIND if described.get(key) not in (None, "")}


def other_kind(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In what two kinds of device differ, of what is known of both; empty where in nothing."""
    return "; ".join(
        f"{word} {now[key]} instead of {before[key]}"
        for key, word in KIND.items()
        if key in before and key in now and before[key] != now[key]
    )


def num_gpus() -> int:
    """The GPUs that torch can use; torch, which takes seconds, is imported only to count some."""
    if sys.platform == "linux" and not any(Path(file).exists() for file in GPU_FILES):
        return 0
    import torch

    return torch.cuda.device_count()


def model_copies(client_batch: int | str) -> int:
    """The vectors of a process that trains blocks of this size; ``auto`` makes small blocks."""
    block = client_batch if isinstance(client_batch, int) and client_batch > 1 else 0
    return MODEL_COPIES + BLOCK_COPIES * block


def cores() -> int:
    """How many processor cores this process may use."""
    affinity = hasattr(os, "sched_getaffinity")
    return (len(os.sched_getaffinity(0)) if affinity else os.cpu_count()) or 1


def available_memory() -> float:
    """Bytes that new processes can have here; infinite where the system does not say it."""
    path = Path("/proc/meminfo")
    if not path.exists():
        return math.inf
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    return float(lines["MemAvailable"].split()[0]) * 1024
