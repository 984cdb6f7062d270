"""The environment of a client's local training; lives for one task."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsim.client.criterion import MarginControl
from fedsim.client.dropout import NO_DRAWS, Draws
from fedsim.client.optimizer import dense
from fedsim.core.layout import FlatModel, as_tensor
from fedsim.core.rng import seed_for
from fedsim.core.types import RoundContext, Slot, Training, Vectors

Preprocess = Callable[[Tensor], Tensor]
"""Stored images (B, channels, H, W) uint8 -> model input (B, channels, size, size) float32."""

Precision = Callable[[], AbstractContextManager[object]]
"""Makes the context that a forward pass runs in, such as autocast."""

PARTS = {"all": (True, False), "head": (True,), "features": (False,)}
"""Per part of a model the values of ``Slot.head`` that belong to it."""


@dataclass(frozen=True)
class Phase:
    """A phase of local training: ``epochs`` over the client's data on one part of the model.

    What is not trained is frozen, its BatchNorm statistics included.
    """

    epochs: int
    lr: float
    part: Literal["all", "head", "features"] = "all"


@dataclass(kw_only=True)
class LocalEnv:
    """Model, data and state of a client during its local training; lives for one task.

    Args:
        flat: the model, loaded with ``start``.
        start: (D,) the vector that training starts from, on the model's device; never written.
        x: (n, channels, H, W) uint8 images of the client, y: (n, ...) targets, on the device.
        train: turns stored images into model input, with augmentation.
        test: the same without augmentation.
        criterion: the loss of the task, with margin control.
        downlink: what the server sent to everybody beside the model.
        state: what this client's rule kept at its last participation, or {}.
        precision: makes the context of each forward pass.
        relative_size: its number of samples by the mean over all clients.
        max_steps: the SGD steps that the client has time for; None for all.
        stream: key of its random numbers beside the client; None: the round.
        done: its steps in earlier rounds, where batches carry on over rounds.
        sizes: training samples of every client.
        sent: (D,) the model as the server sent it: ``start`` without the client's own values.
        draws: where the model's dropout layers are in their random numbers.
        params: the parameters that the current phase trains.
        steps: done so far.
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
    precision: Precision = nullcontext
    relative_size: float = 1.0
    max_steps: int | None = None
    stream: int | None = None
    done: int = 0
    sizes: Sequence[int] = ()
    sent: Tensor = field(default_factory=lambda: torch.empty(0))
    draws: Draws = NO_DRAWS
    phase: Phase = field(init=False)
    """The current phase."""
    params: list[Tensor] = field(default_factory=list)
    steps: int = 0

    @property
    def key(self) -> int:
        """Key of its random numbers beside the client, as of its ``ClientTask``."""
        return self.ctx.round if self.stream is None else self.stream

    @property
    def dropout_seed(self) -> int:
        """What ``draws`` begins with."""
        return seed_for(self.ctx.seed, "dropout", self.key, self.client_id)

    @property
    def steps_left(self) -> int | None:
        """How many more steps the client has time for, None without a limit."""
        return None if self.max_steps is None else self.max_steps - self.steps

    @property
    def model(self) -> nn.Module:
        """The model; ``model.features`` and ``model.head`` where it has them."""
        return self.flat.model

    def anchors(self) -> list[Tensor]:
        """The start values of the parameters in ``params``, as views of ``start``."""
        return self.split(self.start)

    def split(self, vector: Tensor) -> list[Tensor]:
        """Views of a vector (D,) or (P,) that belong to the parameters in ``params``."""
        return [vector[slot.where].view(slot.shape) for slot in self.slots()]

    def received(self, name: str) -> Tensor:
        """The server's downlink of this name, (P,) on the device; zeros before the first."""
        return self._tensor(self.downlink, name)

    def kept(self, name: str) -> Tensor:
        """This client's own state of this name, (P,) on the device; zeros before the first."""
        return self._tensor(self.state, name)

    def _tensor(self, vectors: Vectors, name: str) -> Tensor:
        if name not in vectors:
            return self.start.new_zeros(self.flat.layout.num_params)
        return as_tensor(vectors[name]).to(self.start.device)

    @property
    def moved(self) -> Tensor:
        """(P,) the parameters now minus those received."""
        params = slice(0, self.flat.layout.num_params)
        return self.flat.flat.detach()[params] - self.start[params]

    @property
    def effective_step_length(self) -> float:
        """lr |a|_1: how far the steps so far move a parameter whose gradient is always -1.

        Without weight decay; see :func:`normaliser`.
        """
        return self.ctx.lr * normaliser(self.steps, self.training.momentum)

    def vector_of(self, values: list[Tensor]) -> Tensor:
        """(D,) the model with these values in the place of ``params``, a copy."""
        vector = self.flat.flat.detach().clone()
        torch._foreach_copy_(self.split(vector), values)
        return vector

    def logits_at(self, values: Sequence[Tensor], x: Tensor, statistics: bool = False) -> Tensor:
        """The logits with these values in the place of ``params``.

        Running ``statistics`` see the pass, or stay.
        """
        there = dict(zip((slot.name for slot in self.slots()), values, strict=True))
        if not statistics:
            there |= {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        logits: Tensor = functional_call(self.model, there, (x,))
        return logits

    def slots(self) -> list[Slot]:
        """The slots of the parameters that the current phase trains, in vector order."""
        return [slot for slot, _ in self.flat.params if slot.head in PARTS[self.phase.part]]

    def grads(self) -> list[Tensor]:
        """The gradients of ``params``; zeros from now on where the loss does not reach one."""
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        return [p.grad for p in self.params if p.grad is not None]

    def reached(self) -> None:
        """After a backward pass: what forward has replaced is taken over, no gradient is sparse."""
        self.flat.settle()
        self.flat.changing()
        for p in self.params:
            p.grad = dense(p.grad)

    @property
    def weights(self) -> Tensor | None:
        """(B,) of the batch's samples where it is padded, 1/n or 0: in a block. None elsewhere."""
        return None

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one number per sample (B,), by ``weights`` where there are any."""
        return values.mean()

    def norm(self, tensor: Tensor) -> Tensor:
        """The Euclidean norm of a parameter or gradient; in a block each client's, (A, 1, ...)."""
        return tensor.norm()

    def still(self) -> None:
        """Evaluation mode, but for recurrent layers, which have gradients in no other."""
        self.flat.mode(train=False)
        for module in self.model.modules():
            module.training = isinstance(module, nn.RNNBase)  # cuDNN differentiates no others

    def gradient(self) -> Tensor:
        """(P,) the gradient of the criterion over all of the client's data, with weight decay.

        In eval mode, without augmentation, at the model's present values.
        """
        size, n = self.training.batch_size, self.criterion.count(self.y)
        self.still()
        for x, y in zip(self.x.split(size), self.y.split(size), strict=True):
            with self.precision():
                loss = self.criterion(self.model(self.test(x)), y)
            (loss * (self.criterion.count(y) / n)).backward()
        self.reached()
        gradient = self.start.new_zeros(self.flat.layout.num_params)
        with torch.no_grad():
            for view, g, p in zip(self.split(gradient), self.grads(), self.params, strict=True):
                view.copy_(g.add(p, alpha=self.training.weight_decay))
                p.grad = None
        return gradient

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, d) inputs of the head and (B, C) logits for model input ``x``."""
        h: Tensor = self.model.features(x)  # type: ignore[operator]
        return h, self.model.head(h)  # type: ignore[operator]

    @torch.no_grad()
    def features_of(self, vector: Tensor, x: Tensor) -> Tensor:
        """(B, d) inputs of the head for model input ``x``, by the model with other values (D,).

        In eval mode; the model keeps its own values and modes.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        slots = self.flat.layout.slots
        values = {f"model.{slot.name}": vector[slot.where].view(slot.shape) for slot in slots}
        self.model.eval()
        try:
            features: Tensor = functional_call(_Features(self.model), values, (x,))
        finally:
            self.model.train()  # lets go of what it kept of these values
            self.flat.changing()
            for module, training in modes:
                module.training = training
        return features

    @torch.no_grad()
    def features(self, batch_size: int = 256) -> Tensor:
        """(n, d) float32 inputs of the head for the client's images: eval mode, no augmentation."""
        self.flat.mode(train=False)
        with self.precision():
            parts = [self.model.features(self.test(x)) for x in self.x.split(batch_size)]  # type: ignore[operator]
        return torch.cat(parts).float()


class _Features(nn.Module):
    """The part of a model before its head as a module, whether it is one or a method."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, d)."""
        features: Tensor = self.model.features(x)  # type: ignore[operator]
        return features


def normaliser(steps: int, momentum: float, pull: float = 0.0) -> float:
    """|a|_1 of FedNova (Wang et al. 2020): the effective number of local steps.

    It is the distance, in learning rates, by which a constant gradient of one moves a parameter:
    the number of steps for plain SGD. The buffer of ``momentum`` starts at zero; ``pull`` is lr mu,
    the share of the distance that a proximal term takes back in each step.
    """
    distance = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * distance
        distance += velocity
    return distance
