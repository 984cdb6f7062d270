"""How much memory of a GPU a client's training needs, by one step and one evaluation batch on
PyTorch's meta device, where tensors have sizes and no values; no GPU is needed."""

import copy
import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedsim.client.criterion import MarginControl
from fedsim.core.errors import ConfigError
from fedsim.core.machine import BLOCK_COPIES
from fedsim.core.types import GIB, ModelSpec, Training
from fedsim.engine.blocks import tasks_per_call
from fedsim.engine.devices import CONTEXT, fitting, total_memory
from fedsim.engine.transfer import KEPT
from fedsim.engine.worker import Worker
from fedsim.models.registry import zeros

ROUNDED_TO = 512
"""Bytes: PyTorch's allocator hands out memory of a GPU in such steps."""
_OF_A_BLOCK = BLOCK_COPIES - 2
"""Of the vectors of each client of a block, those that a step's trace and the optimiser lack."""
WORKSPACES = 256 << 20
"""Bytes that cuBLAS and cuDNN take for themselves beside the context."""


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are made within it and still alive; ``peak`` is the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address not in self._storages:
            size = math.ceil(storage.nbytes() / ROUNDED_TO) * ROUNDED_TO
            self._storages[address] = weakref.ref(storage, partial(self._freed, address, size))
            self._alive += size
            self.peak = max(self.peak, self._alive)

    def _freed(self, address: int, size: int, _: object) -> None:
        del self._storages[address]
        self._alive -= size


def need_of(
    model: nn.Module,
    spec: ModelSpec,
    training: Training,
    evaluation_batch: int,
    *,
    clients: int = 1,  # that train together as a block
    cohort: int = 0,  # clients whose updates a call may have
    samples: int = 0,  # bytes of all images and labels
    room: float = math.inf,  # bytes up to which samples, or updates, stay there
) -> int | None:
    """Bytes of GPU memory that a process needs; None where a model cannot be traced without values.

    Too much by at most the largest gradient of each client of a block, which the trace holds while
    it becomes ``p.grad``. A copy of the model is traced.
    """
    traced = copy.deepcopy(model).to("meta")
    tensors = [*traced.parameters(), *traced.buffers()]
    states = 2 if training.optimizer == "adamw" else int(training.momentum > 0)
    trained = sum(p.nbytes for p in traced.parameters() if p.requires_grad)
    vector = sum(t.nbytes for t in tensors)
    updates = vector * min(cohort, max(clients, tasks_per_call(vector)))
    fixed = (1 + KEPT) * vector + sum(kept for kept in (updates, samples) if kept <= room)
    extra = states * trained + (_OF_A_BLOCK * vector if clients > 1 else 0)
    try:
        with PeakMemory() as step:
            logits, labels = _outputs(traced.train(), spec, training.batch_size)
            MarginControl()(logits, labels).backward()
            del logits
        with PeakMemory() as evaluation, torch.no_grad():
            _outputs(traced.eval(), spec, evaluation_batch)
    except (RuntimeError, NotImplementedError):  # it looks at values, which are not there
        return None
    return CONTEXT + WORKSPACES + fixed + max(clients * (extra + step.peak), evaluation.peak)


def _outputs(model: nn.Module, spec: ModelSpec, batch: int) -> tuple[Tensor, Tensor]:
    """Logits (B, C) or (B, T, C) and labels of a batch without values."""
    one = zeros(spec)[:1].to("meta")
    logits = model(one.expand(batch, *one.shape[1:]).contiguous())
    shape = (batch, *logits.shape[2:]) if spec.per_pixel else logits.shape[:-1]
    return logits, torch.zeros(shape, dtype=torch.long, device="meta")


def check(need: int, total: int, fraction: float) -> None:
    """Refuses a fraction of a GPU of ``total`` bytes that does not hold a client's training, by a
    ConfigError that names one that would."""
    share = min(fraction, 1.0)
    if need <= share * total:
        return
    text = (
        f"--gpus-per-client {fraction:g}: training one client takes an estimated "
        f"{need / GIB:.1f} GiB of GPU memory, and {share:g} of a GPU with {total / GIB:.1f} GiB is "
        f"{share * total / GIB:.1f} GiB"
    )
    if need > total:
        raise ConfigError(
            f"{text}; a smaller train.batch_size, evaluation.batch_size or model would help"
        )
    raise ConfigError(f"{text}; --gpus-per-client {fitting(need, total):g} would fit")


def check_worker(worker: Worker) -> None:
    """:func:`check` of a worker's clients and its fraction of a GPU."""
    spec, total = worker.spec, total_memory()
    batch = min(spec.training.batch_size, max(worker.sizes))
    cohort = len(spec.partition.participants)
    need = need_of(
        worker.flat.model,
        spec.model,
        replace(spec.training, batch_size=batch),
        spec.batch_size,
        clients=1 if spec.stacking is None else min(spec.stacking.clients, cohort),
        cohort=cohort,
        samples=worker.samples.nbytes,
        room=worker.room,
    )
    if need is not None and total is not None:
        check(need, total, worker.gpu_fraction)
