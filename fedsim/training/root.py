"""The server's own training on a part of the validation samples, the root set (FLTrust).

It starts from the model that the round's clients get, and trains by section ``train`` as they do:
on plain cross-entropy, without transforms and state, with random numbers of its own. With
dp.level=example it is trained without clipping and noise: what is protected are the samples of
clients. It takes neither simulated time nor bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedsim.core.errors import ConfigError, DivergedError, WorkerError
from fedsim.core.rng import generator
from fedsim.core.types import I64, Array, ClientTask, Dataset, RoundContext
from fedsim.engine.base import Executor, Models

if TYPE_CHECKING:
    from fedsim.training.setup import Setup


def draw_root(samples: int, dataset: Dataset, seed: int) -> I64:
    """(samples,) indices of validation samples, uniformly without replacement, ascending.

    Raises:
        ConfigError: the validation part has fewer.
    """
    if len(dataset.val) < samples:
        raise ConfigError(
            f"fltrust.samples: {samples} given; the server trains on so many validation samples, "
            f"and {dataset.name} has {len(dataset.val)}: set data.val_fraction, as in 0.1, or "
            "lower fltrust.samples"
        )
    if not samples:
        return dataset.val[:0]
    return np.sort(generator(seed, "root").choice(dataset.val, samples, replace=False))


def reference(setup: Setup, executor: Executor, models: Models, ctx: RoundContext) -> Array | None:
    """(D,) the server's own update of a round; None where its rule needs none.

    Raises:
        DivergedError: it is not finite.
        WorkerError: the training failed.
    """
    if not setup.algorithm.server.root_samples:
        return None
    client = setup.partition.participants[0]  # places the work; the key is no round's
    task = ClientTask(client=client, ctx=ctx, work="root", stream=-1 - ctx.round)
    executor.broadcast(models)
    updates = executor.run([task], models, {})
    if not updates:
        raise WorkerError(f"{task.title} failed; errors.csv says why")
    if updates[0].diverged is not None:
        raise DivergedError(f"{task.title}: {updates[0].diverged} is NaN or infinite")
    return updates[0].delta
