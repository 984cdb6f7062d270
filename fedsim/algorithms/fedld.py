"""FedLD: margin control and principal aggregation (Zeng et al., MICCAI 2024, Eqs. 3-7).

    client:  cross-entropy + lambda mean_b log(1 + ||f_b||^2)
    server:  of each update only its length and the signs of its principal coordinates survive,
             g_i' = ||g_i|| sum_{l <= L} lambda_l/||lambda_{1..L}|| sgn<g_i, v_l> v_l/||v_l||

The paper leaves ||lambda_l|| open: l2 over the selected axes keeps ||g_i'|| = ||g_i||, which is
what it asks of the correction. The released code differs throughout: see ``fedld_released``.

:client: cross-entropy with margin control
:server: principal aggregation
:state: none
:sends: nothing more
:public code: the released code differs in loss, weights, axes, norm and granularity
    (``fedld_released``)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsim.algorithms.base import Algorithm
from fedsim.client import MarginControl
from fedsim.core.settings import Fraction, NonNegative
from fedsim.core.types import F64, RoundContext
from fedsim.server import Gram, Server, Weights, shares

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
    norm: Literal["l2", "l1", "scalar"]
    scope: Literal["selected", "all"]
    weights: Weights
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


def build(
    margin: str = "marg_log",
    margin_weight: NonNegative = 0.03,
    keep: Fraction = 0.8,
    norm: Literal["l2", "l1", "scalar"] = "l2",
    scope: Literal["selected", "all"] = "selected",
    blocks: Literal["model", "tensor"] = "model",
    weights: Weights = "samples",
    orientation: Literal["none", "reference_mean", "reference_vote"] = "none",
) -> Algorithm:
    """FedLD.

    Args:
        margin: form of margin control, see ``fedsim.client.criterion.FORMS``; ``none`` for
            cross-entropy.
        margin_weight: lambda, >= 0.
        keep: share of the principal axes that is kept, in (0, 1].
        norm: how the eigenvalues weight the axes.
        scope: over which axes the norm goes.
        blocks: one Gram matrix for the whole model, or one per tensor.
        weights: client weights by samples (the paper), or uniform.
        orientation: unpublished: let all clients follow the calibrated axes.
    """
    rule = Principal(keep=keep, norm=norm, scope=scope, weights=weights, orientation=orientation)
    criterion = MarginControl(margin, margin_weight)
    return Algorithm(server=Server(Gram(rule, blocks)), criterion=criterion)
