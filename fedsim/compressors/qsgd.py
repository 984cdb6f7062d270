"""Stochastic rounding to levels (Alistarh et al., NeurIPS 2017, arXiv:1610.02132, Sec. 3.1).

Of each tensor v with n entries, ``C(v)_i = |v|_2 sign(v_i) l / s`` where l is the integer below or
above ``a = s |v_i| / |v|_2``, the one above with probability a - floor(a). Unbiased,
``E |C(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2``; zeros stay zeros. A message has a norm for
each tensor, rounded up to a float32, and ceil(log2(2 s + 1)) bits for each entry (the paper's Elias
codes are not used).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.compressors.base import Compressor, Message
from fedsim.core.types import Vector


@dataclass(frozen=True)
class QSGD:
    """``levels`` is s."""

    levels: int

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        sent, chance = np.zeros_like(x), draw.random(len(x))
        for part in tensors:
            v = x[part].astype(np.float64)
            exact = math.sqrt(np.sum(v * v))
            norm = np.float32(exact)
            if norm < exact:
                norm = np.nextafter(norm, np.float32(np.inf))
            if norm > 0:
                a = self.levels * np.abs(v) / np.float64(norm)
                level = np.floor(a)
                level += chance[part] < a - level
                sent[part] = np.sign(v) * level / self.levels * norm
        return Message(sent, len(tensors), len(x) * (2 * self.levels).bit_length())


def build(levels: int = 127) -> Compressor:
    """Rounding to so many levels above zero; no error feedback, since C is no contraction."""
    return Compressor(QSGD(levels))
