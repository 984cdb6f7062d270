"""What is read of clients' results before they leave: mean losses, and what is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from fedsim.client.trainer import Losses, mean_loss
from fedsim.core.layout import not_finite
from fedsim.core.types import Array, ClientUpdate, Layout


def judged(update: ClientUpdate, delta: Array, layout: Layout) -> ClientUpdate:
    """The update, which says what of it is NaN or infinite: the first such array, and the loss.

    Called where the arrays are in the cache.
    """
    return _judged(update, not_finite(delta, layout))


def read(
    updates: Sequence[ClientUpdate], losses: Sequence[Losses | None], rows: Tensor, layout: Layout
) -> list[ClientUpdate]:
    """The same of all updates of a call whose deltas are on a device, which is waited for once.

    Args:
        updates: without a mean loss where there are ``losses``.
        losses: of each update's batches, as they are on the device; None where they were read.
        rows: (k, D) deltas; one goes to the host only if its norm is not finite.
        layout: of the deltas.
    """
    batches = [torch.stack(own[0]).to(rows.device) for own in losses if own and own[0]]
    numbers = iter(torch.cat([torch.linalg.vector_norm(rows, dim=1), *batches]).tolist())
    norms = list(islice(numbers, len(rows)))
    complete = []
    for update, own, norm, row in zip(updates, losses, norms, rows, strict=True):
        if own is not None:
            loss = mean_loss(list(islice(numbers, len(own[0]))), own[1])
            update = replace(update, train_loss=loss)
        bad = [] if math.isfinite(norm) else not_finite(row.cpu().numpy(), layout)
        complete.append(_judged(update, bad))
    return complete


def _judged(update: ClientUpdate, tensors: Sequence[str]) -> ClientUpdate:
    """The update with what diverged, ``tensors`` of its delta among it."""
    bad = [f"upload {name}" for name, a in update.extras.items() if not np.isfinite(a).all()]
    bad += [f"own {name}" for name, a in update.state.items() if not np.isfinite(a).all()]
    bad += tensors
    causes = [f"tensor {name}" for name in bad[:1]]
    if update.num_steps and not math.isfinite(update.train_loss):
        causes.append("the training loss")
    return replace(update, diverged=" and ".join(causes)) if causes else update
