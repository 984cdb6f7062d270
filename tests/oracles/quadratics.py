"""Local training on F_i(w) = a_i/2 (w - b_i)^2 with full gradients, and where rounds settle."""

from __future__ import annotations


def gradient_steps(w, a, b, lr, num_steps, mu=0.0):
    """``num_steps`` gradient steps on F + mu/2 (w - w_start)^2 from w."""
    start = w
    for _ in range(num_steps):
        w = w - lr * (a * (w - b) + mu * (w - start))
    return w


def exact_prox(w, a, b, mu):
    """argmin over v of a/2 (v - b)^2 + mu/2 (v - w)^2."""
    return (a * b + mu * w) / (a + mu)


def rounds(w, local, curvatures, centres, p, num_rounds):
    """FedAvg's outer loop: w <- w + sum_i p_i (local_i(w) - w)."""
    for _ in range(num_rounds):
        step = 0.0
        for a, b, p_i in zip(curvatures, centres, p, strict=True):
            step += p_i * (local(w, a, b) - w)
        w += step
    return w
