"""Margin control (FedLD Eq. 3 and its relatives) sample by sample, in float64 numbers.

f are the logits of one sample, y its label; the batch value is the mean over samples except
where said.
"""

from __future__ import annotations

import math

KAPPA = 1.2784645427610737
"""The root of u * sigmoid(u) = 1."""


def logsumexp(values):
    """log of the sum of exponentials, shifted by the largest."""
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def softplus(value):
    """log(1 + e^value) without overflow."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))


def sigmoid(value):
    """1 / (1 + e^-value) without overflow."""
    if value >= 0:
        return 1.0 / (1.0 + math.exp(-value))
    return math.exp(value) / (1.0 + math.exp(value))


def margin(f, y):
    """f_y minus the log-sum-exp of the other logits."""
    return f[y] - logsumexp([value for j, value in enumerate(f) if j != y])


def cross_entropy(logits, labels):
    """Mean of -log softmax(f)_y."""
    losses = [logsumexp(f) - f[y] for f, y in zip(logits, labels, strict=True)]
    return sum(losses) / len(losses)


def _mean(values):
    return sum(values) / len(values)


def _squared(f):
    return sum(value * value for value in f)


def _frobenius2_of_softmax(logits):
    total = 0.0
    for f in logits:
        log_sum = logsumexp(f)
        total += sum(math.exp(value - log_sum) ** 2 for value in f)
    return total


def damped(m, s, tau):
    """sigma-damp: s * m * (1 - sigmoid(m / tau))."""
    return s * m * sigmoid(-m / tau)


def stitched(m, u):
    """sigma-stitch: the margin, reflected at u."""
    return m if m <= u else 2 * u - m


def margin_control(form, logits, labels, weight, threshold):
    """The training loss of one batch in one of the forms."""
    logits = [[float(v) for v in f] for f in logits]
    labels = [int(y) for y in labels]
    margins = [margin(f, y) for f, y in zip(logits, labels, strict=True)]
    if form == "sigma_damp":
        return _mean([softplus(-damped(m, 1.0, threshold)) for m in margins])
    if form == "sigma_damp_kappa":
        return _mean([softplus(-damped(m, KAPPA * threshold, 1.0 / KAPPA)) for m in margins])
    if form == "sigma_stitch":
        return _mean([softplus(-stitched(m, threshold)) for m in margins])
    terms = {
        "none": lambda: 0.0,
        "marg_log": lambda: _mean([math.log1p(_squared(f)) for f in logits]),
        "softmax_frob": lambda: math.log1p(_frobenius2_of_softmax(logits)),
        "spectral": lambda: _mean([_squared(f) for f in logits]),
        "logit_hinge": lambda: _mean(
            [max(0.0, math.sqrt(_squared(f)) - threshold) ** 2 for f in logits]
        ),
    }
    return cross_entropy(logits, labels) + weight * terms[form]()
