"""Local training on F_i(w) = a_i/2 (w - b_i)^2 with full gradients."""

from __future__ import annotations


def gradient_steps(w, a, b, lr, num_steps, mu=0.0):
    """``num_steps`` gradient steps on F + mu/2 (w - w_start)^2 from w."""
    start = w
    for _ in range(num_steps):
        w = w - lr * (a * (w - b) + mu * (w - start))
    return w
