"""Server rules on d-dimensional vectors, client by client, as the papers write them.

m clients, d coordinates. ``updates`` is (m, d) float64, one row per client: local - global.
No Gram matrix, no coefficients: every intermediate is a vector of d numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RANK_TOLERANCE = 2.0**-52
COSINE_TOLERANCE = 1e-12


def _weights(num_samples, m, weights):
    if weights == "uniform":
        return np.full(m, 1.0 / m)
    n = np.asarray(num_samples, dtype=np.float64)
    return n / n.sum()


def _blocks(d: int, sizes: Sequence[int] | None) -> list[slice]:
    if sizes is None:
        return [slice(0, d)]
    ends = np.cumsum(sizes)
    assert ends[-1] == d
    return [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]


def mean(updates, num_samples, weights: str = "samples"):
    """FedAvg: sum_i p_i g_i with p_i = n_i / sum of n over the cohort."""
    updates = np.asarray(updates, dtype=np.float64)
    p = _weights(num_samples, len(updates), weights)
    total = np.zeros(updates.shape[1])
    for p_i, g_i in zip(p, updates, strict=True):
        total += p_i * g_i
    return total


def _axes(g):
    """Eigenvalues and eigenvectors of (1/m) sum_i g_i g_i^T by an SVD of the d x m matrix.

    Returns ``values`` (m,) in descending order (null ones are 0) and ``axes`` (m, d); an axis of a
    null eigenvalue is a row of zeros.
    """
    m, d = g.shape
    u, s, _ = np.linalg.svd(g.T, full_matrices=False)
    values, axes = np.zeros(m), np.zeros((m, d))
    for axis in range(len(s)):
        if s[axis] ** 2 > m * RANK_TOLERANCE * s[0] ** 2:
            values[axis] = s[axis] ** 2 / m
            axes[axis] = u[:, axis]
    return values, axes


def _axis_weights(values, num_kept, norm, scope):
    """lambda_l / ||lambda|| of Eq. 7 for l < num_kept, in its three readings."""
    pool = values[:num_kept] if scope == "selected" else values
    if norm == "scalar":
        return np.array([1.0 if value > 0 else 0.0 for value in values[:num_kept]])
    size = math.sqrt(sum(v * v for v in pool)) if norm == "l2" else sum(pool)
    return values[:num_kept] / size if size > 0 else np.zeros(num_kept)


def _cosine(a, b):
    size = np.linalg.norm(a) * np.linalg.norm(b)
    cosine = float(a @ b) / size if size > 0 else 0.0
    return cosine if abs(cosine) > COSINE_TOLERANCE else 0.0


def _reference_sign(g, axis, orientation):
    """Which way all clients are told to follow ``axis``: by the mean update or by majority."""
    if orientation == "reference_mean":
        return 1.0 if float(g.mean(axis=0) @ axis) >= 0 else -1.0
    votes = sum(np.sign(_cosine(g_i, axis)) for g_i in g)
    if votes == 0:
        along = g @ axis
        votes = along[np.argmax(np.abs(along))]
    return 1.0 if votes > 0 else -1.0


def revised_updates(g, num_kept, norm="l2", scope="selected", orientation="none"):
    """FedLD Eq. 4-7 for one block: every client's g_i^revise, (m, d), before averaging.

    g_i^revise = sum_l lambda_l/||lambda|| * ||g_i||/||g'_il|| * g'_il, with
    g'_il = <g_i, v_l>/||v_l||^2 v_l, and 0 for the term where g'_il = 0.
    """
    values, axes = _axes(g)
    omega = _axis_weights(values, num_kept, norm, scope)
    revised = np.zeros_like(g)
    for axis in range(num_kept):
        v = axes[axis]
        if values[axis] == 0:
            continue
        reference = 0.0 if orientation == "none" else _reference_sign(g, v, orientation)
        for i, g_i in enumerate(g):
            length = float(np.linalg.norm(g_i))
            if orientation != "none":
                revised[i] += omega[axis] * length * reference * v / np.linalg.norm(v)
                continue
            if _cosine(g_i, v) == 0:
                continue
            projection = float(g_i @ v) / float(v @ v) * v
            revised[i] += omega[axis] * length / np.linalg.norm(projection) * projection
    return revised


def num_axes(keep: float, m: int) -> int:
    """L = max(1, floor(keep * m)), 1e-9 above rounding."""
    return max(1, math.floor(keep * m + 1e-9))


def fedld(
    updates,
    num_samples,
    *,
    keep=0.8,
    norm="l2",
    scope="selected",
    sizes=None,
    weights="samples",
    orientation="none",
):
    """FedLD's principal aggregation; ``sizes`` given means one decomposition per tensor."""
    g = np.asarray(updates, dtype=np.float64)
    m, d = g.shape
    if m == 1:
        return g[0].copy()
    p = _weights(num_samples, m, weights)
    out = np.zeros(d)
    for block in _blocks(d, sizes):
        revised = revised_updates(g[:, block], num_axes(keep, m), norm, scope, orientation)
        for p_i, revised_i in zip(p, revised, strict=True):
            out[block] += p_i * revised_i
    return out


def fedld_released(updates, sizes, *, round):
    """The authors' code: per tensor, uniform, int(0.8 m) axes, lambda / sum of all lambda.

    Round 0 (no history) and tensors of one element take the plain mean. Where the code divides
    0 by 0 (a client orthogonal to an axis) the term is 0 here.
    """
    g = np.asarray(updates, dtype=np.float64)
    m, d = g.shape
    out = np.zeros(d)
    for block in _blocks(d, sizes):
        if round == 0 or block.stop - block.start == 1:
            out[block] = g[:, block].sum(axis=0) / m
        else:
            revised = revised_updates(g[:, block], int(0.8 * m), "l1", "all")
            out[block] = revised.sum(axis=0) / m
    return out


def fedgh_projected(updates, orders):
    """FedGH Algorithm 1, the loop: every client's g_k after its projections, (m, d).

    ``orders[k]`` lists the other clients in the order in which client k meets them.
    """
    frozen = np.asarray(updates, dtype=np.float64).copy()
    projected = []
    for k in range(len(frozen)):
        g = frozen[k].copy()
        for j in orders[k]:
            inner = float(g @ frozen[j])
            if inner < 0:
                g = g - inner / float(frozen[j] @ frozen[j]) * frozen[j]
        projected.append(g)
    return np.array(projected)


def fedgh(updates, num_samples, orders):
    """FedGH: the mean by samples of the projected updates."""
    return mean(fedgh_projected(updates, orders), num_samples)


def visiting_orders(m: int, order: str) -> list[list[int]]:
    """The two deterministic orders: the other clients by ascending or descending index."""
    others = [[j for j in range(m) if j != k] for k in range(m)]
    return others if order == "ascending" else [ids[::-1] for ids in others]


EPS = 1e-7


def _harmonised_sum(a, b):
    inner = float(a @ b)
    if inner >= 0:
        return a + b
    return (a - inner / (float(b @ b) + EPS) * b) + (b - inner / (float(a @ a) + EPS) * a)


def _final_sum(a, b):
    inner = float(a @ b)
    if inner >= 0:
        return a + b
    a = a - inner / (float(b @ b) + EPS) * b
    b = b - inner / (float(a @ a) + EPS) * a
    return a + b


def _hierarchy(vectors, history):
    length = float(np.linalg.norm(history))
    while len(vectors) > 2:
        vectors = sorted(vectors, key=lambda g: float(g @ history) / length, reverse=True)
        merged = []
        while len(vectors) > 1:
            merged.append(_harmonised_sum(vectors[0], vectors[-1]))
            vectors = vectors[1:-1]
        vectors = merged + vectors
    return _final_sum(*vectors) if len(vectors) == 2 else vectors[0]


def fedgh_released(updates, history, *, num_users, sizes=None):
    """What the FedLD authors' code calls FedGH: the pairwise hierarchy, one per tensor.

    ``history`` (d,) orders the vectors by their projection on it; None (the first round) means
    the plain mean.
    """
    g = np.asarray(updates, dtype=np.float64)
    m, d = g.shape
    if history is None:
        return g.sum(axis=0) / m
    out = np.zeros(d)
    for block in _blocks(d, sizes):
        out[block] = _hierarchy([g_i[block] for g_i in g], history[block]) / num_users
    return out
