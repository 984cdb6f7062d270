"""FedGH as in the released FedLD code: a pairwise hierarchy per tensor (Zeng-Shuang/FedLD).

    round 0: the plain mean. Later, with h the average of past outputs: while more than two vectors
    are left, sort by <g, h> descending, pair largest with smallest, ..., a middle one alone;
    a pair with <a, b> < 0 becomes (a - <a,b>/(||b||^2 + eps) b) + (b - <a,b>/(||a||^2 + eps) a),
    any other a + b. The last two likewise, the second correction seeing the corrected first.
    step = sum / number of users

``divide_by="population"`` is the released code: under sampling the step is m/K times too small.

:client: plain SGD
:server: updates merged in pairs along their history, tensor by tensor
:state: server an average of its past steps (D)
:sends: nothing more
:public code: this is one; it divides by all clients, so that sampling shrinks the step
    (``divide_by=cohort`` does not)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.core.types import F64, Array, RoundContext
from fedsim.server import HistoryGram, Server

EPS = 1e-7


@dataclass(frozen=True)
class Hierarchy:
    """The pairwise hierarchy of one tensor; vectors are rows of coefficients c, <a, b> = a K b."""

    divide_by: Literal["population", "cohort"]

    def __call__(self, gram: F64, history: Array | None, dots: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,) from K (m, m) and <g_i, h> (m,)."""
        m = len(gram)
        if history is None:
            return np.full(m, 1.0 / m)
        rows = list(np.eye(m))
        while len(rows) > 2:
            rows.sort(key=lambda c: -float(c @ dots))
            half = len(rows) // 2
            pairs = zip(rows[:half], reversed(rows[-half:]), strict=True)
            rows = [merge(a, b, gram) for a, b in pairs] + rows[half : len(rows) - half]
        total = merge(rows[0], rows[1], gram, sequential=True) if m > 1 else rows[0]
        return total / (ctx.num_clients if self.divide_by == "population" else m)


def merge(a: F64, b: F64, gram: F64, *, sequential: bool = False) -> F64:
    """The sum of two coefficient rows (m,) without their conflict."""
    inner = float(a @ gram @ b)
    if inner >= 0:
        return a + b
    first = a - inner / (b @ gram @ b + EPS) * b
    onto = first if sequential else a
    return first + b - inner / (onto @ gram @ onto + EPS) * onto


def build(divide_by: Literal["population", "cohort"] = "population") -> Algorithm:
    """FedGH of the released FedLD code.

    Args:
        divide_by: all clients (the released code), or those of the cohort.
    """
    return Algorithm(server=Server(HistoryGram(Hierarchy(divide_by))))
