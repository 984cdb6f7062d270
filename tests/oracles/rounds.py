"""Whole rounds on quadratics in float64, written from the papers, and server optimisers.

F_i(w) = sum_k a_ik / 2 (w_k - b_ik)^2, full gradients; ``a`` and ``b`` are (N, d), ``cohorts`` a
list of client lists, one per round. Every function gives the points after each round, (T, d).
"""

from __future__ import annotations

import math

import numpy as np


def fednova(a, b, cohorts, steps, samples, lr, rho=0.0, mu=0.0, gmf=0.0):
    """Wang et al. 2020: heavy-ball SGD, |a_i|_1 by its own recursion per client."""
    w = np.zeros(a.shape[1])
    buffer, path = np.zeros_like(w), []
    for cohort in cohorts:
        p = np.array([samples[i] for i in cohort], float)
        p /= p.sum()
        normed, taus, lengths = [], [], []
        for i in cohort:
            y, v = w.copy(), np.zeros_like(w)
            counter, total = 0.0, 0.0
            for _ in range(steps[i]):
                v = rho * v + a[i] * (y - b[i]) + mu * (y - w)
                y = y - lr * v
                if mu:
                    total = (1 - lr * mu) * total + 1
                else:
                    counter = rho * counter + 1
                    total += counter
            normed.append((y - w) / total)
            taus.append(steps[i])
            lengths.append(total)
        effective = p @ np.array(taus if mu else lengths)
        update = effective * (p @ np.array(normed))
        buffer = gmf * buffer + update
        w = w + buffer
        path.append(w)
    return np.array(path)


def scaffold(a, b, cohorts, steps, lr, eta_g=1.0, option="II"):
    """Karimireddy et al. 2020, Algorithm 1; also gives c and all c_i after each round."""
    n, d = a.shape
    x, c, own = np.zeros(d), np.zeros(d), np.zeros((n, d))
    path, controls = [], []
    for cohort in cohorts:
        moves, changes = [], []
        for i in cohort:
            y = x.copy()
            for _ in range(steps[i]):
                y = y - lr * (a[i] * (y - b[i]) - own[i] + c)
            fresh = own[i] - c + (x - y) / (steps[i] * lr)
            if option == "I":
                fresh = a[i] * (x - b[i])
            moves.append(y - x)
            changes.append(fresh - own[i])
        for i, change in zip(cohort, changes, strict=True):
            own[i] = own[i] + change
        x = x + eta_g * np.mean(moves, axis=0)
        c = c + len(cohort) / n * np.mean(changes, axis=0)
        path.append(x)
        controls.append((c.copy(), own.copy()))
    return np.array(path), controls


def fedcm(a, b, cohorts, steps, lr, alpha, eta_g=1.0):
    """Xu et al. 2021; also gives Delta after each round."""
    w, direction = np.zeros(a.shape[1]), np.zeros(a.shape[1])
    path, directions = [], []
    for cohort in cohorts:
        ends = []
        for i in cohort:
            y = w.copy()
            for _ in range(steps[i]):
                y = y - lr * (alpha * a[i] * (y - b[i]) + (1 - alpha) * direction)
            ends.append(y - w)
        rates = [move / (lr * steps[i]) for i, move in zip(cohort, ends, strict=True)]
        direction = -np.mean(rates, axis=0)
        w = w + eta_g * np.mean(ends, axis=0)
        path.append(w)
        directions.append(direction)
    return np.array(path), np.array(directions)


def feddyn(a, b, cohorts, alpha, samples=None):
    """Acar et al. 2021 with exact local minimisers; also gives h and all lambda_i.

    With ``samples`` client i takes alpha n_mean / n_i, as the official code does.
    """
    n, d = a.shape
    w, h, lam = np.zeros(d), np.zeros(d), np.zeros((n, d))
    path, kept = [], []
    for cohort in cohorts:
        ends = []
        for i in cohort:
            own = alpha if samples is None else alpha * np.mean(samples) / samples[i]
            theta = (a[i] * b[i] + lam[i] + own * w) / (a[i] + own)
            lam[i] = lam[i] - own * (theta - w)
            ends.append(theta)
        h = h - alpha / n * np.sum([theta - w for theta in ends], axis=0)
        w = np.mean(ends, axis=0) - h / alpha
        path.append(w)
        kept.append((h.copy(), lam.copy()))
    return np.array(path), kept


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


def gradient_steps(w, a, b, lr, num_steps, mu=0.0):
    """``num_steps`` gradient steps on F + mu/2 (w - w_start)^2 from w."""
    start = w
    for _ in range(num_steps):
        w = w - lr * (a * (w - b) + mu * (w - start))
    return w


def pfedme(a, b, cohorts, steps, samples, lr, lam, k, personal_lr, beta, decay):
    """Dinh et al. 2020; also gives theta by client after each round."""
    w, own, path, kept = np.zeros(a.shape[1]), {}, [], []
    for cohort in cohorts:
        ends = []
        for i in cohort:
            local, theta = w, w
            for _ in range(steps[i]):
                for _ in range(k):
                    slope = a[i] * (theta - b[i]) + decay * theta
                    theta = theta - personal_lr * (slope + lam * (theta - local))
                local = local - lr * lam * (local - theta)
            ends.append(local)
            own[i] = theta
        mean = np.average(ends, axis=0, weights=[samples[i] for i in cohort])
        w = (1 - beta) * w + beta * mean
        path.append(w)
        kept.append(dict(own))
    return np.array(path), kept


def apfl(a, b, cohorts, steps, samples, lr, alpha, adaptive, decay):
    """Deng et al. 2020; also gives v, alpha and the mixture by client after each round."""
    w, own, path, kept = np.zeros(a.shape[1]), {}, [], []
    for cohort in cohorts:
        ends = []
        for i in cohort:
            local = w
            v, share = own[i][:2] if i in own else (w, alpha)
            for step in range(steps[i]):
                slope = a[i] * (share * v + (1 - share) * local - b[i])
                after = share - lr * (v - local) @ slope if adaptive and step == 0 else share
                v = v - lr * (share * slope + decay * v)
                local = local - lr * (a[i] * (local - b[i]) + decay * local)
                share = min(max(after, 0.0), 1.0)
            ends.append(local)
            own[i] = v, share, share * v + (1 - share) * local
        w = np.average(ends, axis=0, weights=[samples[i] for i in cohort])
        path.append(w)
        kept.append(dict(own))
    return np.array(path), kept


def qfedavg(a, b, cohorts, steps, lr, q):
    """Li et al. 2020, Algorithm 2, with 1e-10 added to each loss as in the official code."""
    w, path = np.zeros(a.shape[1]), []
    for cohort in cohorts:
        moves, h = [], []
        for i in cohort:
            loss = 0.5 * (a[i] * (w - b[i]) ** 2).sum() + 1e-10
            away = (w - gradient_steps(w, a[i], b[i], lr, steps[i])) / lr
            moves.append(loss**q * away)
            h.append(q * loss ** (q - 1) * (away @ away) + loss**q / lr)
        w = w - np.sum(moves, axis=0) / np.sum(h)
        path.append(w)
    return np.array(path)


def afl(a, b, rounds, steps, lr, rate, project):
    """Mohri et al. 2019 with all clients; also gives lambda after each round.

    ``project`` is the projection on the simplex, None for exponentiated gradients.
    """
    n, d = a.shape
    w, lam, path, kept = np.zeros(d), np.full(n, 1 / n), [], []
    for _ in range(rounds):
        losses = np.array([0.5 * (a[i] * (w - b[i]) ** 2).sum() for i in range(n)])
        ends = [gradient_steps(w, a[i], b[i], lr, steps[i]) for i in range(n)]
        w = w + sum(lam[i] * (ends[i] - w) for i in range(n))
        if project is None:
            lam = lam * np.exp(rate * losses)
            lam = lam / lam.sum()
        else:
            lam = project(lam + rate * losses)
        path.append(w)
        kept.append(lam)
    return np.array(path), np.array(kept)


def ifca(a, b, cohorts, steps, samples, lr, models):
    """Ghosh et al. 2020 with model averaging, from k models (k, d); also gives the clusters."""
    models, path, clusters = np.array(models), [], []
    for cohort in cohorts:
        groups = {}
        for i in cohort:
            losses = [0.5 * (a[i] * (w - b[i]) ** 2).sum() for w in models]
            groups.setdefault(losses.index(min(losses)), []).append(i)
        fresh = models.copy()
        for j, members in groups.items():
            ends = [gradient_steps(models[j], a[i], b[i], lr, steps[i]) for i in members]
            fresh[j] = np.average(ends, axis=0, weights=[samples[i] for i in members])
        models = fresh
        path.append(models)
        clusters.append(groups)
    return np.array(path), clusters
