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
    models in training mode and has no projection head; NIID-Bench's mu is 0.001; PFLlib has no
    projection head either, and its clients' previous model is the random initial one until they
    have trained
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import Batch, FeaturePenalty, LocalEnv, Uplink, upcast
from fedsim.core.layout import as_tensor
from fedsim.core.settings import NonNegative, Positive


def contrast(z: Tensor, near: Tensor, far: Tensor, temperature: float) -> Tensor:
    """``mean_b -log(e^{cos(z, near)/T} / (e^{cos(z, near)/T} + e^{cos(z, far)/T}))`` (MOON).

    All three are features (B, d).
    """
    z = upcast(z)
    closer = F.cosine_similarity(z, upcast(near)) - F.cosine_similarity(z, upcast(far))
    return F.softplus(-closer / temperature).mean()


@dataclass(frozen=True)
class Contrastive(FeaturePenalty):
    """Adds the contrast to the received and the client's previous model."""

    mu: float
    temperature: float
    stackable: ClassVar[bool | str] = (
        "a client's first participation has another loss than later ones"
    )
    capturable: ClassVar[bool | str] = True

    def begin(self, env: LocalEnv) -> Tensor | None:
        """(D,) the client's previous model, None in its first participation."""
        if "previous" not in env.state:
            return None
        return as_tensor(env.state["previous"]).to(env.start.device)

    def penalty(self, env: LocalEnv, s: Tensor | None, batch: Batch) -> Tensor | None:
        """Takes two more forward passes; None where there is no previous model."""
        if s is None:
            return None
        older = env.features_of(env.start, batch.x), env.features_of(s, batch.x)
        return self.mu * contrast(batch.h, *older, self.temperature)

    def finish(self, env: LocalEnv, s: Tensor | None) -> Uplink:
        """Keeps the trained model."""
        return Uplink(state={"previous": env.flat.vector()})


def build(mu: NonNegative = 1.0, temperature: Positive = 0.5) -> Algorithm:
    """MOON.

    Args:
        mu: weight of the contrastive term, >= 0.
        temperature: T, > 0.
    """
    return Algorithm(local=Contrastive(mu, temperature))
