"""A head whose logits are those of a generic head and of a residual, for FedRoD."""

import copy

import torch
from torch import Tensor, nn

from fedsim.core.errors import ConfigError


class ResidualHead(nn.Module):
    """``generic(z) + personal(z)``; ``personal`` is a layer like ``generic`` and starts at 0."""

    def __init__(self, generic: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = generic.in_features, generic.out_features
        self.generic, self.personal = generic, copy.deepcopy(generic)
        with torch.no_grad():
            for parameter in self.personal.parameters():
                parameter.zero_()

    def forward(self, z: Tensor) -> Tensor:
        """Features (B, d) -> logits (B, C)."""
        logits: Tensor = self.generic(z) + self.personal(z)
        return logits

    forward_clients = forward  # a client dimension in front is the layers' concern


def with_residual(model: nn.Module) -> nn.Module:
    """The model with a :class:`ResidualHead` in place of its head, a linear layer."""
    head = getattr(model, "head", None)
    if not hasattr(model, "features") or not isinstance(head, nn.Linear):
        raise ConfigError(
            "a residual head stands beside a linear layer 'head' behind 'features'; a "
            f"{type(model).__name__} does not have both, a fedsim.models.SplitModel does"
        )
    model.head = ResidualHead(head)
    return model
