"""What lies on a worker's device, and what travels between it and the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedsim.core.layout import as_tensor
from fedsim.core.types import Array

PART = 4
"""Samples, and the updates of a call, may each take one part in so many of a process's share."""
KEPT = 2
"""Vectors that stay on a device: the model that is trained, and the one that is evaluated."""


def room(total: int, share: float) -> int:
    """Bytes that the samples, or the updates of a call, may take of a GPU.

    Args:
        total: bytes of the GPU.
        share: the process's fraction of it; more than 1 counts as 1.
    """
    return int(total * min(share, 1.0)) // PART


class Samples:
    """The samples of a data set, on the device where they fit.

    Others stay in host memory, and those of a client are copied when it is its turn. ``nbytes`` is
    what they take, wherever they are. ``inputs`` and ``labels`` give those of indices (n,) that are
    where ``x`` and ``y`` are, on the device.

    Args:
        x: (N, ...) images, features or tokens, in host memory.
        y: (N,) or (N, T) labels there.
        device: where they are wanted.
        most: bytes that they may take there; None where the device's memory is the host's.
    """

    def __init__(self, x: Tensor, y: Tensor, device: torch.device, most: int | None) -> None:
        self.nbytes = x.nbytes + y.nbytes
        resident = most is not None and self.nbytes <= most
        self.x, self.y = (x.to(device), y.to(device)) if resident else (x, y)
        travel = most is not None and not resident
        self.inputs: Callable[[Tensor], Tensor]
        self.labels: Callable[[Tensor], Tensor]
        self.inputs, self.labels = (
            Staged(s, device) if travel else partial(s.index_select, 0) for s in (self.x, self.y)
        )

    def __call__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Those of ``index`` (n,), of the host, and their labels, on the device."""
        index = index.to(self.x.device, non_blocking=True)
        return self.inputs(index), self.labels(index)


class Staged:
    """Samples in host memory that are gathered in a buffer, from which they go to a device.

    The buffer is pinned and the copy has a stream of its own, so that it need not wait for the
    training that is queued on the device.
    """

    def __init__(self, samples: Tensor, device: torch.device) -> None:
        self._samples, self._device = samples, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._buffer = samples.new_empty((0, *samples.shape[1:]))

    def __call__(self, index: Tensor) -> Tensor:
        """Those of ``index`` (n,) on the device."""
        if self._stream is not None:
            self._stream.synchronize()  # the last copy from the buffer
        if len(index) > len(self._buffer):
            shape, pinned = (len(index), *self._samples.shape[1:]), self._stream is not None
            self._buffer = torch.empty(shape, dtype=self._samples.dtype, pin_memory=pinned)
        gathered = torch.index_select(self._samples, 0, index, out=self._buffer[: len(index)])
        if self._stream is None:
            return gathered.clone()
        with torch.cuda.stream(self._stream):
            copy = gathered.to(self._device, non_blocking=True)
        here = torch.cuda.current_stream(self._device)
        here.wait_stream(self._stream)
        copy.record_stream(here)  # its memory belongs to the stream of copies
        return copy


class Vectors:
    """Global vectors on a device, each copied once; the last :data:`KEPT` stay.

    A version number does not identify a vector. Its memory does while it is held here, as Ray makes
    another array of the same shared memory for each call. Vectors are never written to.

    Args:
        device: where they are wanted.
        apart: whether its memory is another than the host's, so that they are copied.
    """

    def __init__(self, device: torch.device, apart: bool) -> None:
        self._device, self._apart = device, apart
        self._held: list[tuple[Array, Tensor]] = []

    def __call__(self, vector: Array) -> Tensor:
        """The vector (D,) on the device; never write to it."""
        if not self._apart:
            return as_tensor(vector).to(self._device)
        same = [pair for pair in self._held if _same_memory(pair[0], vector)]
        if not same:
            same = [(vector, as_tensor(vector).to(self._device, copy=True))]
        others = [pair for pair in self._held if pair is not same[0]]
        self._held = [same[0], *others[: KEPT - 1]]
        return same[0][1]


def _same_memory(held: Array, vector: Array) -> bool:
    """Whether an array that is held is another one; writable memory may have changed."""
    if held is vector:
        return True
    alike = (held.shape, held.strides, held.dtype) == (vector.shape, vector.strides, vector.dtype)
    fixed = not (held.flags.writeable or vector.flags.writeable)
    return alike and fixed and held.ctypes.data == vector.ctypes.data


def to_host(rows: Tensor) -> Array:
    """The deltas (k, D) of a call in host memory, copied at once from a device."""
    if rows.device.type == "cpu":
        return np.asarray(rows.numpy())
    return np.asarray(torch.empty(rows.shape, pin_memory=True).copy_(rows).numpy())
