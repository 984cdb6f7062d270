"""A few test images with their masks, true and predicted by the final models: examples.npz."""

from __future__ import annotations

import io

import numpy as np

from fedsim.core.types import I64, Array, Owned
from fedsim.engine.base import PREDICTIONS, Executor
from fedsim.metrics.splits import clients_with, indices
from fedsim.storage.checkpoint import ServerState
from fedsim.training.evaluate import Candidate, measured, own_model
from fedsim.training.setup import Setup

CLIENTS, EACH = 6, 3
"""Of at most so many clients so many images each, or of the common test part of none as many."""
BYTES = 256 << 20
"""A common test part with larger masks is left out."""


def examples(setup: Setup, executor: Executor, state: ServerState) -> bytes | None:
    """The file, of n images: ``images`` (n, channels, H, W), ``masks`` and ``predictions``
    (n, H, W) uint8, ``samples`` (n,), ``clients`` (n,) names; None where there is nothing to show.
    """
    data, owners = setup.dataset, clients_with(setup.partition, "test")[:CLIENTS]
    if setup.task.output != "pixel" or (not owners and data.y[data.test].nbytes > BYTES):
        return None
    one, personal = Candidate(None, lambda: (state.params, {})), setup.personalised
    models = {c: own_model(state, c) if personal else one for c in owners}
    shown: list[tuple[I64, Array, str]] = []
    for c, (masks,) in measured(
        executor, models, lambda c: [Owned("test", (c,), EACH)], PREDICTIONS
    ):
        index = indices(setup.spec, Owned("test", (c,), EACH))
        name = setup.partition.names[c] if setup.partition.names else f"client {c}"
        shown.append((index, np.asarray(masks), name))
    if not owners and not personal:
        ((_, (masks,)),) = measured(executor, {0: one}, ["test"], PREDICTIONS)
        first = slice(CLIENTS * EACH)
        shown.append((indices(setup.spec, "test")[first], np.asarray(masks)[first], "test"))
    if not shown:
        return None
    samples = np.concatenate([index for index, _, _ in shown])
    file = io.BytesIO()
    np.savez(
        file,
        images=data.x[samples],
        masks=data.y[samples],
        predictions=np.concatenate([masks for _, masks, _ in shown]),
        samples=samples,
        clients=np.repeat([name for *_, name in shown], [len(index) for index, *_ in shown]),
    )
    return file.getvalue()
