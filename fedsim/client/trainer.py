"""Local training: the only SGD loop of fedsim; :mod:`fedsim.client.rule` has its hooks.

A client's work is a pure function of its task, the global vector and the client's state: its random
numbers come from (seed, stream, client), where the stream is the round by default, the model is
loaded anew for each task, and nothing is kept between tasks. So it can run anywhere, be retried
after a crash and be replayed.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.client.context import PARTS, LocalEnv, Phase
from fedsim.client.graphs import Steps
from fedsim.client.optimizer import Optimizer
from fedsim.client.order import carried_batches
from fedsim.client.private import STEPS, PrivateGradients, poisson_batches
from fedsim.client.rule import LocalRule
from fedsim.core.rng import torch_generator
from fedsim.core.types import ClientUpdate

Losses = tuple[list[Tensor], list[int]]
"""The losses () of a client's batches, where they were computed, and their numbers of labels."""


def trained(
    rule: LocalRule, env: LocalEnv, steps: Steps | None = None, read: bool = True
) -> tuple[ClientUpdate, Losses]:
    """Trains the loaded model on the client's data by the optimiser that ``env.training`` names.

    The local vector is in ``env.flat`` afterwards; the update has no delta yet, and the mean of the
    losses is NaN unless it is to be ``read``, for which a device is waited for.

    The optimiser starts fresh, data are reshuffled every epoch and the last short batch is kept,
    except a single sample after other batches where BatchNorm trains. With one sample per
    batch in all, BatchNorm uses its running statistics. With ``env.training.local_steps`` there
    are so many steps, and batches carry on from round to round (:mod:`fedsim.client.order`).

    With ``env.training.private`` batches are drawn and gradients made as in
    :mod:`fedsim.client.private`; clipping by ``clip_norm`` and the optimiser come after the noise.
    With ``steps``, those of the worker, a step is recorded and replayed where the rule allows it.
    """
    order = torch_generator(env.ctx.seed, "shuffle", env.key, env.client_id)
    private = env.training.private
    gradients = None if private is None else PrivateGradients(env, private)
    losses: list[Tensor] = []
    sizes: list[int] = []
    enter(env, Phase(0, 0.0))
    if env.draws.layers:  # the seed is a hash
        env.draws.begin([env.dropout_seed])
    if steps is not None:
        env.start = steps.tensor("start", env.start)
    s = rule.begin(env)
    env.flat.settle()
    env.draws.advance()
    phases = rule.phases(env)
    fixed = steps.fixed(rule, env, s) if steps is not None and phases else None
    for phase in phases:
        enter(env, phase)
        run: Callable[..., Tensor]
        if steps is None or fixed is None:
            optimizer = Optimizer(env.training, env.slots(), phase.lr)
            run = partial(_step, rule, env, s, optimizer, gradients)
        else:
            optimizer = steps.optimizer(env, phase.lr)
            step = partial(_step, rule, copy(env), fixed.state, optimizer, None)
            modes = phase.part, *(norm.training for norm in env.flat.norms)
            run = partial(fixed.run, step, modes, (), optimizer)
        for batch in islice(_batches(env, phase.epochs, order), env.steps_left):
            x, y = env.x.index_select(0, batch), env.y.index_select(0, batch)
            losses.append(run(x if gradients is not None else env.train(x), y))
            env.steps += 1
            env.draws.advance()
            sizes.append(env.criterion.count(y))
    if private is not None and env.steps and not any(sizes):  # no step drew a sample
        with torch.no_grad(), env.precision():
            _, ce = env.criterion.with_cross_entropy(env.model(env.train(env.x)), env.y)
        losses, sizes = [ce], [len(env.x)]
    enter(env, Phase(0, 0.0))
    uplink = rule.finish(env, s if fixed is None else fixed.released())
    env.flat.settle()
    state = uplink.state
    if private is not None:
        before = env.state.get(STEPS, np.zeros(1, np.int64))
        state = {**state, STEPS: before + env.steps}
    update = ClientUpdate(
        client_id=env.client_id,
        num_samples=env.x.shape[0],
        num_steps=env.steps,
        train_loss=mean_loss(torch.stack(losses).tolist(), sizes) if read and sizes else math.nan,
        extras=uplink.extras,
        state=state,
        version=env.ctx.round,
    )
    return update, (losses, sizes)


def _step(
    rule: LocalRule,
    env: LocalEnv,
    s: Any,
    optimizer: Optimizer,
    gradients: PrivateGradients | None,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """One step on a batch, of model inputs or for DP-SGD of samples: its cross-entropy, ()."""
    env.draws.first()
    if gradients is None:
        with env.precision():
            objective, ce = rule.loss(env, s, x, y)
        objective.backward()
        env.reached()
    else:
        ce = gradients(x, y) / max(len(x), 1)
    with torch.no_grad():
        rule.adjust_grads(env, s)
        if env.training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(env.params, env.training.clip_norm)
        optimizer.step(env.params, [p.grad for p in env.params])
        for p in env.params:
            p.grad = None
    return ce.detach()


def mean_loss(losses: Sequence[float], sizes: Sequence[int]) -> float:
    """The mean of the batches' losses over labels, in float64; NaN without a batch."""
    return sum(map(operator.mul, losses, sizes)) / sum(sizes) if sizes else math.nan


def enter(env: LocalEnv, phase: Phase) -> None:
    """Selects what the phase trains; the rest is frozen, and in eval mode where it has one."""
    if not env.params or env.phase.part != phase.part:
        env.params = []
        for slot, parameter in env.flat.params:
            trained = slot.head in PARTS[phase.part]
            parameter.requires_grad_(trained)
            if trained:
                env.params.append(parameter)
    env.phase = phase
    env.flat.mode(train=phase.part != "head")
    if env.training.frozen_bn or min(env.x.shape[0], env.training.batch_size) == 1:
        for norm in env.flat.norms:
            norm.eval()


def _batches(env: LocalEnv, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    """Indices of a phase's batches, on the client's device: drawn for DP-SGD, else shuffled."""
    if env.training.private is not None:
        return poisson_batches(env, epochs, order)
    if env.training.local_steps is not None:
        return islice(carried_batches(env, _used(env)), env.training.local_steps)
    return _shuffled(env, epochs, order)


def _shuffled(env: LocalEnv, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    n, size, samples = env.x.shape[0], env.training.batch_size, _used(env)
    for _ in range(epochs):
        shuffled = torch.randperm(n, generator=order).to(env.x.device, non_blocking=True)
        for start in range(0, samples, size):
            yield shuffled[start : start + size]


def _used(env: LocalEnv) -> int:
    """How many of the client's samples a pass over them uses."""
    trained = any(norm.training for norm in env.flat.norms)
    return epoch_samples(env.x.shape[0], env.training.batch_size, trained)


def epoch_samples(n: int, batch_size: int, batchnorm: bool) -> int:
    """How many of n samples are in the batches of an epoch; BatchNorm cannot train on one alone."""
    return n - (batchnorm and n > batch_size and n % batch_size == 1)
