"""The updates of a cohort with a copy on a GPU, where inner products and sums are computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.core.layout import as_tensor
from fedsim.core.types import F64, Array
from fedsim.server.columns import LocalColumns

WIDTH = 1 << 16
"""Columns of a block: those of fifty updates in float64 stay in a GPU's second-level cache."""


@dataclass(frozen=True)
class DeviceColumns(LocalColumns):
    """Updates in this process, and on a device as ``matrix`` (m, D).

    As on the CPU products and sums are float64, over blocks of columns that begin at multiples of
    :data:`WIDTH`, added in their order: the same bits on one kind of device. What needs the rows
    themselves, such as rules by column, has those of this process.
    """

    matrix: Tensor

    @classmethod
    def on(
        cls, device: torch.device, rows: Sequence[Array], tensors: Sequence[Tensor] | None = None
    ) -> "DeviceColumns":
        """Copies the rows (D,) to a device; ``tensors`` are the same where some are there now."""
        matrix = torch.empty((len(rows), len(rows[0])), device=device)
        for line, row in zip(matrix, tensors or map(as_tensor, rows), strict=True):
            line.copy_(row)
        return cls(tuple(rows), matrix)

    def products(self, ranges: Sequence[slice], vector: Array | None = None) -> list[F64]:
        m, device = len(self.matrix), self.matrix.device
        totals = torch.zeros((len(ranges), m, m + 1), dtype=torch.float64, device=device)
        beside = None if vector is None else as_tensor(vector).to(device)
        for total, where in zip(totals, ranges, strict=True):
            for start, stop in _blocks(where):
                block = self.matrix[:, start:stop].double()
                total[:, :m] += block @ block.T
                if beside is not None:
                    total[:, m] += block @ beside[start:stop].double()
        return list(totals.cpu().numpy())

    def squares(self, where: slice) -> F64:
        total = torch.zeros(len(self.matrix), dtype=torch.float64, device=self.matrix.device)
        for start, stop in _blocks(where):
            total += self.matrix[:, start:stop].double().square().sum(1)
        return np.asarray(total.cpu().numpy())

    def combine(self, weights: Sequence[F64], ranges: Sequence[slice], out: Array) -> None:
        for c, where in zip(weights, ranges, strict=True):
            coefficients = torch.from_numpy(np.ascontiguousarray(c)).to(self.matrix.device)
            parts = [
                (coefficients @ self.matrix[:, start:stop].double()).float()
                for start, stop in _blocks(where)
            ]
            if parts:
                out[where] = torch.cat(parts).cpu().numpy()


def _blocks(where: slice) -> Iterator[tuple[int, int]]:
    """Start and stop of the blocks of a range, which begin at multiples of :data:`WIDTH`."""
    for edge in range(where.start // WIDTH * WIDTH, where.stop, WIDTH):
        start, stop = max(where.start, edge), min(where.stop, edge + WIDTH)
        if start < stop:
            yield start, stop
