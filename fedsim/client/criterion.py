"""The classification loss: cross-entropy with or without margin control.

Shapes: logits (B, C), features (B, d), labels (B,) int64. Half precision is computed in float32.
Sources: FedLD (Zeng et al., MICCAI 2024, Eq. 3) and Puli et al., "Don't blame dataset shift!"
(NeurIPS 2023), whose scalar margins are generalised to C classes by the log-sum-exp margin. Losses
of a single method are in that method's file.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim import tasks
from fedsim.core.errors import ConfigError, nearest
from fedsim.core.task import Task
from fedsim.core.types import Dataset

KAPPA = 1.2784645427610737
"""Root of u sigmoid(u) = 1: sigma-damp turns around at the margin kappa tau."""


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) margins ``f_y - logsumexp_{j != y} f_j``; cross-entropy is ``softplus(-margin)``."""
    true = logits.gather(1, labels[:, None]).squeeze(1)
    others = logits.scatter(1, labels[:, None], -math.inf)
    return true - others.logsumexp(dim=1)


def logit_hinge(logits: Tensor, threshold: float) -> Tensor:
    """(B,) ``max(0, ||f_b|| - u)^2``: a threshold u on the length of the logits."""
    squared = logits.square().sum(dim=1)
    beyond = squared > threshold**2
    length = torch.where(beyond, squared, torch.ones_like(squared)).sqrt()
    return torch.where(beyond, length - threshold, torch.zeros_like(length)).square()


def sigma_damp(logits: Tensor, labels: Tensor, scale: float, tau: float) -> Tensor:
    """(B,) ``softplus(-z)``, ``z = s m (1 - sigmoid(m / tau))`` (Puli et al. 2023)."""
    m = margins(logits, labels)
    return -F.logsigmoid(scale * m * torch.sigmoid(-m / tau))


def sigma_stitch(logits: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """(B,) ``softplus(-z)``, ``z = m`` up to u and ``2u - m`` beyond (Puli et al. 2023)."""
    m = margins(logits, labels)
    return -F.logsigmoid(torch.minimum(m, 2 * threshold - m))


def upcast(x: Tensor) -> Tensor:
    """Half precision as float32; other types are unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in the precision of its factors, without autocast."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


Reduce = Callable[[Tensor], Tensor]
"""The mean over a batch, or the sum over all of it."""

PENALTIES: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "marg_log": lambda f, _: torch.log1p(f.square().sum(dim=1)),
    "spectral": lambda f, _: f.square().sum(dim=1),
    "logit_hinge": logit_hinge,
}
"""Forms that add ``weight`` times the mean of these (B,) to the cross-entropy: :data:`FORMS`."""

REPLACEMENTS: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "sigma_damp": lambda f, y, tau: sigma_damp(f, y, 1.0, tau),
    "sigma_damp_kappa": lambda f, y, t: sigma_damp(f, y, KAPPA * t, 1 / KAPPA),
    "sigma_stitch": sigma_stitch,
}
"""Forms whose mean takes the place of the cross-entropy; they have a threshold and no weight."""

FORMS: Mapping[str, str] = {
    "none": "plain cross-entropy",
    "marg_log": "CE + weight * mean log(1 + ||logits||^2), FedLD as published",
    "softmax_frob": "CE + weight * log(1 + ||softmax||_F^2) of the batch, FedLD's released code",
    "spectral": "CE + weight * mean ||logits||^2",
    "logit_hinge": "CE + weight * mean max(0, ||logits|| - threshold)^2",
    "sigma_damp": "log loss of the damped margin m (1 - sigmoid(m / threshold))",
    "sigma_damp_kappa": "log loss of the damped margin with its maximum at m = 1, times threshold",
    "sigma_stitch": "log loss of the margin reflected at the threshold",
}
"""Every form of margin control with a line of explanation."""


@dataclass(frozen=True)
class MarginControl:
    """The classification loss of a method: cross-entropy with one form of margin control."""

    form: str = "none"  # a key of FORMS
    weight: float = 0.03  # lambda of the additive forms
    threshold: float | None = None  # tau, T or u; None: 2 for sigma_damp, else 1

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ConfigError(
                f"margin {self.form!r} is not one of {', '.join(FORMS)}{nearest(self.form, FORMS)}"
            )
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ConfigError(f"margin_weight is {self.weight}; it must be finite and >= 0")
        if self.threshold is not None and not self.threshold > 0:
            raise ConfigError(f"margin_threshold is {self.threshold}; it must be > 0")

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The scalar training loss."""
        return self.with_cross_entropy(logits, labels)[0]

    def with_cross_entropy(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The training loss and the plain cross-entropy of the same batch, both scalars.

        Logits (B, T, C) with labels (B, T) are as many samples as there are labels >= 0.
        """
        logits, labels = _counted(logits, labels)
        ce = F.cross_entropy(logits, labels)
        return self._objective(logits, labels, ce, Tensor.mean, Tensor.sum), ce

    def weighted(self, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`with_cross_entropy` where batches are padded, for one or many clients: (...) each.

        Of logits (..., B, C) or (..., B, T, C), labels (..., B) or (..., B, T), and weights
        (..., B), one over the number of samples, 0 for padding.
        """
        if labels.ndim > weights.ndim:
            counted = ((weights > 0).unsqueeze(-1) & (labels >= 0)).flatten(-2).to(weights)
            logits, labels = logits.flatten(-3, -2), labels.flatten(-2).clamp(min=0)
            weights = counted / counted.sum(dim=-1, keepdim=True)
        counted = (weights > 0).to(weights)
        many, labels = upcast(logits).flatten(0, -2), labels.flatten()

        def mean(values: Tensor) -> Tensor:
            return (weights * values.view_as(weights)).sum(dim=-1)

        def total(values: Tensor) -> Tensor:
            return (counted.unsqueeze(-1) * values.view(*weights.shape, -1)).sum(dim=(-2, -1))

        ce = mean(F.cross_entropy(many, labels, reduction="none"))
        return self._objective(many, labels, ce, mean, total), ce

    def per_token(self, labels: Tensor) -> bool:
        """Whether labels (B, T) are one for each token, of which those >= 0 count."""
        return labels.ndim == 2

    def count(self, labels: Tensor) -> int:
        """What the mean of a batch is over: samples, or labels of tokens that count."""
        return int((labels >= 0).sum()) if self.per_token(labels) else labels.shape[0]

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The plain losses that :meth:`count` counts."""
        return F.cross_entropy(*_counted(logits, labels), reduction="none")

    def example(self, logits: Tensor) -> Tensor:
        """Some labels for these logits."""
        return torch.zeros(logits.shape[:-1], dtype=torch.long)

    @property
    def couples(self) -> str | None:
        """Why the loss of a batch is no mean over its samples, None where it is."""
        return None

    def _objective(
        self, logits: Tensor, labels: Tensor, ce: Tensor, mean: Reduce, total: Reduce
    ) -> Tensor:
        """The training loss, from the cross-entropy and what reduces (B,) or (B, C)."""
        threshold = self.threshold or (2.0 if self.form == "sigma_damp" else 1.0)
        if self.form in REPLACEMENTS:
            return mean(REPLACEMENTS[self.form](logits, labels, threshold))
        if self.form == "none" or self.weight == 0:
            return ce
        if self.form == "softmax_frob":
            return ce + self.weight * torch.log1p(total(logits.softmax(dim=1).square()))
        return ce + self.weight * mean(PENALTIES[self.form](logits, threshold))


def _counted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (n, C) in float32 at least and labels (n,); of tokens those with labels >= 0."""
    if labels.ndim == 2:
        counted = labels >= 0
        logits, labels = logits[counted], labels[counted]
    return upcast(logits), labels


@dataclass(frozen=True, kw_only=True)
class TaskLoss(MarginControl):
    """The loss of another task than one class a sample, with a penalty of the logits.

    A penalty is the mean over a sample's logits where it has those of many pixels.
    """

    task: Task
    target: Tensor = field(compare=False)  # (1, ...) one of the data

    def with_cross_entropy(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The training loss and the plain one of a batch, both scalars."""
        loss = self.each(logits, labels).mean()
        if self.form == "none" or self.weight == 0:
            return loss, loss
        return loss + self.weight * self._penalties(upcast(logits)).mean(), loss

    def weighted(self, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`MarginControl.weighted`."""
        last = weights.ndim - 1
        many, labels = upcast(logits).flatten(0, last), labels.flatten(0, last)

        def mean(values: Tensor) -> Tensor:
            return (weights * values.view_as(weights)).sum(dim=-1)

        loss = mean(self.task.loss(many, labels))
        if self.form == "none" or self.weight == 0:
            return loss, loss
        return loss + self.weight * mean(self._penalties(many)), loss

    def _penalties(self, logits: Tensor) -> Tensor:
        """(B,) of logits (B, C, ...)."""
        rows = logits.flatten(2).transpose(1, 2).flatten(0, 1) if logits.ndim > 2 else logits
        threshold = 1.0 if self.threshold is None else self.threshold
        return PENALTIES[self.form](rows, threshold).view(len(logits), -1).mean(dim=1)

    def per_token(self, labels: Tensor) -> bool:
        """Targets are those of samples."""
        return False

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B,) the plain losses."""
        return self.task.loss(upcast(logits), labels)

    def example(self, logits: Tensor) -> Tensor:
        """The same target for all."""
        return self.target.expand(len(logits), *self.target.shape[1:])

    @property
    def couples(self) -> str | None:
        """Why the loss of a batch is no mean over its samples, None where it is."""
        return None if self.task.additive else f"the loss of task {self.task.name} is of a batch"


def criterion_of(margin: MarginControl, dataset: Dataset) -> MarginControl:
    """The loss of a data set's task with a method's margin control; a ConfigError where the task
    has no such form."""
    task = tasks.of(dataset)
    if task.cross_entropy:
        return margin
    control = f"margin {margin.form!r}: task {task.name}"
    if margin.form not in ("none", *PENALTIES):
        raise ConfigError(f"{control} has no margins of classes; none, {', '.join(PENALTIES)} do")
    if margin.form != "none" and task.margin is not None:
        raise ConfigError(f"{control}: {task.margin}; give --margin none")
    target = torch.as_tensor(dataset.y[:1])
    given = margin.form, margin.weight, margin.threshold
    return TaskLoss(*given, task=task, target=target)
