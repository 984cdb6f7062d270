"""MOON: model-contrastive learning (Li, He, Song, CVPR 2021).

    CE + mu mean_b -log( e^{cos(z, z_glob)/T} / (e^{cos(z, z_glob)/T} + e^{cos(z, z_prev)/T}) )

z are the head's inputs of the model in training, z_glob those of the received model and z_prev
those of the client's own model at the end of its last participation, on the same augmented batch;
the last two are constants, in evaluation mode. A client that takes part for the first time has no
such term. The paper puts a projection head (linear, ReLU, linear to 256) before the classifier:
``--set model.projection=256``, for all methods of a comparison. mu is 5 for CIFAR-10, 1 for
CIFAR-100 and Tiny-ImageNet.

:client: CE + mu times the contrast of the features to those of two older models
:server: mean by samples
:state: client its last model (D)
:sends: nothing more
:public code: FedDecorr's copy has no temperature (``temperature=1``); FL-bench runs the two older
    models in training mode and has no projection head; NIID-Bench's mu is 0.001
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client.criterion import contrast
from fedsim.client.trainer import LocalEnv, LocalRule, Uplink
from fedsim.core.errors import ConfigError
from fedsim.core.layout import as_tensor


@dataclass(frozen=True)
class Contrastive(LocalRule):
    """Adds the contrast to the received and the client's previous model."""

    mu: float
    temperature: float
    needs_features: ClassVar[bool] = True

    def begin(self, env: LocalEnv) -> Tensor | None:
        """(D,) the client's previous model, None in its first participation."""
        if "previous" not in env.state:
            return None
        return as_tensor(env.state["previous"]).to(env.start.device)

    def loss(self, env: LocalEnv, s: Tensor | None, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Two more forward passes where there is a previous model."""
        z, logits = env.outputs(x)
        objective, ce = env.criterion.with_cross_entropy(logits, y)
        if s is not None:
            older = env.features_of(env.start, x), env.features_of(s, x)
            objective = objective + self.mu * contrast(z, *older, self.temperature)
        return objective, ce

    def finish(self, env: LocalEnv, s: Tensor | None) -> Uplink:
        """Keeps the trained model."""
        return Uplink(state={"previous": env.flat.vector()})


def build(mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """MOON.

    Args:
        mu: weight of the contrastive term, >= 0.
        temperature: T, > 0.
    """
    if not mu >= 0:
        raise ConfigError(f"moon.mu is {mu}; it must be >= 0")
    if not temperature > 0:
        raise ConfigError(f"moon.temperature is {temperature}; it must be > 0")
    return Algorithm(local=Contrastive(mu, temperature))
