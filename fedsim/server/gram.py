"""Server rules in coefficient space: ``(K, n) -> c``, the aggregate being ``sum_i c_i g_i``.

``K`` is the (m, m) float64 Gram matrix of the updates ``g_i``, ``n`` the (m,) sample counts. A rule
is pure and runs in microseconds on m x m numbers (docs/GRAM.md); the coefficients need not
sum to 1 and may be negative, so they belong to updates, never to weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from fedsim.core.rng import generator
from fedsim.core.types import F64, RoundContext

Weights = Literal["samples", "uniform"]
EPS = float(np.finfo(np.float64).eps)
COS_TOLERANCE = 1e-12
"""Cosines below this are zero: the sign of rounding noise must not decide (float64 Gram)."""


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


@dataclass(frozen=True)
class Principal:
    """Principal gradient aggregation of FedLD (Zeng et al., MICCAI 2024, Eqs. 4-7).

    With ``K = E diag(mu) E^T``, ``u_l = G e_l / sqrt(mu_l)`` and L selected axes, the paper's
    calibrated and rescaled projections sum to (docs/GRAM.md)

        g_i' = ||g_i|| sum_l omega_l sgn(e_li) u_l,     c = sum_l (omega_l a_l / sqrt(mu_l)) e_l,
        a_l = sum_i p_i ||g_i|| sgn(e_li).

    The paper leaves ``||lambda_l||`` of Eq. 7 open: ``norm`` and ``scope`` name the readings. Its
    sign calibration (Eq. 6) cancels; ``orientation`` is an unpublished extension in which all
    clients follow the calibrated axis.

    Args:
        keep: share of the m axes that is selected, L = max(1, floor(keep m)).
        norm: omega = lambda / l2 norm, lambda / l1 norm, or 1 (``scalar``).
        scope: the norm is over the selected axes or over all m.
        weights: client weights p.
        orientation: ``none`` as published.
    """

    keep: float = 0.8
    norm: Literal["l2", "l1", "scalar"] = "l2"
    scope: Literal["selected", "all"] = "selected"
    weights: Weights = "samples"
    orientation: Literal["none", "reference_mean", "reference_vote"] = "none"

    def __call__(self, gram: F64, n: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,)."""
        p, m = shares(n, self.weights), len(n)
        scale = gram.diagonal().max()
        if m == 1 or scale == 0:
            return p
        gram = (gram + gram.T) / (2 * scale)  # c does not depend on the scale, overflow does
        mu, axes = np.linalg.eigh(gram)
        mu, axes = mu[::-1], axes[:, ::-1]
        mu = np.where(mu > m * EPS * mu[0], mu, 0.0)
        selected = max(1, int(self.keep * m + 1e-9))
        omega = self._omega(mu, selected)
        used = slice(0, min(selected, int(np.count_nonzero(mu))))
        mu, axes, omega = mu[used], axes[:, used], omega[used]
        length = np.sqrt(np.diag(gram))
        a = (p * length) @ self._signs(mu, axes, length)
        return axes @ (omega * a / np.sqrt(mu))

    def _omega(self, mu: F64, selected: int) -> F64:
        scope = mu[:selected] if self.scope == "selected" else mu
        norm = {"l2": np.linalg.norm(scope), "l1": scope.sum()}
        return mu / norm[self.norm] if self.norm in norm else np.ones_like(mu)

    def _signs(self, mu: F64, axes: F64, length: F64) -> F64:
        """(m, L) signs of the clients' coordinates along each axis, 0 where orthogonal."""
        coordinates = np.sqrt(mu) * axes
        cos = np.divide(
            coordinates, length[:, None], out=np.zeros_like(axes), where=length[:, None] > 0
        )
        signs = np.where(np.abs(cos) > COS_TOLERANCE, np.sign(cos), 0.0)
        if self.orientation == "none":
            return signs
        ballot = axes if self.orientation == "reference_mean" else signs
        total = ballot.sum(axis=0)
        largest = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
        tied = np.abs(total) <= COS_TOLERANCE
        return np.broadcast_to(np.where(tied, largest, np.sign(total)), axes.shape)


Order = Literal["random", "ascending", "descending"]


def harmonize_orders(
    m: int, seed: int, round: int, order: Order = "random", include_self: bool = False
) -> list[list[int]]:
    """For each client k of the cohort, in which order it visits the m - 1 others (Algorithm 1).

    Random orders come from one generator per (seed, round), drawn in ascending k. With
    ``include_self`` client k also visits its own update as it was.
    """
    rng = generator(seed, "fedgh", round)
    orders = []
    for k in range(m):
        others = [j for j in range(m) if include_self or j != k]
        drawn = rng.permutation(others).tolist()
        orders.append({"random": drawn, "ascending": others, "descending": others[::-1]}[order])
    return orders


def project_conflicts(gram: F64, orders: list[list[int]]) -> F64:
    """(m, m) coefficients, row k: update k after removing its conflicts with the frozen others.

    FedGH Algorithm 1 and PCGrad in coefficient space (docs/GRAM.md): visiting j in order,
    ``if <g_k, g_j> < 0: g_k -= <g_k, g_j> / ||g_j||^2 g_j`` with the original ``g_j``.
    """
    coefficients = np.eye(len(gram))
    for c, row, order in zip(coefficients, gram, orders, strict=True):
        inner = row.copy()
        for j in order:
            if gram[j, j] > 0 and inner[j] < 0:
                t = inner[j] / gram[j, j]
                c[j] -= t
                inner -= t * gram[j]
                inner[j] = 0.0
    return coefficients


@dataclass(frozen=True)
class Harmonize:
    """Gradient harmonization: ``eta sum_k p_k g_k'`` (FedGH with eta 1, PCGrad).

    Args:
        order: in which an update meets the others.
        weights: client weights p.
        include_self: an update also meets itself as it was (released PCGrad code).
        eta: factor of the step of the parameters.
    """

    order: Order = "random"
    weights: Weights = "samples"
    include_self: bool = False
    eta: float = 1.0

    def __call__(self, gram: F64, n: F64, ctx: RoundContext) -> F64:
        """Coefficients (m,), never below eta p."""
        orders = harmonize_orders(len(n), ctx.seed, ctx.round, self.order, self.include_self)
        return self.eta * (shares(n, self.weights) @ project_conflicts(gram, orders))
