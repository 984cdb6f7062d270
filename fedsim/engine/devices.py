"""Torch on a device: the flags that fix a result's bits, and the memory limit on a shared GPU,
since Ray counts fractions of a GPU but enforces none of them."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from fedsim.client.context import Precision
from fedsim.config.sections import EngineConfig
from fedsim.core.errors import ConfigError, described
from fedsim.core.settings import Arithmetic
from fedsim.core.types import GIB

WORKSPACE_CONFIG = ":4096:8"
"""Of cuBLAS, with which the sums of its products have a fixed order."""
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h: how much is kept, how many blocks are not
_sdp: Any = torch.backends.cuda  # of attention, its fused kernels
_FUSED_ATTENTION: Mapping[Callable[[], bool], Callable[[bool], None]] = {
    _sdp.flash_sdp_enabled: _sdp.enable_flash_sdp,
    _sdp.mem_efficient_sdp_enabled: _sdp.enable_mem_efficient_sdp,
    _sdp.cudnn_sdp_enabled: _sdp.enable_cudnn_sdp,
}
_deterministic: Any = torch.utils.deterministic  # a module with a property, hidden from mypy


def client_device(gpu: bool) -> torch.device:
    """The device of this process: its first visible GPU, with its index, or the CPU."""
    return torch.device("cuda", 0) if gpu else torch.device("cpu")


def trains_on_gpu(engine: EngineConfig) -> bool:
    """Whether clients train on GPUs, by the configuration and the kind of device alone.

    Of a cluster nothing is known before it is joined; unset, the serial engine takes the CPU.
    """
    if engine.gpus_per_client is not None:
        return engine.gpus_per_client > 0
    here = engine.kind != "serial" and engine.address in (None, "local")
    return here and torch.cuda.is_available()


def server_device(engine: EngineConfig) -> torch.device | None:
    """The GPU on which the server computes, None for the CPU; see ``engine.server_device``. A
    ConfigError where it is to be a GPU, and torch finds none here."""
    clients_on_cpu = engine.gpus_per_client == 0 or (
        engine.kind == "serial" and engine.gpus_per_client is None
    )
    if engine.server_device == "cpu" or (engine.server_device == "auto" and clients_on_cpu):
        return None
    if torch.cuda.is_available():
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = WORKSPACE_CONFIG
        return client_device(gpu=True)
    if engine.server_device == "gpu":
        raise ConfigError("engine.server_device=gpu: torch finds no GPU here")
    return None


def configure(
    threads: int, precision: Arithmetic, deterministic: bool, device: torch.device
) -> None:
    """Fixes what changes bits: threads on the CPU; TF32, autotuning and atomics on a GPU.

    TF32 is as reproducible as float32. With deterministic algorithms torch would also write NaN
    into fresh memory before each use, which costs a pass over every intermediate result.
    """
    torch.set_num_threads(threads)
    warnings.filterwarnings("always", message=NO_KERNEL)  # by each worker, whoever met it first
    if device.type == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = WORKSPACE_CONFIG
        torch.backends.cuda.matmul.allow_tf32 = precision != "float32"
        torch.backends.cudnn.allow_tf32 = precision != "float32"
        torch.backends.cudnn.benchmark = not deterministic
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        _deterministic.fill_uninitialized_memory = False
        for enable in _FUSED_ATTENTION.values():  # whose backward passes add up by atomics
            enable(not deterministic)


def forward_passes(
    precision: Arithmetic, device: torch.device
) -> tuple[Precision, torch.memory_format]:
    """The context of forward passes, and how images lie in memory: with bf16, both faster on a GPU.

    Weights and updates stay float32 vectors in the usual order. With channels last, a model of your
    own must use ``flatten`` or ``reshape`` where it would use ``view``.
    """
    if precision == "bf16" and device.type == "cuda":
        return partial(torch.autocast, "cuda", torch.bfloat16), torch.channels_last
    return nullcontext, torch.preserve_format


def keep_freed_memory() -> None:
    """Lets this process keep large blocks that it frees, for the next step and client to take.

    Else glibc gives them back, and page faults are a quarter of the time of a short training. For
    processes of fedsim's own, which stay at their peak size; without glibc nothing happens.
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
    fused = {enabled: enabled() for enabled in _FUSED_ATTENTION}

    def restore() -> None:
        torch.set_num_threads(threads)
        filters = cast(list[Any], warnings.filters)
        filters[:] = [each for each in filters if getattr(each[1], "pattern", "") != NO_KERNEL]
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags
        if torch.are_deterministic_algorithms_enabled() != deterministic or (
            torch.is_deterministic_algorithms_warn_only_enabled() != warn_only
        ):  # the call imports torch's compiler, which takes seconds
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        _deterministic.fill_uninitialized_memory = fill
        for enabled, enable in _FUSED_ATTENTION.items():
            if enabled() != fused[enabled]:
                enable(fused[enabled])

    return restore


CONTEXT = 512 << 20
"""Bytes of GPU memory that a process takes beside its tensors: CUDA context, kernels, handles."""
HEADROOM = 1.1
"""A need is known only up to the allocation that failed, so a little more is suggested."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def limit_memory(device: torch.device, fraction: float) -> None:
    """Keeps this process to its fraction of a GPU; does nothing on a CPU or with a whole GPU."""
    if device.type == "cuda" and fraction < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(tensor_fraction(total, fraction), device)


def tensor_fraction(total: int, fraction: float) -> float:
    """The part of a GPU that is left for tensors in a fraction of it; a ConfigError where that is
    nothing beside the process's CUDA context."""
    left = fraction - CONTEXT / total
    if left <= 0:
        raise ConfigError(
            f"--gpus-per-client {fraction:g}: a process takes {CONTEXT / GIB:.2g} GiB before its "
            f"model; it must be more than {math.ceil(1e4 * CONTEXT / total) / 1e4:g}"
        )
    return left


def reason(error: BaseException, fraction: float, device: torch.device) -> str:
    """What an exception in a client's work says, in one line."""
    full = isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError)  # of cuBLAS, cuDNN and the driver
        and re.search("CUDA error: out of memory|STATUS_ALLOC_FAILED", str(error))
    )
    if device.type == "cuda" and full:
        with contextlib.suppress(RuntimeError):  # where even the question fails
            total, held = total_memory() or 0, torch.cuda.memory_reserved(device)
            return out_of_memory(total, held, str(error), fraction)
    return described(error)


def out_of_memory(total: int, held: int, message: str, fraction: float) -> str:
    """What happened on a GPU of ``total`` bytes, of which this process has ``fraction`` and holds
    ``held`` bytes, and what would help; torch's ``message`` says what it asked for."""
    fraction = min(fraction, 1.0)
    asked = re.search(r"Tried to allocate ([\d.]+) (bytes|[KMGT]iB)", message)
    requested = round(float(asked[1]) * UNITS[asked[2]]) if asked else 0
    need = held + requested + CONTEXT
    text = (
        f"out of GPU memory: {held / GIB:.3g} GiB in use and {requested / GIB:.3g} GiB more asked "
        f"for, on {fraction:g} of a GPU with {total / GIB:.3g} GiB"
    )
    if need > total:
        return f"{text}; a smaller train.batch_size, evaluation.batch_size or model would help"
    if need <= fraction * total:
        return f"{text}, of which other processes have the rest"
    clients = max(1, math.floor(total / (need * HEADROOM)))  # on the GPU; Ray cuts off at 1e-4
    return f"{text}; --gpus-per-client {math.floor(1e4 / clients) / 1e4:g} would fit"


def total_memory() -> int | None:
    """Bytes of this machine's first GPU; None where torch finds none."""
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


@dataclass(frozen=True)
class Kind:
    """A kind of device; ``multiprocessors`` are those of a GPU."""

    name: str
    multiprocessors: int | None = None

    @classmethod
    def of(cls, device: torch.device) -> Kind:
        """That of a device of this machine."""
        if device.type != "cuda":
            return cls("cpu")
        properties = torch.cuda.get_device_properties(device)
        return cls(properties.name, properties.multi_processor_count)

    def __str__(self) -> str:
        number = self.multiprocessors
        return self.name if number is None else f"{self.name} with {number} multiprocessors"


@dataclass(frozen=True)
class Findings:
    """What showed in a worker's calls so far."""

    nondeterministic: frozenset[str] = frozenset()
    """Operations without a deterministic kernel on this device."""
    uncaptured: Mapping[str, str] = field(default_factory=dict)
    """What was not captured as a CUDA graph, and why."""


def record(
    kinds: Collection[Kind],
    precision: Arithmetic,
    deterministic: bool,
    findings: Collection[Findings],
) -> dict[str, object]:
    """What env.json says as ``device`` of the workers; empty where none has started.

    Several ``kinds`` are there with ``engine.allow_mixed_devices``. A CPU computes in float32, and
    its kernels repeat their bits.
    """
    if not kinds:
        return {}
    first, *others = kinds
    names = sorted(map(str, kinds)) if others else [first.name]
    numbers = {kind.multiprocessors for kind in kinds} - {None}
    entry: dict[str, object] = {"name": ", ".join(names)}
    if numbers and not others:
        entry["multiprocessors"] = first.multiprocessors
    return entry | {
        "precision": precision if numbers else "float32",
        "deterministic": deterministic or not numbers,
        "nondeterministic": sorted({name for each in findings for name in each.nondeterministic}),
        "uncaptured": dict(sorted(pair for each in findings for pair in each.uncaptured.items())),
    }


NO_KERNEL = (
    r"(?:(\S+) does not have a deterministic implementation"
    r"|(.+ attention) defaults to a non-deterministic algorithm)"
)
"""How the warnings begin by which torch names operations without a deterministic kernel."""


@contextmanager
def collected(names: set[str]) -> Iterator[None]:
    """Adds to ``names`` the operations without a deterministic kernel that are called within.

    Torch warns of them; other warnings are shown as they would be. For one thread at a time.
    """
    shown = warnings.showwarning

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        if match := re.match(NO_KERNEL, str(message), re.IGNORECASE):
            names.add(match[1] or match[2])
        else:
            shown(message, *args, **kwargs)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = shown
