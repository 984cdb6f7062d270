"""FedGH as in the released FedLD code: a pairwise hierarchy per tensor (Zeng-Shuang/FedLD).

    round 0: the plain mean. Later, with h the average of past outputs: while more than two vectors
    are left, sort by <g, h> descending, pair largest with smallest, ..., a middle one alone;
    a pair with <a, b> < 0 becomes (a - <a,b>/(||b||^2 + eps) b) + (b - <a,b>/(||a||^2 + eps) a),
    any other a + b. The last two likewise, the second correction seeing the corrected first.
    step = sum / number of users

``divide_by="population"`` is the released code: under sampling the step is m/K times too small.

Vectors that are opposite to all digits, as any two of different sign are in a tensor of one
element, leave remainders near eps that the last correction divides by eps again. There the numbers
themselves are merged, in a form without cancellation. Longer tensors have no such form in the Gram
matrix: where the last two are opposite to seven digits, the step (1e6 times the updates, mostly
their rounding) has fewer digits than the released code's, which works on the vectors.

:client: plain SGD
:server: updates merged in pairs along their history, tensor by tensor
:state: server an average of its past steps (D)
:sends: nothing more
:public code: this is one; it divides by all clients, so that sampling shrinks the step
    (``divide_by=cohort`` does not)
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

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
        divisor = ctx.num_clients if self.divide_by == "population" else m
        if history.size == 1 and gram.min() < 0:
            return merged_numbers(gram, dots) / divisor
        return (
            merged(list(np.eye(m)), partial(merge, gram=gram), lambda c: float(c @ dots)) / divisor
        )


T = TypeVar("T")


def merged(vectors: list[T], merge: Callable[..., T], onto_history: Callable[[T], float]) -> T:
    """What is left of the vectors after the hierarchy; ``onto_history`` is <g, h>."""
    while len(vectors) > 2:
        vectors.sort(key=lambda g: -onto_history(g))
        half = len(vectors) // 2
        pairs = zip(vectors[:half], reversed(vectors[-half:]), strict=True)
        vectors = [merge(a, b) for a, b in pairs] + vectors[half : len(vectors) - half]
    return merge(*vectors, sequential=True) if len(vectors) == 2 else vectors[0]


def merge(a: F64, b: F64, gram: F64, *, sequential: bool = False) -> F64:
    """The sum of two coefficient rows (m,) without their conflict."""
    inner = float(a @ gram @ b)
    if inner >= 0:
        return a + b
    first = a - inner / (b @ gram @ b + EPS) * b
    onto = first if sequential else a
    return first + b - inner / (onto @ gram @ onto + EPS) * onto


def merged_numbers(gram: F64, dots: F64) -> F64:
    """Coefficients (m,) for a tensor of one element: all on the largest update.

    The square roots of the diagonal are the sizes of the updates to the last digit; signs and the
    history are relative to the largest update.
    """
    largest = int(gram.diagonal().argmax())
    numbers = np.copysign(np.sqrt(gram.diagonal()), gram[largest])
    history = dots[largest] / numbers[largest]
    coefficients = np.zeros(len(gram))
    total = merged(numbers.tolist(), merge_numbers, lambda x: x * history)
    coefficients[largest] = total / numbers[largest]
    return coefficients


def merge_numbers(a: float, b: float, *, sequential: bool = False) -> float:
    """:func:`merge` of two numbers, with the cancelling terms subtracted by hand.

    With A = b^2 + eps, first = a eps / A; in the sequential form, with q = ab first / (first^2 +
    eps), second = b - q = b (A^2 - a^2 b^2) / (A^2 + a^2 eps).
    """
    if a * b >= 0:
        return a + b
    x, y = abs(a), abs(b)
    scale = y * y + EPS
    first = a * EPS / scale
    if not sequential:
        return first + b * EPS / (x * x + EPS)
    difference, total = y * (y - x) + EPS, y * (y + x) + EPS
    return first + b * (difference / scale) * (total / scale) / (1 + (x / scale) ** 2 * EPS)


def build(divide_by: Literal["population", "cohort"] = "population") -> Algorithm:
    """FedGH of the released FedLD code.

    Args:
        divide_by: all clients (the released code), or those of the cohort.
    """
    return Algorithm(server=Server(HistoryGram(Hierarchy(divide_by))))
