"""Local training: the only SGD loop of fedsim, and the hooks in which methods differ.

A client's work is a pure function of (global vector, client id, client state, round context): its
random numbers come from (seed, round, client), the model is loaded anew for each task, and nothing
is kept between tasks. So it can run anywhere, be retried after a crash and be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedsim.contracts import RoundContext, Slot, Training, Vectors
from fedsim.losses import MarginControl
from fedsim.rng import torch_generator
from fedsim.vectors import FlatModel

Preprocess = Callable[[Tensor], Tensor]
"""Stored images (B, channels, H, W) uint8 -> model input (B, channels, size, size) float32."""


PARTS = {"all": (True, False), "head": (True,), "features": (False,)}
"""Per part of a model the values of ``Slot.head`` that belong to it."""


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: ``epochs`` over the client's data on one part of the model.

    What is not trained is frozen, its BatchNorm statistics included.
    """

    epochs: int
    lr: float
    part: Literal["all", "head", "features"] = "all"


@dataclass
class LocalEnv:
    """What a client's training may look at; lives for one task.

    Args:
        flat: the model, loaded with ``start``.
        start: (D,) the vector that training starts from, on the model's device; never written.
        x: (n, channels, H, W) uint8 images of the client, y: (n,) labels, on the device.
        train, test: turn stored images into model input, with and without augmentation.
        criterion: the classification loss.
        downlink: what the server sent to everybody beside the model.
        state: what this client's rule kept at its last participation, or {}.
        phase, params: the current phase and the parameters it trains.
    """

    flat: FlatModel
    start: Tensor
    x: Tensor
    y: Tensor
    train: Preprocess
    test: Preprocess
    criterion: MarginControl
    num_classes: int
    training: Training
    ctx: RoundContext
    client_id: int
    downlink: Vectors
    state: Vectors
    phase: Phase = field(init=False)
    params: list[Tensor] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        """The model; ``model.features`` and ``model.head`` where it has them."""
        return self.flat.model

    def anchors(self) -> list[Tensor]:
        """The start values of the parameters in ``params``, as views of ``start``."""
        return [self.start[slot.where].view(slot.shape) for slot in self.slots()]

    def slots(self) -> list[Slot]:
        """The slots of the parameters that the current phase trains, in vector order."""
        return [slot for slot, _ in self.flat.params if slot.head in PARTS[self.phase.part]]

    def grads(self) -> list[Tensor]:
        """The gradients of ``params``; zeros where the loss does not reach one."""
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.params if p.grad is not None]

    @torch.no_grad()
    def features(self, batch_size: int = 256) -> Tensor:
        """(n, d) inputs of the head for the client's images, in eval mode, no augmentation."""
        self.model.eval()
        parts = [self.model.features(self.test(x)) for x in self.x.split(batch_size)]  # type: ignore[operator]
        return torch.cat(parts)


@dataclass(frozen=True)
class Uplink:
    """What a rule sends beside the update, and what it keeps for its next participation."""

    extras: Vectors = field(default_factory=dict)
    state: Vectors = field(default_factory=dict)


class LocalRule:
    """The client part of a method; the defaults are plain SGD on the classification loss.

    Subclasses are frozen dataclasses and override the smallest hook that does it. What
    :meth:`begin` returns is handed to the other hooks.
    """

    needs_features: ClassVar[bool] = False
    """Whether the model must have ``features`` and ``head``."""

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """The stretches of local training, by default the configured epochs on everything."""
        return (Phase(env.training.local_epochs, env.ctx.lr),)

    def begin(self, env: LocalEnv) -> Any:
        """Runs once with the received model, before any step."""
        return None

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The objective of a batch and its plain cross-entropy (for the log), both scalars."""
        return env.criterion.with_cross_entropy(env.model(x), y)

    def adjust_grads(self, env: LocalEnv, s: Any) -> None:
        """Changes ``p.grad`` of ``env.params`` in place, after backward, before the step."""

    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """Runs once after the last step."""
        return Uplink()


@dataclass(frozen=True)
class Trained:
    """The result of :func:`train_local`: the local vector is in ``env.flat``.

    ``train_loss`` is the plain cross-entropy, mean over the samples seen; NaN if there was no step.
    """

    uplink: Uplink
    num_steps: int
    train_loss: float


def train_local(rule: LocalRule, env: LocalEnv) -> Trained:
    """Trains the loaded model on the client's data by SGD (momentum and L2 as in torch.optim.SGD).

    The optimiser starts fresh, data are reshuffled every epoch and the last short batch is kept,
    except a single sample after other batches where BatchNorm trains. With one sample per
    batch in all, BatchNorm uses its running statistics.
    """
    order = torch_generator(env.ctx.seed, "shuffle", env.ctx.round, env.client_id)
    total = torch.zeros((), dtype=torch.float64, device=env.x.device)
    seen = num_steps = 0
    _enter(env, Phase(0, 0.0))
    s = rule.begin(env)
    for phase in rule.phases(env):
        _enter(env, phase)
        momentum: list[Tensor] = []
        for batch in _batches(env, phase.epochs, order):
            x, y = env.train(env.x[batch]), env.y[batch]
            objective, ce = rule.loss(env, s, x, y)
            objective.backward()
            with torch.no_grad():
                rule.adjust_grads(env, s)
                momentum = _sgd(env, momentum, phase.lr)
                total += ce.double() * len(y)
            seen += len(y)
            num_steps += 1
    _enter(env, Phase(0, 0.0))
    uplink = rule.finish(env, s)
    return Trained(uplink, num_steps, float(total) / seen if seen else float("nan"))


def _enter(env: LocalEnv, phase: Phase) -> None:
    """Selects what the phase trains; the rest is frozen, and in eval mode where it has one."""
    env.phase = phase
    wanted = PARTS[phase.part]
    for slot, parameter in env.flat.params:
        parameter.requires_grad_(slot.head in wanted)
    env.params = [parameter for slot, parameter in env.flat.params if slot.head in wanted]
    env.model.train(phase.part != "head")
    if env.training.frozen_bn or min(len(env.x), env.training.batch_size) == 1:
        for norm in env.flat.norms:
            norm.eval()


def _batches(env: LocalEnv, epochs: int, order: torch.Generator) -> Iterator[Tensor]:
    """Indices of the batches of all epochs, on the client's device."""
    n, size = len(env.x), env.training.batch_size
    lone = any(norm.training for norm in env.flat.norms) and n > size and n % size == 1
    for _ in range(epochs):
        shuffled = torch.randperm(n, generator=order)[: n - lone]
        yield from shuffled.to(env.x.device, non_blocking=True).split(size)


def _sgd(env: LocalEnv, momentum: list[Tensor], lr: float) -> list[Tensor]:
    """One step of SGD on all tensors at once; returns the momentum buffers."""
    grads, training = env.grads(), env.training
    if training.weight_decay:
        torch._foreach_add_(grads, env.params, alpha=training.weight_decay)
    if momentum:
        torch._foreach_mul_(momentum, training.momentum)
        torch._foreach_add_(momentum, grads)
    direction = momentum or grads
    torch._foreach_add_(env.params, direction, alpha=-lr)
    for p in env.params:
        p.grad = None
    return direction if training.momentum else []
