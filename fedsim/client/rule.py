"""What a method does on its clients: the hooks of local training."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsim.client.context import LocalEnv, Phase
from fedsim.core.types import Vectors


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

    ``s`` has tensors, in lists, tuples or dicts, and numbers, strings and None, for each of which a
    step is recorded anew. ``begin`` and ``finish`` run as always.
    """
    gradients_only: ClassVar[bool] = True
    """Whether all that the rule makes of the client's data are the gradients of the plain loss, so
    that DP-SGD (``dp.level=example``) protects the samples; a subclass says it for itself."""
    needs_features: ClassVar[bool] = False
    """Whether the model must have ``features`` and ``head``."""
    needs_classes: ClassVar[bool] = False
    """Whether targets must be classes (B,), for prototypes or a softmax of the rule's own."""
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
        in it is uploaded, or kept where a tensor is personal: changes in place (under
        ``torch.no_grad``), and BatchNorm statistics of a forward pass. ``env`` and random numbers
        are this client's own; ``s`` is its part of what ``begin`` returned.

        Returns:
            Arrays with memory of their own, no views of the model, which the next client takes.
        """
        return Uplink()


@torch.no_grad()
def mean_losses(env: LocalEnv) -> tuple[float, float]:
    """The mean loss of the model on the client's samples, and the mean square of the cross-entropy.

    In evaluation mode, in which the model is left, and without augmentation.
    """
    size, total, squares = env.training.batch_size, 0.0, 0.0
    env.flat.mode(train=False)
    for x, y in zip(env.x.split(size), env.y.split(size), strict=True):
        with env.precision():
            logits = env.model(env.test(x))
            total += float(env.criterion(logits, y)) * env.criterion.count(y)
            squares += float(env.criterion.each(logits, y).double().square().sum())
    n = env.criterion.count(env.y)
    return total / n, squares / n


class NoTraining(LocalRule):
    """``begin`` and ``finish`` alone, without any steps between them."""

    def phases(self, env: LocalEnv) -> tuple[Phase, ...]:
        """None."""
        return ()


class MeanLoss(NoTraining):
    """The loss of the received model on the client's training samples."""

    def finish(self, env: LocalEnv, s: Any) -> Uplink:
        """``loss`` (1,) and ``squared_loss`` (1,), those of :func:`mean_losses`."""
        total, squares = mean_losses(env)
        return Uplink({"loss": np.array([total]), "squared_loss": np.array([squares])})


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
