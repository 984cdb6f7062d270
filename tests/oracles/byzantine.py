"""Robust rules on vectors, as they are written down; nothing here knows a Gram matrix.

m clients, d coordinates. ``updates`` is (m, d) float64, one row per client.
"""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np


def _away(x, y):
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(x.tolist(), y.tolist(), strict=True)))


def krum_scores(g, f, more=0):
    """Sums of squared distances to the m - f - 2 + more nearest others."""
    found = []
    for i, x in enumerate(g):
        others = sorted(_away(x, y) ** 2 for j, y in enumerate(g) if j != i)
        found.append(math.fsum(others[: max(0, len(g) - f - 2 + more)]))
    return found


def krum(g, f, more=0):
    """The update with the least score, the first of equal ones."""
    scores = krum_scores(g, f, more)
    return g[scores.index(min(scores))]


def multikrum(g, f, q=None):
    """The mean of the q (m - f) best."""
    scores = krum_scores(g, f)
    best = sorted(range(len(g)), key=lambda i: scores[i])[: q or len(g) - f]
    return sum(g[i] for i in best) / len(best)


def geometric_median(g, iterations=100, nu=1e-5, alphas=None):
    """Smoothed Weiszfeld from the weighted mean."""
    alphas = alphas or [1 / len(g)] * len(g)
    z = sum(a * x for a, x in zip(alphas, g, strict=True))
    for _ in range(iterations):
        b = [a / max(nu, _away(x, z)) for a, x in zip(alphas, g, strict=True)]
        z = sum(b_i * x for b_i, x in zip(b, g, strict=True)) / math.fsum(b)
    return z


def centered_clipping(rounds, tau, iterations=1):
    """The steps of some rounds (t, m, d); the center is the last one."""
    v, steps = np.zeros(len(rounds[0][0])), []
    for g in rounds:
        for _ in range(iterations):
            v = v + sum((x - v) * min(1, tau / (_away(x, v) or tau)) for x in g) / len(g)
        steps.append(v)
    return steps


def fltrust(g, own):
    """The mean of updates of the server's length, by their cosine with its update."""
    total, step = 0.0, np.zeros(len(own))
    for x in g:
        lengths = math.hypot(*x), math.hypot(*own)
        trust = (
            max(0.0, math.fsum((x * own).tolist()) / math.prod(lengths)) if all(lengths) else 0.0
        )
        total += trust
        if trust:
            step += trust * lengths[1] / lengths[0] * x
    return step / total if total else step


def coordinate_median(g):
    return np.array([statistics.median(column) for column in g.T.tolist()])


def trimmed_mean(g, f):
    return np.array([statistics.fmean(sorted(c)[f : len(c) - f]) for c in g.T.tolist()])


def mda(g, f):
    """The mean of the subset with the least diameter, all of them compared.

    Of equal distances that of smaller ids is the larger one.
    """

    def size(chosen):
        pairs = [(_away(g[i], g[j]) ** 2, -i, -j) for i, j in itertools.combinations(chosen, 2)]
        return max(pairs, default=(0.0,)), math.fsum(pair[0] for pair in pairs)

    best = min(itertools.combinations(range(len(g)), len(g) - f), key=size)
    return sum(g[i] for i in best) / len(best)


def bulyan(g, f):
    """Krum with removal, then by coordinate the mean around the median."""
    left, chosen = list(range(len(g))), []
    for _ in range(len(g) - 2 * f):
        scores = []
        for i in left:
            others = sorted(_away(g[i], g[j]) ** 2 for j in left if j != i)
            scores.append(math.fsum(others[: max(1, len(left) - f - 2)]))
        chosen.append(left.pop(scores.index(min(scores))))
    step = []
    for column in g[sorted(chosen)].T.tolist():
        middle = statistics.median(column)
        nearest = sorted(column, key=lambda x, middle=middle: abs(x - middle))
        step.append(statistics.fmean(nearest[: len(column) - 2 * f]))
    return np.array(step)


def nnm(g, f):
    """Each update becomes the mean of its m - f nearest, itself first."""
    mixed = []
    for i, x in enumerate(g):
        others = sorted((j for j in range(len(g)) if j != i), key=lambda j, x=x: _away(x, g[j]))
        nearest = [i, *others[: len(g) - f - 1]]
        mixed.append(sum(g[j] for j in nearest) / len(nearest))
    return np.array(mixed)


def bucketing(g, drawn, size):
    """Means of ``size`` updates in the order that was drawn."""
    buckets = [drawn[start : start + size] for start in range(0, len(g), size)]
    return np.array([sum(g[i] for i in bucket) / len(bucket) for bucket in buckets])
