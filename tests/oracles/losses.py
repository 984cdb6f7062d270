"""Losses of clients in float64, and FedPAC's statistics and head weights.

f are the logits of one sample, y its label; the batch value is the mean over samples except where
said. Parameters are lists of tensors: hidden weight and bias, head weight and bias. An objective is
a function of the parameters that returns a scalar.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import torch

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


def network(params, x):
    """The head's inputs (n, d) and the logits (n, C) for flat inputs (n, pixels)."""
    hidden, hidden_bias, head, head_bias = params[:4]
    h = torch.clamp(x @ hidden.T + hidden_bias, min=0)
    return h, h @ head.T + head_bias


def mean_cross_entropy(logits, y):
    """Mean of ``log sum_j e^{f_j} - f_y``."""
    return torch.stack(
        [f.exp().sum().log() - f[k] for f, k in zip(logits, y.tolist(), strict=True)]
    ).mean()


def correlations(x, eps):
    """The products of standardised columns, divided by B - 1, (d, d)."""
    b, d = x.shape
    columns = []
    for j in range(d):
        centred = x[:, j] - x[:, j].sum() / b
        columns.append(centred / ((centred**2).sum() / (b - 1) + eps).sqrt())
    return torch.stack([torch.stack(columns) @ column for column in columns]) / (b - 1)


def decorrelation(x, form):
    """FedDecorr's term, from the correlations."""
    b, d = x.shape
    rho = correlations(x, 1e-8 if form == "code" else 0.0)
    if form == "paper":
        return (rho**2).sum() / d**2
    apart = torch.stack([(rho[i, :i] ** 2).sum() + (rho[i, i + 1 :] ** 2).sum() for i in range(d)])
    return (b - 1) ** 2 / b * apart.sum() / (d * (d - 1))


def cosine(a, b):
    """The cosine of two vectors."""
    return (a * b).sum() / ((a**2).sum().sqrt() * (b**2).sum().sqrt())


def contrast(z, near, far, temperature):
    """MOON's term, sample by sample, as the paper writes it."""
    losses = []
    for own, positive, negative in zip(z, near, far, strict=True):
        up = (cosine(own, positive) / temperature).exp()
        losses.append(-(up / (up + (cosine(own, negative) / temperature).exp())).log())
    return torch.stack(losses).mean()


def ascent(params, gradients, rho, eta=None, weights=()):
    """SAM's step to the worst point nearby, and ASAM's where eta is given, as one long vector.

    ``weights`` are the positions of the tensors that ASAM scales.
    """
    g = torch.cat([gradient.flatten() for gradient in gradients])
    t = torch.ones_like(g)
    if eta is not None:
        scales = [
            p.abs() + eta if i in weights else torch.ones_like(p) for i, p in enumerate(params)
        ]
        t = torch.cat([scale.flatten() for scale in scales])
    e = rho * t * t * g / torch.sqrt(((t * g) ** 2).sum())
    return [
        part.view_as(p)
        for part, p in zip(e.split([p.numel() for p in params]), params, strict=True)
    ]


def sgd(params, gradient, num_steps, lr, momentum, weight_decay):
    """The parameters after SGD; ``gradient(params)`` gives a list, the decay is added to it."""
    params = [p.clone() for p in params]
    speed = [torch.zeros_like(p) for p in params]
    for _ in range(num_steps):
        gradients = gradient(params)
        speed = [
            momentum * v + g + weight_decay * p
            for v, g, p in zip(speed, gradients, params, strict=True)
        ]
        params = [p - lr * v for p, v in zip(params, speed, strict=True)]
    return params


def split_rounds(start, objectives, counts, rounds, phases, kept, lr, momentum, weight_decay):
    """The shared tensors and each client's own after rounds of all clients.

    ``phases`` are steps and the positions of the tensors that they train, each with a speed of 0 at
    first; the tensors at the positions ``kept`` stay on the clients, the others are averaged by
    ``counts``.
    """
    shared = [p.clone() for p in start]
    own = [[p.clone() for p in start] for _ in objectives]
    for _ in range(rounds):
        ends = []
        for mine, objective in zip(own, objectives, strict=True):
            params = [mine[k] if k in kept else p for k, p in enumerate(shared)]
            for steps, trained in phases:
                part = [params[k] for k in trained]

                def whole(part, params=params, trained=trained, objective=objective):
                    new = list(params)
                    for k, p in zip(trained, part, strict=True):
                        new[k] = p
                    return objective(new)

                part = sgd(part, gradient_of(whole), steps, lr, momentum, weight_decay)
                for k, p in zip(trained, part, strict=True):
                    params[k] = p
            ends.append(params)
        total = sum(counts)
        mean = [
            sum(n * e[k] for n, e in zip(counts, ends, strict=True)) / total
            for k in range(len(start))
        ]
        shared = [p if k in kept else mean[k] for k, p in enumerate(shared)]
        own = ends
    return shared, own


def neighbours(h, keys, labels, classes, k, scale, distance):
    """kNN-Per's shares (B, C), sample by sample, from sorted distances."""
    shares = np.zeros((len(h), classes))
    for row, features in zip(shares, h, strict=True):
        apart = [math.sqrt(float(((features - key) ** 2).sum())) for key in keys]
        for j in sorted(range(len(keys)), key=apart.__getitem__)[:k]:
            squared = apart[j] ** 2 / (len(features) * scale)
            row[labels[j]] += math.exp(-(squared if distance == "squared" else apart[j] / scale))
        row /= row.sum()
    return shares


def mixture(own, sent, weights):
    """What lies between two models, tensor by tensor."""
    return [o + (s - o) * w for o, s, w in zip(own, sent, weights, strict=True)]


def fedala_rounds(
    start, objectives, counts, rounds, steps, chosen, eta, lr, momentum, weight_decay
):
    """The shared tensors, each client's own ones at the positions ``chosen``, and their weights.

    All clients take part, and learn weights from all of their samples in one batch.
    """
    shared, own, weights = list(start), [None] * len(objectives), [None] * len(objectives)
    for _ in range(rounds):
        ends = []
        for i, objective in enumerate(objectives):
            params, sent = list(shared), [shared[k] for k in chosen]
            if own[i] is not None:
                once = weights[i] is not None
                w = weights[i] if once else [torch.ones_like(p) for p in sent]
                seen = []
                while True:
                    for k, p in zip(chosen, mixture(own[i], sent, w), strict=True):
                        params[k] = p
                    seen.append(float(objective(params)))
                    slopes = gradient_of(objective)(params)
                    w = [
                        torch.clip(v - eta * (s - o) * slopes[k], 0, 1)
                        for v, s, o, k in zip(w, sent, own[i], chosen, strict=True)
                    ]
                    if once or (len(seen) > 10 and np.std(seen[-10:]) < 0.1):
                        break
                weights[i] = w
                for k, p in zip(chosen, mixture(own[i], sent, w), strict=True):
                    params[k] = p
            end = sgd(params, gradient_of(objective), steps, lr, momentum, weight_decay)
            own[i] = [end[k] for k in chosen]
            ends.append(end)
        shared = [
            sum(n * e[k] for n, e in zip(counts, ends, strict=True)) / sum(counts)
            for k in range(len(start))
        ]
    return shared, own, weights


def gradient_of(objective):
    """The gradient of an objective as a function of the parameters."""

    def gradient(params):
        leaves = [p.clone().requires_grad_() for p in params]
        grads = torch.autograd.grad(objective(leaves), leaves, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]

    return gradient


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


def head_weights(features, variances):
    """Row i: client i's weights over the cohort's heads; entries <= 1e-3 zeroed, renormalised."""
    rows = []
    for i in range(len(variances)):
        alpha = simplex_by_enumeration(quadratic(features, variances, i))
        alpha = np.where(alpha <= 1e-3, 0.0, alpha)
        rows.append(alpha / alpha.sum())
    return np.array(rows)
