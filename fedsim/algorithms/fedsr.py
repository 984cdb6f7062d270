"""FedSR: simple representations on the clients (Nguyen, Torr, Lim, NeurIPS 2022).

    z = mu(x) + sigma(x) eps,   eps ~ N(0, I)
    CE(head(z), y) + a_l2r mean_b ||z_b||^p
        + a_cmi mean_b sum_k KL( N(s mu, (s sigma)^2) || N(r_mu[y], r_sigma[y]^2) )_bk

A linear layer behind the features gives mu and, through softplus, sigma. The reference, r_mu and
r_sigma of each class, and the scale s > 0 are trained with the model. No prediction depends on
them; it is the mean softmax over 20 draws of z. ``deterministic`` is the variant FedL2R: z are the
features of the unchanged model and a_cmi has no effect.

:client: features z are sampled; CE + their length + their divergence from a Gaussian of the class
:server: uniform mean
:state: client the reference (2 C z_dim + 1), none with ``share_reference``
:sends: nothing more
:public code: the official code has the length unsquared (``l2r_power=1``, the default) where the
    paper squares it; keeps the reference on the client (``share_reference=false``, the default) and
    the optimiser's state over rounds; lets the scale become negative, where the loss is NaN
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.algorithms.base import Algorithm, no_slot
from fedsim.client import Batch, FeaturePenalty, LocalEnv, upcast
from fedsim.core.errors import ConfigError
from fedsim.core.settings import NonNegative
from fedsim.core.types import Slot
from fedsim.models.probabilistic import ProbabilisticModel
from fedsim.server import Average, Server, Weights


def lengths(z: Tensor, power: Literal[1, 2]) -> Tensor:
    """(B,) ``||z_b||^power`` of features (B, d)."""
    return torch.linalg.vector_norm(upcast(z), dim=1).pow(power)


def gaussian_divergence(mu: Tensor, sigma: Tensor, r_mu: Tensor, r_sigma: Tensor) -> Tensor:
    """``mean_b sum_k KL(N(mu, sigma^2) || N(r_mu, r_sigma^2))_bk``, all (B, d)."""
    mu, sigma, r_mu, r_sigma = upcast(mu), upcast(sigma), upcast(r_mu), upcast(r_sigma)
    ratio = (sigma.square() + (mu - r_mu).square()) / (2 * r_sigma.square())
    return ((r_sigma / sigma).log() + ratio - 0.5).sum(dim=1).mean()


@dataclass(frozen=True)
class ShortFeatures(FeaturePenalty):
    """Adds the length of the features (FedL2R)."""

    a_l2r: float
    power: Literal[1, 2]
    stackable = capturable = True

    def penalty(self, env: LocalEnv, s: Any, batch: Batch) -> Tensor:
        """``a_l2r`` times the length of the model's features."""
        return self.a_l2r * env.mean(lengths(batch.h, self.power))


@dataclass(frozen=True)
class SimpleRepresentation(ShortFeatures):
    """Adds the length of the sampled features and their divergence from the class's Gaussian."""

    a_cmi: float
    stackable, capturable, needs_classes = "draws noise for a whole batch", True, True  # type: ignore[assignment]

    def loss(self, env: LocalEnv, s: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One draw of torch's global generator for each sample."""
        mu, sigma = env.model.distribution(x)  # type: ignore[operator]
        z = mu + sigma * torch.randn_like(mu)
        objective, ce = env.criterion.with_cross_entropy(env.model.head(z), y)  # type: ignore[operator]
        objective = objective + self.a_l2r * env.mean(lengths(z, self.power))
        if self.a_cmi > 0:
            r_mu, r_sigma, scale = env.model.reference(y)  # type: ignore[operator]
            apart = gaussian_divergence(scale * mu, scale * sigma, r_mu, r_sigma)
            objective = objective + self.a_cmi * apart
        return objective, ce


def in_reference(slot: Slot) -> bool:
    """The slot belongs to the class Gaussians or their scale."""
    return slot.name.startswith("reference.")


def build(
    a_l2r: NonNegative = 0.01,
    a_cmi: NonNegative = 5e-4,
    l2r_power: Literal[1, 2] = 1,
    z_dim: Annotated[int, Field(ge=1, le=2**20)] | None = None,
    share_reference: bool = False,
    deterministic: bool = False,
    weights: Weights = "uniform",
) -> Algorithm:
    """FedSR.

    Args:
        a_l2r: weight of the length, >= 0.
        a_cmi: weight of the divergence, >= 0.
        l2r_power: 1 as the official code, 2 as the paper.
        z_dim: size of the representation, >= 1; None for that of the features.
        share_reference: the server averages the reference too.
        deterministic: FedL2R, the model's own features and no divergence; without ``z_dim`` and
            ``share_reference``, as there is neither.
        weights: of the models, uniform (the official code) or by samples.
    """
    if deterministic and (z_dim is not None or share_reference):
        raise ConfigError("fedsr.deterministic goes with neither z_dim nor share_reference")
    server = Server(Average(weights))
    if deterministic:
        return Algorithm(local=ShortFeatures(a_l2r, l2r_power), server=server)
    local = SimpleRepresentation(a_l2r, l2r_power, a_cmi)
    adapt = partial(ProbabilisticModel, z_dim=z_dim)
    personal = no_slot if share_reference else in_reference
    return Algorithm(local=local, server=server, personal=personal, one_model=True, adapt=adapt)
