"""Server optimisers number by number: where the global value is after each round, from 0."""

from __future__ import annotations

import math


def adaptive(kind, deltas, *, eta, beta1, beta2, tau, v0, corrected=False):
    """Reddi et al., Algorithm 2; ``corrected`` as Flower's FedAdam, whose rounds count from 1."""
    x, m, v, path = 0.0, 0.0, v0, []
    for server_round, delta in enumerate(deltas, start=1):
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adam":
            v = beta2 * v + (1 - beta2) * delta**2
        elif kind == "yogi":
            above = int(v > delta**2) - int(v < delta**2)
            v = v - (1 - beta2) * delta**2 * above
        else:
            v = v + delta**2
        rate = eta
        if corrected:
            power = server_round + 1
            rate = eta * math.sqrt(1 - beta2**power) / (1 - beta1**power)
        x = x + rate * m / (math.sqrt(v) + tau)
        path.append(x)
    return path


def momentum(deltas, *, beta, eta, nesterov=False, damped=False):
    """Hsu et al.; ``damped`` lets the update enter with 1 - beta."""
    x, v, path = 0.0, 0.0, []
    for delta in deltas:
        fresh = (1 - beta) * delta if damped else delta
        v = beta * v + fresh
        x = x + eta * (fresh + beta * v if nesterov else v)
        path.append(x)
    return path


def slow_momentum(deltas, rates, *, alpha, beta):
    """Wang et al., Algorithm 1; ``rates`` are the clients' per round."""
    x, u, path = 0.0, 0.0, []
    for delta, gamma in zip(deltas, rates, strict=True):
        mean = x + delta
        u = beta * u + (x - mean) / gamma
        x = x - alpha * gamma * u
        path.append(x)
    return path
