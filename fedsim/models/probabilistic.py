"""A classifier on a Gaussian representation, for FedSR (Nguyen et al., NeurIPS 2022).

B samples, ``z_dim`` numbers of the representation, C classes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.core.errors import ConfigError
from fedsim.models.vision import SplitModel

DRAWS = 20
"""Number of representations per sample over which an evaluation averages."""


class Reference(nn.Module):
    """A reference Gaussian per class, which regularises the representations, and a common scale.

    ``r_mu`` (C, z_dim) starts at 0; softplus of ``r_sigma`` (C, z_dim), which starts at 1, and of
    ``scale``, a number, are what counts and thereby positive. The scale starts at 1.
    """

    def __init__(self, num_classes: int, z_dim: int) -> None:
        super().__init__()
        self.r_mu = nn.Parameter(torch.zeros(num_classes, z_dim))
        self.r_sigma = nn.Parameter(torch.ones(num_classes, z_dim))
        self.scale = nn.Parameter(torch.tensor(math.log(math.expm1(1.0))))

    def forward(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Labels (B,) -> means (B, z_dim), standard deviations (B, z_dim), the scale ()."""
        return self.r_mu[labels], F.softplus(self.r_sigma[labels]), F.softplus(self.scale)


class ProbabilisticModel(nn.Module):
    """Samples -> N(mu, diag(sigma^2)) -> z -> logits ``head(z)``.

    In training mode the logits (B, C) are those of one draw of z per sample, from torch's global
    generator. In evaluation mode they are the logarithm of the mean softmax over :data:`DRAWS`
    draws, whose standard normal numbers are drawn once, at the build, and serve all samples.
    ``z_dim`` is the size of the representation, by default the number of ``model``'s features.
    ``reference`` is for the method's loss alone.
    """

    noise: Tensor

    def __init__(self, model: nn.Module, z_dim: int | None = None) -> None:
        if not isinstance(model, SplitModel):
            raise ConfigError(
                "a Gaussian representation takes the place of the features before a linear head; "
                f"a {type(model).__name__} does not have both, a fedsim.models.SplitModel does"
            )
        super().__init__()
        z_dim = z_dim or model.head.in_features
        num_classes = model.head.out_features
        self.backbone = model.features
        self.encoder = nn.Linear(model.head.in_features, 2 * z_dim)
        self.head = type(model.head)(z_dim, num_classes)
        self.reference = Reference(num_classes, z_dim)
        self.register_buffer("noise", torch.randn(DRAWS, z_dim), persistent=False)

    def distribution(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Samples -> mu (B, z_dim) and sigma (B, z_dim) > 0."""
        mu, raw = self.encoder(self.backbone(x)).chunk(2, dim=-1)
        return mu, F.softplus(raw)

    def features(self, x: Tensor) -> Tensor:
        """Samples -> mu (B, z_dim), what the head sees where nothing is drawn."""
        return self.distribution(x)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Samples -> (B, C) logits, by one draw in training and by all in evaluation."""
        mu, sigma = self.distribution(x)
        if self.training:
            logits: Tensor = self.head(mu + sigma * torch.randn_like(mu))
            return logits
        noise = self.noise.view(DRAWS, *[1] * (mu.ndim - 1), -1)
        each = self.head(mu + sigma * noise).log_softmax(dim=-1)
        return each.logsumexp(dim=0) - math.log(DRAWS)
