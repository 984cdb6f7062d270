"""The signs of each tensor times the mean magnitude of its entries.

``C(v) = |v|_1 / n sign(v)`` with sign(0) = 1, so that a sign is one bit; a contraction:
``|v - C(v)|^2 = |v|_2^2 - |v|_1^2 / n`` (Karimireddy et al., 2019, arXiv:1901.09847, Sec. 4). A
message has a scale for each tensor and a bit for each entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.compressors.base import Compressor, Feedback, Message
from fedsim.core.types import Vector


@dataclass(frozen=True)
class ScaledSign:
    """Scaled signs."""

    def __call__(self, x: Vector, tensors: Sequence[slice], draw: np.random.Generator) -> Message:
        sent = np.empty_like(x)
        for part in tensors:
            v = x[part]
            scale = np.float32(np.mean(np.abs(v), dtype=np.float64))
            sent[part] = np.where(v < 0, -scale, scale)
        return Message(sent, len(tensors), len(x))


def build(error_feedback: Feedback = "ef14") -> Compressor:
    """Scaled signs."""
    return Compressor(ScaledSign(), error_feedback)
