"""Principal aggregation, FedLD's rule in coefficient space (Zeng et al., MICCAI 2024, Eqs. 4-7)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.core.types import F64, RoundContext
from fedsim.server.gram import Weights, shares

Norm = Literal["l2", "l1", "scalar"]
Scope = Literal["selected", "all"]
Orientation = Literal["none", "reference_mean", "reference_vote"]
EPS = float(np.finfo(np.float64).eps)
COS_TOLERANCE = 1e-12
"""Cosines below this are zero: the sign of rounding noise must not decide (float64 Gram)."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Principal gradient aggregation.

    With ``K = E diag(mu) E^T``, ``u_l = G e_l / sqrt(mu_l)`` and L selected axes, the paper's
    calibrated and rescaled projections sum to (docs/GRAM.md)

        g_i' = ||g_i|| sum_l omega_l sgn(e_li) u_l,     c = sum_l (omega_l a_l / sqrt(mu_l)) e_l,
        a_l = sum_i p_i ||g_i|| sgn(e_li).

    The paper leaves ``||lambda_l||`` of Eq. 7 open: ``norm`` and ``scope`` name the readings. Its
    sign calibration (Eq. 6) cancels; ``orientation`` is an unpublished extension in which all
    clients follow the calibrated axis.

    Selected are L = max(1, floor(keep m)) of the m axes; omega is lambda / l2 norm, lambda / l1
    norm, or 1 (``scalar``), the norm being over the selected axes or over all m (``scope``).
    """

    keep: float
    norm: Norm
    scope: Scope
    weights: Weights
    orientation: Orientation = "none"

    def __call__(self, gram: F64, n: F64, ctx: RoundContext) -> F64:
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
