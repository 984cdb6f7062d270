"""The memory of a GPU that several processes share: a cap for each, and what to do without enough.

Ray counts fractions of a GPU but enforces none of them.
"""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import dataclass

import torch

from fedsim.engine.resources import GIB
from fedsim.errors import ConfigError

CONTEXT = 512 << 20
"""Bytes of GPU memory that a process takes beside its tensors: CUDA context, kernels, handles."""
HEADROOM = 1.1
"""A need is known only up to the allocation that failed, so the advice is a little more."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Usage:
    """The memory of a GPU at a failed allocation, in bytes.

    Args:
        total: of the GPU.
        free: that no process has.
        held: by this process's tensors and caches.
        asked: the allocation that failed.
    """

    total: int
    free: int
    held: int
    asked: int

    @property
    def needed(self) -> int:
        """What the process would have had, with its context."""
        return self.held + self.asked + CONTEXT

    @property
    def others(self) -> int:
        """What other processes have."""
        return max(0, self.total - self.free - self.held - CONTEXT)


def cap(device: torch.device, share: float) -> None:
    """Keeps this process to its share of a GPU; nothing to do on a CPU or with a GPU of its own.

    Args:
        device: where the process trains.
        share: the fraction of the GPU that Ray gave it; 1 or more is a GPU of its own.

    Raises:
        ConfigError: the share does not even hold a CUDA context.
    """
    if device.type != "cuda" or share >= 1:
        return
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(tensor_fraction(total, share), device)


def tensor_fraction(total: int, share: float) -> float:
    """The part of a GPU that is left for tensors in a share of it, 0 < share < 1.

    Raises:
        ConfigError: nothing is left beside the process's CUDA context.
    """
    left = share - CONTEXT / total
    if left <= 0:
        raise ConfigError(
            f"--gpus-per-client {share:g}: that is {share * total / GIB:.2f} GiB of a GPU with "
            f"{total / GIB:.1f} GiB, and a process takes {CONTEXT / GIB:.2g} GiB before its model; "
            f"it must be more than {math.ceil(1e4 * CONTEXT / total) / 1e4:g}"
        )
    return left


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the GPU's memory is used up.

    cuBLAS, cuDNN and the driver say so in a RuntimeError of their own.
    """
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)
        and ("CUDA error: out of memory" in text or "STATUS_ALLOC_FAILED" in text)
    )


def out_of_memory(error: BaseException, share: float, device: torch.device) -> str:
    """What happened on the GPU and what would help, in one line.

    Args:
        error: see :func:`is_out_of_memory`.
        share: the fraction of the GPU that the process was given; 1 or more is a GPU of its own.
        device: a CUDA device.
    """
    free, total = torch.cuda.mem_get_info(device)
    return explain(Usage(total, free, torch.cuda.memory_reserved(device), asked(str(error))), share)


def reason(error: BaseException, share: float, device: torch.device) -> str:
    """What an exception in a client's work says: its type and text, or :func:`out_of_memory`."""
    if device.type == "cuda" and is_out_of_memory(error):
        with contextlib.suppress(RuntimeError):  # where even the question fails
            return out_of_memory(error, share, device)
    return f"{type(error).__name__}: {error}"


def asked(text: str) -> int:
    """The bytes that torch tried to allocate, by its message; 0 where it does not say."""
    found = re.search(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)", text)
    return round(float(found[1]) * UNITS[found[2]]) if found else 0


def explain(usage: Usage, share: float) -> str:
    """The message of :func:`out_of_memory`.

    Args:
        usage: at the failed allocation.
        share: of the GPU; 1 or more is a GPU of its own.
    """
    share = min(share, 1.0)
    text = (
        f"out of GPU memory: {_gib(usage.held)} in use and {_gib(usage.asked)} more asked for, on "
        f"{share:g} of a GPU with {_gib(usage.total)}"
    )
    need = f"one client needs about {_gib(usage.needed)}"
    if usage.needed > usage.total:
        return (
            f"{text}; {need}, too much for this GPU: a smaller train.batch_size, "
            "evaluation.batch_size or model would help"
        )
    if usage.needed <= share * usage.total:
        return (
            f"{text}; {need}, which the share holds, but other processes have {_gib(usage.others)}"
        )
    return f"{text}; --gpus-per-client {_fitting(usage.needed / usage.total):g} would fit: {need}"


def _fitting(fraction: float) -> float:
    """The smallest 1/k that holds a fraction of a GPU and a little more, as Ray counts it."""
    clients = max(1, math.floor(1 / (fraction * HEADROOM)))
    return math.floor(1e4 / clients) / 1e4


def _gib(amount: int) -> str:
    return f"{amount / GIB:.3g} GiB"
