"""Local training: the only SGD loop of fedsim, and the hooks in which methods differ.

A client's work is a pure function of its task, the global vector and the client's state: its random
numbers come from (seed, stream, client), where the stream is the round by default, the model is
loaded anew for each task, and nothing is kept between tasks. So it can run anywhere, be retried
after a crash and be replayed.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.client.context import PARTS, LocalEnv, Phase, labels
from fedsim.client.criterion import cross_entropies
from fedsim.client.optimizer import Optimizer
from fedsim.client.order import carried_batches
from fedsim.client.private import STEPS, PrivateGradients, poisson_batches
from fedsim.client.steps import Steps
from fedsim.core.rng import torch_generator
from fedsim.core.types import ClientUpdate, Vectors


@dataclass(frozen=True)
class Uplink:
    """What a rule sends beside the update, and what it keeps for its next participation."""

    extras: Vectors = field(default_factory=dict)
    state: Vectors = field(default_factory=dict)


UNDECLARED = "the rule does not declare that it is right for many clients at once (stackable)"
UNCAPTURABLE = "the rule does not declare that its steps can be replayed (capturable)"


class LocalRule:
    """The client part of a method; the defaults are plain training on the classification loss.

    Subclasses are frozen dataclasses and override the smallest hook that does it.
    """

    stackable: ClassVar[bool | str] = True
    """Whether clients may be trained as a block (``engine.client_batch``), or why they may not.

    A subclass says it for itself, and says True only if its ``loss`` and ``adjust_grads`` are right
    for A clients at once, which nothing checks:

    - ``adjust_grads`` sees tensors (A, *shape) in ``env.params``, ``env.grads()`` and ``s``, a
      client each in the first dimension, and combines them elementwise. A norm over a parameter is
      ``env.norm(tensor)``, ``env.relative_size`` is (A,).
    - ``loss`` and ``penalty`` run within ``torch.vmap`` and see one client, in a batch with
      padding: a mean over the samples is ``env.mean(values)``, values (B,), and no sample looks at
      another one.
    - ``begin`` and ``finish`` see one client alone, as always, and may change its model;
      ``begin`` returns tensors of equal shapes for all clients, in lists, tuples or dicts.
    """
    capturable: ClassVar[bool | str] = True
    """Whether a GPU may record a step once and replay it for all clients, or why it may not.

    A subclass says it for itself, and says True only if its ``loss`` and ``adjust_grads``

    - take nothing that differs by client or step but ``s``, ``env.start``, ``env.anchors()``,
      ``env.params``, ``env.grads()``, the model, the batch and torch's random numbers: a number
      that they read elsewhere (``env.steps``, ``env.ctx``, ``env.client_id``, ``env.received()``,
      ``env.kept()``, a property of a client) would be that of the client first recorded. ``begin``
      puts it into ``s``, as a tensor on the device;
    - ask no tensor for its value (``.item()``, ``float()``, ``if tensor``): that waits for the GPU.

    ``s`` has tensors, in lists, tuples or dicts, which are copied to a place of their own before
    the first step, numbers, strings and None, for each of which a step is recorded anew. ``begin``
    and ``finish`` run as always.
    """
    gradients_only: ClassVar[bool] = True
    """Whether all that the rule makes of the client's data are the gradients of the plain loss, so
    that DP-SGD (``dp.level=example``) protects the samples; a subclass says it for itself."""
    needs_features: ClassVar[bool] = False
    """Whether the model must have ``features`` and ``head``."""
    plain_sgd: ClassVar[bool] = False
    """Whether the method is defined for SGD without momentum only."""
    needs_sgd: ClassVar[bool] = False
    """Whether its equations hold for steps of SGD with one learning rate only; then
    ``train.optimizer=adamw`` and ``train.lr_head`` are refused."""

    def __init_subclass__(cls) -> None:
        """What another hook may not have is never inherited."""
        cls.stackable = vars(cls).get("stackable", UNDECLARED)
        cls.capturable = vars(cls).get("capturable", UNCAPTURABLE)
        cls.gradients_only = vars(cls).get("gradients_only", False)

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """The phases of local training, by default the configured epochs on all parameters."""
        return (Phase(env.training.local_epochs, env.ctx.lr),)

    def begin(self, env: LocalEnv) -> Any:
        """Runs once with the received model, before any step; training starts from what it leaves.

        What it returns is handed to the other hooks.
        """
        return None

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The objective of a batch and its plain cross-entropy (for the log), both scalars."""
        return env.criterion.with_cross_entropy(env.model(x), y)

    def adjust_grads(self, env: LocalEnv, s: Any) -> None:
        """Changes ``p.grad`` of ``env.params`` in place, after backward, before the step."""

    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """Runs once after the last step, for each client by itself, in a block as alone.

        ``env.model`` has the client's trained values and is in training mode. What this hook leaves
        in it is what the client uploads, or keeps where a tensor is personal: changes in place
        (under ``torch.no_grad``) count, and so do the BatchNorm statistics of a forward pass in
        training mode. ``env.x``, ``env.state``, ``env.moved``, ``env.steps`` and random numbers are
        this client's own; ``s`` is its part of what ``begin`` returned.

        Returns:
            Arrays with memory of their own, no views of the model, which the next client takes.
        """
        return Uplink()


class MeanLoss(LocalRule):
    """No training: the loss of the received model on the client's training samples."""

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """Nothing is trained."""
        return ()

    @torch.no_grad()
    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """``loss`` (1,), the mean, and ``squared_loss`` (1,), the mean square of the cross-entropy.

        In evaluation mode and without augmentation.
        """
        size, total, squares = env.training.batch_size, 0.0, 0.0
        env.flat.mode(train=False)
        for x, y in zip(env.x.split(size), env.y.split(size), strict=True):
            with env.precision():
                logits = env.model(env.test(x))
                total += float(env.criterion(logits, y)) * labels(y)
                squares += float(cross_entropies(logits, y).double().square().sum())
        n = labels(env.y)
        return Uplink({"loss": np.array([total / n]), "squared_loss": np.array([squares / n])})


class Batch(NamedTuple):
    """A batch as :meth:`FeaturePenalty.penalty` sees it."""

    x: Tensor  # (B, ...) model input
    y: Tensor  # (B,) labels
    h: Tensor  # (B, d) features, the inputs of the head
    logits: Tensor  # (B, C)


class FeaturePenalty(LocalRule):
    """Adds a penalty on the features to the classification loss."""

    needs_features: ClassVar[bool] = True

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`LocalRule.loss`."""
        h, logits = env.outputs(x)
        objective, ce = env.criterion.with_cross_entropy(logits, y)
        penalty = self.penalty(env, s, Batch(x, y, h, logits))
        return (objective if penalty is None else objective + penalty), ce

    def penalty(self, env: LocalEnv, s: Any, batch: Batch) -> Tensor | None:
        """A scalar, or None where there is no penalty."""
        raise NotImplementedError


Losses = tuple[list[Tensor], list[int]]
"""The losses () of a client's batches, where they were computed, and their numbers of labels."""


def train_local(rule: LocalRule, env: LocalEnv, steps: Steps | None = None) -> ClientUpdate:
    """Trains the loaded model on the client's data by the optimiser that ``env.training`` names.

    The local vector is in ``env.flat`` afterwards; the result has no delta yet.

    The optimiser starts fresh, data are reshuffled every epoch and the last short batch is kept,
    except a single sample after other batches where BatchNorm trains. With one sample per
    batch in all, BatchNorm uses its running statistics. With ``env.training.local_steps`` there
    are so many steps, and batches carry on from round to round (:mod:`fedsim.client.order`).

    With ``env.training.private`` batches are drawn and gradients made as in
    :mod:`fedsim.client.private`; clipping by ``clip_norm`` and the optimiser come after the noise.
    With ``steps``, those of the worker, a step is recorded and replayed where the rule allows it.
    """
    return trained(rule, env, steps)[0]


def trained(
    rule: LocalRule, env: LocalEnv, steps: Steps | None = None, read: bool = True
) -> tuple[ClientUpdate, Losses]:
    """:func:`train_local`, and the losses; their mean is NaN unless it is to be ``read``, for which
    a device is waited for."""
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
            sizes.append(labels(y))
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
