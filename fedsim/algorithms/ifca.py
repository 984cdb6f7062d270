"""IFCA: clusters of clients, each with a model (Ghosh et al., NeurIPS 2020, Algorithm 1).

    client:  j = argmin_j F_i(w_j),   w_i <- SGD from w_j
    server:  w_j <- w_j + sum_{i of cluster j} p_i (w_i - w_j),   as it was where nobody chose it

F_i is the loss on all of the client's training samples; of equal ones the first counts. This is the
paper's model averaging; one step on all data (``train.local_steps=1``, a large batch) is its
gradient averaging. The first model starts as ``fedavg`` does, the others with the values of each of
its tensors in other orders; with pretrained weights shuffle the head alone (``start=head``).

The global model of a run is w_1; a client is scored with the model that it would choose now. At
``clusters`` = 1 it is FedAvg, byte for byte.

:client: a pass over its data for each of the k models, then SGD from the best one
:server: mean by samples, cluster by cluster
:state: server the other k - 1 models ((k - 1) D)
:sends: up the cluster, down the other k - 1 models
:public code: the official code lets every client take part and averages uniformly on MNIST and
    CIFAR-10 (``weights=uniform``), by samples on FEMNIST; it chooses for a test by the test samples
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, LocalRule, NoTraining, Uplink, mean_losses
from fedsim.core.layout import as_tensor
from fedsim.core.rng import generator
from fedsim.core.settings import Count
from fedsim.core.types import Array, Layout
from fedsim.server import Server, Weights
from fedsim.server.clusters import FirstCluster, OtherClusters


@dataclass(frozen=True)
class Shuffled:
    """The models that the clusters but the first start with."""

    clusters: int
    tensors: str

    def __call__(self, first: Array, layout: Layout, seed: int) -> Array:
        """(k - 1, D), from the first model (D,)."""
        models = np.tile(first, (self.clusters - 1, 1))
        for j, model in enumerate(models, start=2):
            rng = generator(seed, "ifca", j)
            for slot in layout.slots:
                if slot.role == "param" and (slot.head or self.tensors == "all"):
                    model[slot.where] = rng.permutation(model[slot.where])
        return models


@dataclass(frozen=True)
class BestModel(LocalRule):
    """Training starts from the model with the least loss."""

    starts: Shuffled
    stackable = capturable = True

    def begin(self, env: LocalEnv) -> Tensor:
        """The number of the model, (1,), from 0."""
        others = env.downlink.get("models")
        if others is None:
            others = self.starts(env.start.cpu().numpy(), env.flat.layout, env.ctx.seed)
        models = [env.start, *(as_tensor(m).to(env.start.device) for m in others)]
        losses = []
        for model in models:
            env.flat.load(model)
            losses.append(mean_losses(env)[0])
        chosen = int(np.argmin(losses))
        env.flat.load(models[chosen])
        return torch.tensor([chosen], device=env.start.device)

    def finish(self, env: LocalEnv, s: Tensor) -> Uplink:
        """``cluster`` (1,)."""
        return Uplink({"cluster": s.cpu().numpy().copy()})


class BestModelAlone(NoTraining, BestModel):
    """The model is chosen, and not trained."""


def build(
    clusters: Count = 2, start: Literal["all", "head"] = "all", weights: Weights = "samples"
) -> Algorithm:
    """IFCA.

    Args:
        clusters: k, the number of models.
        start: the tensors whose values are shuffled for the start of the others.
        weights: of a cluster's clients, by samples or uniform.
    """
    starts = Shuffled(clusters, start)
    server = Server(
        FirstCluster(clusters, weights),
        exchange=OtherClusters(starts, weights),
        incompatible_reason="averages its clients' models cluster by cluster",
        needs_same_start=True,
    )
    return Algorithm(local=BestModel(starts), server=server, personalise=BestModelAlone(starts))
