"""The k entries of the largest magnitude (Stich et al., NeurIPS 2018, arXiv:1809.07599).

``|x - C(x)|^2 <= (1 - k/d) |x|^2``. Of equal ones the first are sent. A message has k values and k
indices of ceil(log2 d) bits; no indices where all are sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.compressors.base import Compressor, Feedback, Message, entries
from fedsim.core.settings import Fraction
from fedsim.core.types import Vector


@dataclass(frozen=True)
class TopK:
    """The largest k, or a fraction."""

    fraction: float
    k: int | None = None

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        d = len(x)
        k = entries(self.fraction, self.k, d)
        if k == d:
            return Message(x, d)
        size = np.abs(x)
        least = np.partition(size, d - k)[d - k]
        chosen = size > least
        chosen[np.flatnonzero(size == least)[: k - np.count_nonzero(chosen)]] = True
        return Message(np.where(chosen, x, np.float32(0)), k, k * (d - 1).bit_length())


def build(
    fraction: Fraction = 0.1, k: int | None = None, error_feedback: Feedback = "ef14"
) -> Compressor:
    """The largest entries."""
    return Compressor(TopK(fraction, k), error_feedback)
