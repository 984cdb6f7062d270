"""How torch computes in this process: what fixes the bits of a result, what trades them for speed.

``torch.compile`` is not among the means of ``--fast``: it takes longer than the whole training of
most clients.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from fedsim.local import Precision

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h: how much is kept, how many blocks are not
_deterministic: Any = torch.utils.deterministic  # a module with a property, hidden from mypy


def configure(threads: int, fast: bool, device: torch.device) -> None:
    """Fixes what changes bits: threads on the CPU; TF32, autotuning and atomics on a GPU.

    Deterministic algorithms also write NaN into fresh memory before each use, to show reads of what
    was never written; that is switched off, it costs a pass over every intermediate result.
    """
    torch.set_num_threads(threads)
    if device.type == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cuda.matmul.allow_tf32 = fast
        torch.backends.cudnn.allow_tf32 = fast
        torch.backends.cudnn.benchmark = fast
        torch.use_deterministic_algorithms(not fast, warn_only=True)
        _deterministic.fill_uninitialized_memory = False


def precision(fast: bool, device: torch.device) -> tuple[Precision, torch.memory_format]:
    """The context of forward passes, and how images lie in memory: both faster on a GPU.

    Weights and updates stay float32 vectors in the usual order. With channels last, a model of your
    own must use ``flatten`` or ``reshape`` where it would use ``view``.
    """
    if fast and device.type == "cuda":
        return partial(torch.autocast, "cuda", torch.bfloat16), torch.channels_last
    return nullcontext, torch.preserve_format


def keep_freed_memory() -> None:
    """Lets this process keep large blocks that it frees, for the next step and client to take.

    By default glibc gives them back, and every gradient of a large model is paid for with page
    faults: a quarter of the time of a short training. The process then stays at its peak size. For
    processes of fedsim's own; without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


def torch_flags() -> Callable[[], None]:
    """Remembers what a worker changes in this process; the result restores it."""
    threads = torch.get_num_threads()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _deterministic.fill_uninitialized_memory

    def restore() -> None:
        torch.set_num_threads(threads)
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        _deterministic.fill_uninitialized_memory = fill

    return restore
