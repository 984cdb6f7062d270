"""pFedLA's server in float64 with torch's own derivatives, client by client, layer by layer."""

from __future__ import annotations

import torch


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
