"""k entries drawn uniformly without replacement, times d/k without error feedback.

Then ``E |C(x) - x|^2 = (d/k - 1) |x|^2``, and C is unbiased; else ``E |x - C(x)|^2 = (1 - k/d)
|x|^2``, as error feedback needs it (Stich et al., 2018). A message has the k values alone: which
they are follows from seed, round and client (Konecny et al., 2016, arXiv:1610.05492, random mask).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.compressors.base import Compressor, Feedback, Message, entries
from fedsim.core.settings import Fraction
from fedsim.core.types import Vector


@dataclass(frozen=True)
class RandomK:
    """k entries, or a fraction, times d/k where ``unbiased``."""

    fraction: float
    k: int | None = None
    unbiased: bool = True

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        d = len(x)
        k = entries(self.fraction, self.k, d)
        chosen = draw.choice(d, k, replace=False)
        sent = np.zeros_like(x)
        sent[chosen] = x[chosen] * np.float32(d / k if self.unbiased else 1)
        return Message(sent, k)


def build(
    fraction: Fraction = 0.1, k: int | None = None, error_feedback: Feedback = "none"
) -> Compressor:
    """Random entries."""
    return Compressor(RandomK(fraction, k, unbiased=error_feedback == "none"), error_feedback)
