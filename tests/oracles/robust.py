"""SimAgg, RegAgg and RobFedAvg on vectors and single numbers, as they are written down.

m clients, d coordinates. ``updates`` is (m, d) float64, one row per client.
"""

from __future__ import annotations

import math
import statistics

import numpy as np

from .aggregation import _blocks, _weights


def similarity_weights(g, n, method, distance="l2", eps=1e-5):
    """The weights of one block's clients, list of m."""
    m = len(g)
    mean = sum(g) / m
    if distance == "l2":
        d = [math.sqrt(sum((x - y) ** 2 for x, y in zip(g_i, mean, strict=True))) for g_i in g]
    else:
        d = [abs(math.fsum(mean) - math.fsum(g_i)) for g_i in g]
    v = [n_i / sum(n) for n_i in n]
    u = [sum(d) / (d_i + eps) for d_i in d]
    u = [u_i / (sum(u) + eps) for u_i in u]
    if sum(d) == 0:
        return v
    w = [a + b if method == "simagg" else a * b for a, b in zip(u, v, strict=True)]
    w = [w_i / (sum(w) + eps) for w_i in w]
    return [w_i / sum(w) for w_i in w]


def similar(updates, num_samples, method, *, sizes=None, distance="l2", eps=1e-5):
    """The step, (d,)."""
    g, n = np.asarray(updates, dtype=np.float64), np.asarray(num_samples).tolist()
    out = np.zeros(g.shape[1])
    for block in _blocks(g.shape[1], sizes):
        w = similarity_weights(g[:, block], n, method, distance, eps)
        out[block] = sum(w_i * g_i for w_i, g_i in zip(w, g[:, block], strict=True))
    return out


def _quantile(ordered, q):
    at = (len(ordered) - 1) * q
    low = ordered[math.floor(at)]
    return low + (at - math.floor(at)) * (ordered[math.ceil(at)] - low)


def kept(values, test="iqr", z=1.5):
    """Which of one coordinate's values are no outliers."""
    if test == "iqr":
        q1, q3 = _quantile(sorted(values), 0.25), _quantile(sorted(values), 0.75)
        return [q1 - z * (q3 - q1) <= x <= q3 + z * (q3 - q1) for x in values]
    mean, std = statistics.mean(values), statistics.pstdev(values)
    return [abs(x - mean) <= z * std for x in values]


def pruned_mean(updates, num_samples, test="iqr", z=1.5, weights="samples"):
    """RobFedAvg's step (d,) and the share of pruned values."""
    columns = np.asarray(updates, dtype=np.float64).T.tolist()
    p = _weights(num_samples, len(columns[0]), weights)
    out, dropped = [], 0
    for values in columns:
        keep = kept(values, test, z)
        dropped += keep.count(False)
        pairs = [(p_i, x) for p_i, x, k in zip(p, values, keep, strict=True) if k]
        total = sum(p_i for p_i, _ in pairs)
        out.append(sum(p_i * x for p_i, x in pairs) / total if pairs else statistics.median(values))
    return np.array(out), dropped / np.size(columns)
