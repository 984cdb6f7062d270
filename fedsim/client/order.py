"""Batches that carry on over rounds (``train.local_steps``): a client's passes and their orders.

A client shuffles its samples, uses them up batch by batch over as many rounds as that takes, and
shuffles them again. Where it is follows from the steps that it has done, its only state, and the
order of a pass from its number: nothing else decides the batches of a round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from fedsim.client.context import LocalEnv
from fedsim.core.rng import torch_generator
from fedsim.core.types import ClientTask, ClientUpdate, Training, Vectors

STEPS = "steps_done"
"""Of a client's state: (1,) int64, its steps in all rounds."""


def steps_before(task: ClientTask, training: Training, state: Vectors) -> int:
    """The steps that came before a task's; 0 where batches do not carry on.

    Learners without a state, on pooled samples or the server's own, work in every round.
    """
    if training.local_steps is None:
        return 0
    if task.owners or task.work != "train":
        return task.ctx.round * training.local_steps
    return int(state[STEPS][0]) if STEPS in state else 0


def with_steps(
    update: ClientUpdate, task: ClientTask, training: Training, before: Vectors
) -> ClientUpdate:
    """The update of a task, with the steps so far in what the client keeps."""
    if training.local_steps is None or task.owners or task.work != "train":
        return update
    steps = np.array([steps_before(task, training, before) + update.num_steps])
    return replace(update, state={**update.state, STEPS: steps})


def num_batches(samples: int, size: int) -> int:
    """The batches of a pass; the last one may be short."""
    return max(-(-samples // size), 1)


def carried_batches(env: LocalEnv, samples: int) -> Iterator[Tensor]:
    """Indices of the batches from the client's place on, without end.

    ``samples`` are those that a pass uses, of all that it shuffles.
    """
    size = env.training.batch_size
    number, batch = divmod(env.done, num_batches(samples, size))
    for each in count(number):
        shuffled = order(env, each).to(env.x.device, non_blocking=True)
        for start in range(batch * size, samples, size):
            yield shuffled[start : min(start + size, samples)]
        batch = 0


def order(env: LocalEnv, number: int) -> Tensor:
    """(n,) the client's samples in the order of a pass, from 0, over them."""
    if env.training.shuffle == "dataloader":
        batches = [num_batches(n, env.training.batch_size) for n in env.sizes]
        place = draws_before(batches, env.client_id, number, env.training.local_steps or 1)
        stream = torch.Generator().manual_seed(env.ctx.seed)
        drawn = torch.empty(place + 1, dtype=torch.int64).random_(generator=stream)
        generator = torch.Generator().manual_seed(int(drawn[place]))
    else:
        generator = torch_generator(env.ctx.seed, "pass", env.client_id, number)
    return torch.randperm(len(env.x), generator=generator)


def draws_before(batches: Sequence[int], client: int, number: int, steps: int) -> int:
    """The numbers that DataLoaders draw before the seed of a client's pass.

    One process trains all clients in turn, in each round, for so many steps. Each has a DataLoader
    with ``shuffle=True``, whose iterator was made before the global generator was seeded. A pass
    begins with the first batch that is taken from it: its sampler draws a seed, and before that, in
    all passes but a client's first one, the new iterator another one.
    """
    round = number * batches[client] // steps
    drawn = 0
    for other, size in enumerate(batches):
        done = (round + (other < client)) * steps
        passes = number if other == client else -(-done // size)
        drawn += 2 * passes - min(passes, 1)
    return drawn + min(number, 1)
