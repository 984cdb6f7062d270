"""Server rules and attacks on vectors, client by client, as the papers write them.

m clients, d coordinates. ``updates`` is (m, d) float64, one row per client: local - global.
No Gram matrix, no coefficients: every intermediate is a vector of d numbers. A network is a list of
(weight (out, in), bias (out,)) as nested arrays; ``x`` of attacks are h known updates.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import torch
from scipy.stats import norm

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


def reordered(network, orders):
    """The network with hidden layer l's unit ``orders[l][k]`` in place k."""
    before = list(range(network[0][0].shape[1]))
    out = []
    for (weight, bias), order in zip(network, [*orders, range(len(network[-1][1]))], strict=True):
        new, shifts = weight.copy(), bias.copy()
        for place, unit in enumerate(order):
            shifts[place] = bias[unit]
            for column, earlier in enumerate(before):
                new[place, column] = weight[unit, earlier]
        out.append((new, shifts))
        before = list(order)
    return out


def similarity(a, b):
    """Sum of the products of all weights."""
    return sum(float((w * v).sum() + (s * t).sum()) for (w, s), (v, t) in zip(a, b, strict=True))


def best_orders(reference, network):
    """The orders of the hidden layers with the largest similarity to the reference."""
    widths = [len(bias) for _, bias in network[:-1]]
    return max(
        product(*(permutations(range(width)) for width in widths)),
        key=lambda orders: similarity(reference, reordered(network, orders)),
    )


def shares(psi, client, clients, layers, width):
    """alpha (L, N) from a flat psi: embedding, three layers (w, w + 1), outputs (L N, w + 1)."""
    x, rest = psi[:width], psi[width:]
    for _ in range(3):
        weight = rest[: width * (width + 1)].reshape(width, width + 1)
        rest = rest[width * (width + 1) :]
        x = torch.relu(weight[:, :-1] @ x + weight[:, -1])
    rows = []
    for out in rest.reshape(layers, clients, width + 1):
        raw = torch.relu(out[:, :-1] @ x + out[:, -1])
        alone = torch.zeros(clients, dtype=psi.dtype)
        alone[client] = 1.0
        rows.append(raw / raw.sum() if raw.sum() > 0 else alone)
    return torch.stack(rows)


def mixture(alpha, models, layers):
    """Client's model: in layer l the sum over j of alpha[l, j] models[j]."""
    mixed = torch.empty_like(models[0])
    for row, columns in zip(alpha, layers, strict=True):
        mixed[columns] = sum(a * m[columns] for a, m in zip(row, models, strict=True))
    return mixed


def step(psi, client, trained, models, layers, lr, width):
    """psi after psi + lr (d mixture / d psi)^T (trained - mixture)."""
    psi = psi.clone().requires_grad_()
    mixed = mixture(shares(psi, client, len(models), len(layers), width), models, layers)
    (pull,) = torch.autograd.grad(mixed, psi, trained - mixed.detach())
    return psi.detach() + lr * pull


def mean_vector(x):
    return [math.fsum(column) / len(x) for column in zip(*x, strict=True)]


def distance2(a, b):
    return math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def alie(x, n, f, z=None):
    s = math.floor(n / 2 + 1) - f
    z = float(norm.ppf((n - f - s) / (n - f))) if z is None else z
    return [m - z * sigma for m, sigma in zip(mean_vector(x), std(x), strict=True)]


def ipm(x, scale):
    return [-scale * m for m in mean_vector(x)]


def strongest(sent, rule, x, f, tries=20):
    """The factor tau of ``sent(tau)`` for which rule(x, f times that) is farthest from the mean."""
    mean, tried = mean_vector(x), {}

    def away(tau):
        return distance2(rule(np.array([*x, *[sent(tau)] * f])), mean)

    best, step, phase = 0.0, 10.0, "expansion"
    tried[best] = away(best)
    while len(tried) < tries:
        tried[best + step] = away(best + step)
        if max(tried, key=tried.get) == best + step:
            best += step
        else:
            phase = "contraction"
        step = step * 2 if phase == "expansion" else step * 0.8
    return best


def std(x):
    mu = mean_vector(x)
    columns = zip(*x, strict=True)
    squares = [sum((v - m) ** 2 for v in c) for c, m in zip(columns, mu, strict=True)]
    return [math.sqrt(s2 / (len(x) - 1)) for s2 in squares]


def unit_vec(x):
    mu = mean_vector(x)
    size = math.sqrt(math.fsum(m * m for m in mu))
    return [m / size for m in mu]


def sign(x):
    return [math.copysign(1.0, m) for m in mean_vector(x)]


def min_max(x, direction=unit_vec):
    largest = max(distance2(a, b) for a in x for b in x)
    return _farthest(x, direction, lambda sent: max(distance2(sent, a) for a in x) <= largest)


def min_sum(x, direction=unit_vec, bound=min):
    most = bound(math.fsum(distance2(a, b) for b in x) for a in x)
    return _farthest(x, direction, lambda sent: math.fsum(distance2(sent, a) for a in x) <= most)


def _farthest(x, direction, allowed):
    mu, p = mean_vector(x), direction(x)
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
            mu = t / (t + 1) * mu + np.asarray(mean_vector(x)) / (t + 1)
            s = sum(((g - mu) @ z) * (g - mu) for g in x)
            z = s / np.linalg.norm(s) if t == 0 else (t * z + s / np.linalg.norm(s)) / (t + 1)
            z = z / np.linalg.norm(z)
            chosen.append(max(range(len(x)), key=lambda i: x[i] @ z))
        else:
            chosen.append(chosen[-1])
    return chosen, z
