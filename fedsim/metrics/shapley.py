"""Shapley values of the clients of a round (Shapley 1953).

With the value v(S) of each coalition S of m players,

    phi_i = sum_{S without i} |S|! (m - |S| - 1)! / m!  (v(S + i) - v(S))

is the mean over all orders of what i adds to those before it; the m values sum to v(all) - v(none).
A coalition is a whole number whose bit i says whether player i belongs to it.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedsim.core.types import F64


def everybody(m: int) -> int:
    """The coalition of all m players."""
    return (1 << m) - 1


def members(coalition: int) -> tuple[int, ...]:
    """The players of a coalition, ascending."""
    return tuple(i for i in range(coalition.bit_length()) if coalition >> i & 1)


def exact(values: Sequence[float] | F64) -> F64:
    """(m,) Shapley values from those of all 2^m coalitions, in their order; sums are exact to a
    rounding."""
    v = np.asarray(values, np.float64)
    m = len(v).bit_length() - 1
    coalitions = np.arange(len(v))
    sizes = sum(((coalitions >> i) & 1 for i in range(m)), start=np.zeros(len(v), np.int64))
    weights = np.array([1 / (m * math.comb(m - 1, s)) for s in range(m)])
    shapley = np.zeros(m)
    for i in range(m):
        without = coalitions[(coalitions >> i) & 1 == 0]
        gains = v[without | (1 << i)] - v[without]
        shapley[i] = math.fsum(weights[sizes[without]] * gains)
    return shapley


def prefixes(order: Sequence[int]) -> list[int]:
    """The m + 1 coalitions that grow by one player after the other, from nobody."""
    grown = [0]
    for player in order:
        grown.append(grown[-1] | 1 << player)
    return grown


def sampled(orders: Sequence[Sequence[int]], value: Callable[[int], float]) -> tuple[F64, F64]:
    """(m,) estimates from orders drawn uniformly, and their standard errors (Castro et al. 2009).

    The estimates sum to v(all) - v(none), whatever the orders; the error of a single one is NaN.
    """
    gains = np.empty((len(orders), len(orders[0])))
    for row, order in zip(gains, orders, strict=True):
        row[list(order)] = np.diff([value(coalition) for coalition in prefixes(order)])
    n = len(gains)
    spread = gains.std(axis=0, ddof=1) if n > 1 else np.full(gains.shape[1], np.nan)
    return gains.mean(axis=0), spread / math.sqrt(n)
