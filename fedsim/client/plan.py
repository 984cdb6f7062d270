"""The batches of the clients of a block, at each step."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedsim.client.context import LocalEnv
from fedsim.client.order import order
from fedsim.client.trainer import epoch_samples
from fedsim.core.errors import ContractError
from fedsim.core.rng import seed_for
from fedsim.core.types import I64, Training


def num_steps(n: int, training: Training, batchnorm: bool, max_steps: int | None = None) -> int:
    """The SGD steps of a client with n samples, of a model with or without trained BatchNorm."""
    samples = epoch_samples(n, training.batch_size, batchnorm)
    steps = training.local_steps
    if steps is None:
        steps = training.local_epochs * -(-samples // training.batch_size)
    return steps if max_steps is None else min(steps, max_steps)


class BatchPlan:
    """The batches of B clients in at most T steps, padded to W samples.

    ``steps`` are the clients' numbers of steps and ``counts`` (B, T) their batch sizes. ``numbers``
    (B, T, W) are the indices of the samples of these batches, among the samples of the whole block,
    and ``weights`` (B, T, W) one over the batch size. Padding has weight 0 and repeats the client's
    first sample, so that all values are finite. ``alone`` (B,) marks clients whose batches have a
    single sample.
    """

    def __init__(self, envs: Sequence[LocalEnv], width: int) -> None:
        training, start = envs[0].training, envs[0].start
        size, batchnorm = training.batch_size, bool(envs[0].flat.norms) and not training.frozen_bn
        n = [len(env.x) for env in envs]
        if width > size or max(n) > width < size:
            raise ContractError(
                f"clients of {max(n)} samples in batches of {size} do not fit the width {width}"
            )
        self.steps = [
            num_steps(k, training, batchnorm, env.max_steps) for k, env in zip(n, envs, strict=True)
        ]
        if self.steps != sorted(self.steps, reverse=True):
            raise ContractError(f"a block of clients with {self.steps} steps is not sorted by them")
        samples = np.array([epoch_samples(k, size, batchnorm) for k in n])
        batches = np.maximum(-(-samples // size), 1)
        carried = training.local_steps is not None
        begun = np.array([env.done for env in envs]) if carried else np.zeros_like(batches)
        passes, begun = begun // batches, begun % batches
        t = np.arange(self.steps[0])
        batch = (begun[:, None] + t) % batches[:, None]
        self.counts: I64 = np.clip(samples[:, None] - batch * size, 0, size)
        self.counts[t >= np.array(self.steps)[:, None]] = 0
        numbers = np.empty((len(envs), len(t), width), np.int64)
        generator, first = torch.Generator(), 0
        for i, env in enumerate(envs):
            numbers[i] = first
            first += n[i]
            generator.manual_seed(seed_for(env.ctx.seed, "shuffle", env.key, env.client_id))
            starts = range(-int(begun[i]), self.steps[i], int(batches[i]))
            for number, begin in enumerate(starts, int(passes[i])):
                shuffled = (
                    order(env, number) if carried else torch.randperm(n[i], generator=generator)
                )
                left = shuffled.numpy()[max(-begin, 0) * size : samples[i]]
                epoch = numbers[i, max(begin, 0) : begin + batches[i]].reshape(-1)[: len(left)]
                epoch += left[: len(epoch)]
        counted = np.arange(width) < self.counts[..., None]
        weights = counted / np.maximum(self.counts, 1)[..., None]
        self.numbers = torch.from_numpy(numbers).to(start.device)
        self.weights = torch.from_numpy(weights).to(start.device, start.dtype)
        self.alone = torch.tensor([min(k, size) == 1 for k in n], device=start.device)

    def sizes(self, t: int) -> list[int]:
        """The batch sizes in step t of the clients that still have steps to do."""
        return [count for count in self.counts[:, t].tolist() if count]

    def means(self, losses: Tensor, y: Tensor, per_token: bool) -> list[float]:
        """Each client's mean over labels of the losses (T, B) of its batches, in float64.

        ``y`` are the targets of all clients, one for each sample or ``per_token``.
        """
        counts = self.counts
        if per_token:
            tokens = (y[self.numbers] >= 0).sum(-1) * (self.weights > 0)
            counts = tokens.sum(-1).cpu().numpy()
        totals = (losses.double().cpu().numpy().T * counts).sum(axis=1).tolist()
        labels = counts.sum(axis=1).tolist()
        return [total / k if k else float("nan") for total, k in zip(totals, labels, strict=True)]
