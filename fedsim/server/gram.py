"""Server rules in coefficient space: ``(K, n) -> c``, the aggregate being ``sum_i c_i g_i``.

``K`` is the (m, m) float64 Gram matrix of the updates ``g_i``, ``n`` the (m,) sample counts. A rule
is pure and runs in microseconds on m x m numbers (docs/GRAM.md); the coefficients need not
sum to 1 and may be negative, so they belong to updates, never to weights.
"""

from typing import Literal, Protocol

import numpy as np

from fedsim.core.types import F64, RoundContext

Weights = Literal["samples", "uniform"]


class GramRule(Protocol):
    """A server rule in coefficient space."""

    @property
    def weights(self) -> Weights:
        """How clients are weighted; float statistics are averaged with the same weights."""

    def __call__(self, gram: F64, n: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,) for the Gram matrix (m, m) and sample counts (m,)."""


def shares(n: F64, weights: Weights) -> F64:
    """(m,) client weights p that sum to 1 over the cohort: n_i / sum n, or 1/m."""
    return n / n.sum() if weights == "samples" else np.full(len(n), 1.0 / len(n))


def cosines(gram: F64) -> F64:
    """(m, m) cosines between updates; 0 where one of them is zero."""
    norms = np.sqrt(np.diag(gram))
    scale = np.outer(norms, norms)
    return np.divide(gram, scale, out=np.zeros_like(gram), where=scale > 0)


def conflict_ratio(gram: F64) -> float | None:
    """Share of pairs with a negative inner product (FedGH Fig. 2b); None for fewer than two."""
    pairs = gram[np.triu_indices(len(gram), k=1)]
    return float(np.mean(pairs < 0)) if len(pairs) else None


def gradient_diversity(gram: F64, p: F64) -> float | None:
    """``sum_i p_i ||g_i||^2 / ||sum_i p_i g_i||^2`` >= 1 (Yin et al. 2018, weighted by p).

    1 for equal updates; None where the mean update is zero.
    """
    mean = float(p @ gram @ p)
    return float(p @ np.diag(gram)) / mean if mean > 0 else None


def spectrum(gram: F64) -> F64:
    """(m,) shares of the principal axes in the updates' squared length, descending, sum 1.

    All 0 where every update is zero.
    """
    largest = gram.diagonal().max()
    if largest == 0:
        return np.zeros(len(gram))
    mu = np.maximum(np.linalg.eigvalsh(gram / largest)[::-1], 0.0)
    return mu / mu.sum()
