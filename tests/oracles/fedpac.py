"""FedPAC's server quantities: class statistics and the quadratic program of the head weights."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy.optimize import minimize


def statistics(features, labels, num_classes):
    """H (C, d): share of class k times its mean feature; V: trace of the covariance, over n.

    V = (1/n) * sum_k trace Cov( 1{y = k} h(x) ), the population covariance over all n samples,
    written out as the mean squared distance of the masked features from their mean.
    """
    n, d = features.shape
    h = np.zeros((num_classes, d))
    v = 0.0
    for k in range(num_classes):
        masked = np.array(
            [x if y == k else np.zeros(d) for x, y in zip(features, labels, strict=True)]
        )
        h[k] = masked.sum(axis=0) / n
        v += sum(float((x - h[k]) @ (x - h[k])) for x in masked) / n
    return h, v / n


def quadratic(features, variances, i):
    """P of client i: diag(V) + <H_i - H_a, H_i - H_b>, (m, m), entry by entry."""
    m = len(variances)
    p = np.zeros((m, m))
    for a in range(m):
        for b in range(m):
            p[a, b] = float((features[i] - features[a]) @ (features[i] - features[b]))
        p[a, a] += variances[a]
    return p


def simplex_by_enumeration(p):
    """argmin over the simplex of a^T P a for positive definite P: every support is tried.

    On a support the minimum over the plane sum = 1 is P^-1 1 / (1^T P^-1 1); the best feasible
    one is the solution. 2^m - 1 supports: for m up to about 8.
    """
    m = len(p)
    best, best_value = None, np.inf
    for size in range(1, m + 1):
        for support in combinations(range(m), size):
            rows = list(support)
            part = np.linalg.solve(p[np.ix_(rows, rows)], np.ones(size))
            alpha = np.zeros(m)
            alpha[rows] = part / part.sum()
            value = float(alpha @ p @ alpha)
            if alpha.min() >= 0 and value < best_value:
                best, best_value = alpha, value
    return best


def simplex_by_slsqp(p):
    """The same program by scipy's SLSQP: for larger m, good to about 1e-6."""
    m = len(p)
    scale = float(np.trace(p)) / m
    result = minimize(
        lambda a: float(a @ p @ a) / scale,
        np.full(m, 1.0 / m),
        jac=lambda a: 2.0 * (p @ a) / scale,
        bounds=[(0.0, 1.0)] * m,
        constraints=[{"type": "eq", "fun": lambda a: a.sum() - 1.0, "jac": np.ones_like}],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    return result.x


def head_weights(features, variances):
    """Row i: client i's weights over the cohort's heads; entries <= 1e-3 zeroed, renormalised."""
    rows = []
    for i in range(len(variances)):
        alpha = simplex_by_enumeration(quadratic(features, variances, i))
        alpha = np.where(alpha <= 1e-3, 0.0, alpha)
        rows.append(alpha / alpha.sum())
    return np.array(rows)
