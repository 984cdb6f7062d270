"""A block of clients trained as one model with a client dimension in front.

:func:`train_block` is to a block what :func:`~fedsim.client.trainer.trained` is to a client.
``begin`` and ``finish`` of a rule run once per client, on its own LocalEnv, and what they leave in
the model counts as it does there; ``adjust_grads`` runs once for all of them, on stacked tensors;
``loss``, where a rule has its own, within ``torch.vmap``.

B clients, A of which still have steps to do, T steps, W samples in a padded batch, D numbers in a
model, the first P of them parameters. No bit of a client's result depends on the other clients: W
is the same for a whole run, a lone client is computed twice (alone, a convolution takes another
path), and gradients come from one leaf (A, P), so that they are contiguous: for others the fused
SGD computes wrong steps without an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedsim.client.batched import Padding
from fedsim.client.context import LocalEnv, Phase
from fedsim.client.criterion import MarginControl
from fedsim.client.graphs import Fixed, Steps
from fedsim.client.optimizer import rate, sgd
from fedsim.client.plan import BatchPlan, num_steps
from fedsim.client.rule import LocalRule, Uplink
from fedsim.client.stack import Stack, obstacle
from fedsim.client.trainer import enter
from fedsim.core.errors import ContractError
from fedsim.core.rng import TorchStreams, seed_for
from fedsim.core.types import ClientUpdate

__all__ = ["Stack", "num_steps", "obstacle", "train_block"]


class BlockEnv:
    """The :class:`LocalEnv` of a block, for ``loss`` and ``adjust_grads``.

    It has no client's own data or state: ``begin`` returns what these hooks need of them.
    ``params`` and :meth:`grads` are stacked, (A, *shape).
    """

    def __init__(self, env: LocalEnv, stack: Stack) -> None:
        self.model = stack.model
        self.criterion = _Weighted(env.criterion, stack)
        self.training, self.ctx = env.training, env.ctx
        self.phase = Phase(env.training.local_epochs, env.ctx.lr)
        self.num_classes, self.downlink = env.num_classes, env.downlink
        self.relative_size: Tensor  # these three are of the clients that have steps to do
        self.params: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self._stack = stack

    def grads(self) -> list[Tensor]:
        return self.gradients

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h: Tensor = self.model.features(x)  # type: ignore[operator]
        return h, self.model.head(h)  # type: ignore[operator]

    @property
    def weights(self) -> Tensor:
        return self._stack.padding.weights

    def mean(self, values: Tensor) -> Tensor:
        return (self.weights * values).sum(dim=-1)

    def norm(self, tensor: Tensor) -> Tensor:
        norms = tensor.reshape(len(tensor), -1).norm(dim=1)
        return norms.view(-1, *[1] * (tensor.ndim - 1))


class _Weighted:
    """The criterion with padding left out."""

    def __init__(self, criterion: MarginControl, stack: Stack) -> None:
        self._criterion, self._stack = criterion, stack

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.with_cross_entropy(logits, labels)[0]

    def with_cross_entropy(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._criterion.weighted(logits, labels, self._stack.padding.weights)


def train_block(
    rule: LocalRule, envs: Sequence[LocalEnv], stack: Stack, width: int, steps: Steps | None = None
) -> tuple[list[ClientUpdate], Tensor]:
    """Trains the clients as one model; agrees with each alone up to rounding.

    ``envs`` are sorted by descending :func:`num_steps` and share a FlatModel, that of ``stack``.
    ``width`` is W, the same for a whole run: the batch size, or the samples of the largest client
    if that is smaller. Returns the updates in the order of ``envs``, without deltas, and the
    vectors (B, D) after training.
    """
    device = envs[0].start.device
    plan = BatchPlan(envs, width)
    streams = TorchStreams(
        lambda i: seed_for(envs[i].ctx.seed, "client", envs[i].key, envs[i].client_id), device
    )
    rows = torch.stack([env.start for env in envs])
    s = _stacked(_begin(rule, envs, streams, rows))
    fixed = None if steps is None else steps.fixed(rule, envs[0], s)
    losses = _train(rule, envs, stack, plan, streams, s, rows, fixed)
    s = s if fixed is None else fixed.released()
    updates = []
    for i, (env, row) in enumerate(zip(envs, rows, strict=True)):
        env.steps = plan.steps[i]
        uplink = Uplink()
        if type(rule).finish is not LocalRule.finish:
            env.flat.load(row)
            enter(env, Phase(0, 0.0))
            env.draws.begin([env.dropout_seed], env.steps + 1)
            with streams.of(i, torch_only=False):
                uplink = rule.finish(env, _tensors(itemgetter(i), s))
            env.flat.settle()
            row.copy_(env.flat.flat)
        updates.append(
            ClientUpdate(
                client_id=env.client_id,
                num_samples=len(env.x),
                num_steps=env.steps,
                train_loss=losses[i],
                extras=uplink.extras,
                state=uplink.state,
                version=env.ctx.round,
            )
        )
    return updates, rows


def _begin(
    rule: LocalRule, envs: Sequence[LocalEnv], streams: TorchStreams, rows: Tensor
) -> list[Any]:
    """What ``begin`` returns for each client; ``rows`` (B, D) become the models that it leaves."""
    begun: list[Any] = []
    for i, (env, row) in enumerate(zip(envs, rows, strict=True)):
        env.phase = Phase(0, 0.0)
        if type(rule).begin is LocalRule.begin:
            begun.append(None)
            continue
        env.flat.load(env.start)
        enter(env, env.phase)
        env.draws.begin([env.dropout_seed])
        with streams.of(i, torch_only=False):
            begun.append(rule.begin(env))
        env.flat.settle()
        row.copy_(env.flat.flat)
    return begun


def _train(
    rule: LocalRule,
    envs: Sequence[LocalEnv],
    stack: Stack,
    plan: BatchPlan,
    streams: TorchStreams,
    s: Any,
    rows: Tensor,
    fixed: Fixed | None = None,
) -> list[float]:
    """All steps; the vectors ``rows`` (B, D) are changed in place. The clients' training losses."""
    env, training = envs[0], envs[0].training
    P = env.flat.layout.num_params
    stack.reset()
    stack.draws.begin([e.dropout_seed for e in envs], step=1)
    for norm in stack.norms:
        norm.train(not training.frozen_bn)
    x, y = torch.cat([e.x for e in envs]), torch.cat([e.y for e in envs])
    relative = rows.new_tensor([e.relative_size for e in envs])
    lr, values, params = rate(env.ctx.lr, rows), rows, rows[:, :P].contiguous()
    momentum: list[Tensor] = []
    if fixed is not None:
        lr = fixed.steps.tensor("rate", cast(Tensor, rate(env.ctx.lr, rows, fixed=True)))
        values, params = fixed.steps.tensor("rows", rows), fixed.steps.tensor("params", params)
        momentum = [fixed.steps.tensor("momentum", params)] if training.momentum else []
        s = fixed.state
    stats = stack.views(values)[len(env.flat.params) :]
    step = _step(rule, env, stack, s, params, stats, momentum, lr, relative, fixed is None)
    losses = rows.new_zeros(plan.steps[0], len(rows))
    for t in range(len(losses)):
        sizes = plan.sizes(t)
        A = len(sizes)
        samples, weights, alone = plan.numbers[:A, t], plan.weights[:A, t], plan.alone[:A]
        stack.padding = Padding(weights, alone)
        if stack.augments:
            images = _augmented(env, x, samples, sizes, streams)
        else:
            images = env.train(x[samples.flatten()]).unflatten(0, samples.shape)
        batch = images, y[samples], weights, alone
        if fixed is None:
            losses[t, :A] = step(t == 0, *batch)
        else:
            key = "block", rows.shape, t == 0
            written = [values, params, *momentum]
            losses[t, :A] = fixed.run(partial(step, t == 0), key, written, None, *batch)
        stack.draws.advance()
    if fixed is not None:
        rows.copy_(values)
    rows[:, :P] = params
    return plan.means(losses, y, env.criterion.per_token(y))


def _step(
    rule: LocalRule,
    env: LocalEnv,
    stack: Stack,
    s: Any,
    params: Tensor,
    stats: Sequence[Tensor],
    momentum: list[Tensor],
    lr: float | Tensor,
    relative: Tensor,
    grows: bool,
) -> Callable[..., Tensor]:
    """A step of A clients on a padded batch of each: their cross-entropies (A,).

    It writes ``params`` (B, P), ``stats``, and ``momentum``, which ``grows`` in the first step.
    """
    block = BlockEnv(env, stack)
    loss, clip = _loss(rule, block, stack, s), env.training.clip_norm

    def step(first: bool, images: Tensor, y: Tensor, weights: Tensor, alone: Tensor) -> Tensor:
        stack.draws.first()
        A = len(images)
        leaf = _pair(params[:A]).requires_grad_()
        buffers = [_pair(v[:A]) for v in stats]
        state = _tensors(itemgetter(slice(A)), s)
        with env.precision():
            objective, ce = loss(
                [*stack.views(leaf), *buffers],
                _tensors(_pair, state),
                *map(_pair, (images, y, weights, alone)),
            )
        (gradient,) = torch.autograd.grad(objective.sum(), leaf)
        gradient = gradient[:A].contiguous()
        with torch.no_grad():
            if A == 1:
                for v, new in zip(stats, buffers, strict=True):
                    v[:1] = new[:1]
            block.params, block.gradients = stack.views(params[:A]), stack.views(gradient)
            block.relative_size = relative[:A]
            rule.adjust_grads(cast(LocalEnv, block), state)
            if clip is not None:
                norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
                gradient *= (clip / (norms + 1e-6)).clamp(max=1.0)
            held = [m[:A] for m in momentum]
            held = sgd([params[:A]], [gradient], held, env.training, lr, first)
            if grows:
                momentum[:] = held
        return ce.detach()[:A]

    return step


def _loss(
    rule: LocalRule, env: BlockEnv, stack: Stack, s: Any
) -> Callable[..., tuple[Tensor, Tensor]]:
    """(values, s, x, y, weights, alone) of all clients -> the rule's loss of each: (A,) twice."""

    def loss(
        values: Sequence[Tensor], s: Any, x: Tensor, y: Tensor, weights: Tensor, alone: Tensor
    ) -> tuple[Tensor, Tensor]:
        stack.load(values)
        stack.padding = replace(stack.padding, weights=weights, alone=alone)
        return rule.loss(cast(LocalEnv, env), s, x, y)

    if not stack.vmapped:
        return loss
    dims = tree_map(lambda v: 0 if isinstance(v, Tensor) else None, s)
    return torch.vmap(loss, in_dims=(0, dims, 0, 0, 0, 0))


def _stacked(values: Sequence[Any]) -> Any:
    """The rules' states as one: tensors are stacked to (B, ...), other values must be equal."""

    def join(first: Any, *others: Any) -> Any:
        values = (first, *others)
        if not isinstance(first, Tensor):
            if any(v != first for v in others):
                raise ContractError(
                    f"begin returns {first!r} for one client of a block and something else for "
                    "another one; return a tensor"
                )
            return first
        if all(v.data_ptr() == first.data_ptr() for v in values):
            return first.expand(len(values), *first.shape)
        return torch.stack(values)

    return tree_map(join, *values)


def _tensors(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A rule's state with a function applied to its tensors."""
    return tree_map(lambda v: function(v) if isinstance(v, Tensor) else v, state)


def _pair(v: Tensor) -> Tensor:
    """The tensor (A, ...), with a lone client repeated: (2, ...)."""
    return v.detach() if len(v) > 1 else v.detach().repeat(2, *[1] * (v.ndim - 1))


def _augmented(
    env: LocalEnv, x: Tensor, samples: Tensor, sizes: list[int], streams: TorchStreams
) -> Tensor:
    """(A, W, ...) the model's input for samples (A, W); each client draws as it would alone."""
    drawn = []
    for i, n in enumerate(sizes):
        with streams.of(i):
            images = env.train(x[samples[i, :n]])
        padding = images[:1].expand(samples.shape[1] - n, *images.shape[1:])
        drawn.append(torch.cat([images, padding]))
    return torch.stack(drawn)
