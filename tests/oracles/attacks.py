"""Attacks with knowledge of updates, coordinate by coordinate in plain float64.

``x`` are h known updates, lists of d numbers; a vector of d numbers is returned. The lengths of
min-max and min-sum are found by bisection.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm


def mean(x):
    return [math.fsum(column) / len(x) for column in zip(*x, strict=True)]


def distance2(a, b):
    return math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def alie(x, n, f, z=None):
    s = math.floor(n / 2 + 1) - f
    z = float(norm.ppf((n - f - s) / (n - f))) if z is None else z
    return [m - z * sigma for m, sigma in zip(mean(x), std(x), strict=True)]


def ipm(x, scale):
    return [-scale * m for m in mean(x)]


def std(x):
    mu = mean(x)
    columns = zip(*x, strict=True)
    squares = [sum((v - m) ** 2 for v in c) for c, m in zip(columns, mu, strict=True)]
    return [math.sqrt(s2 / (len(x) - 1)) for s2 in squares]


def unit_vec(x):
    mu = mean(x)
    size = math.sqrt(math.fsum(m * m for m in mu))
    return [m / size for m in mu]


def sign(x):
    return [math.copysign(1.0, m) for m in mean(x)]


def min_max(x, direction=unit_vec):
    largest = max(distance2(a, b) for a in x for b in x)
    return _farthest(x, direction, lambda sent: max(distance2(sent, a) for a in x) <= largest)


def min_sum(x, direction=unit_vec, bound=min):
    most = bound(math.fsum(distance2(a, b) for b in x) for a in x)
    return _farthest(x, direction, lambda sent: math.fsum(distance2(sent, a) for a in x) <= most)


def _farthest(x, direction, allowed):
    mu, p = mean(x), direction(x)
    low, high = 0.0, 1.0
    while allowed(_moved(mu, p, high)):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(_moved(mu, p, middle)) else (low, middle)
    return _moved(mu, p, low)


def _moved(mu, p, gamma):
    return [m - gamma * q for m, q in zip(mu, p, strict=True)]


def mimic(rounds, z, warmup):
    """Clients copied in each round, of rounds (n, d), by a power iteration from z (d,)."""
    chosen, mu = [], 0.0
    for t, x in enumerate(rounds):
        if t < warmup:
            mu = t / (t + 1) * mu + np.asarray(mean(x)) / (t + 1)
            s = sum(((g - mu) @ z) * (g - mu) for g in x)
            z = s / np.linalg.norm(s) if t == 0 else (t * z + s / np.linalg.norm(s)) / (t + 1)
            z = z / np.linalg.norm(z)
            chosen.append(max(range(len(x)), key=lambda i: x[i] @ z))
        else:
            chosen.append(chosen[-1])
    return chosen, z
