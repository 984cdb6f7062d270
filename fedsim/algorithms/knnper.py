"""kNN-Per: a global model and its neighbours at home (Marfoq et al., ICML 2022, Eqs. 6 to 8).

FedAvg trains the global model h with features phi. For a sample x of client i, N_k(x) are the k of
its training samples whose features are nearest to phi(x):

    p_i(y | x) = sum_{j in N_k(x), y_j = y} e^{-d_j} / sum_{j in N_k(x)} e^{-d_j}
    prediction = weight * p_i(. | x) + (1 - weight) * softmax(h(x))

d_j = ||phi(x) - phi(x_j)||^2 / (dim * scale) as in the official code, or with
``distance=euclidean`` ||phi(x) - phi(x_j)|| / scale, the paper's at a scale of 1. Features are
those of the newest model. Fine-tuned models have no neighbours. ``weight=0`` is FedAvg.

:client: plain SGD
:server: mean by samples
:state: none; features and labels of its samples are computed for each evaluation
:sends: nothing more
:public code: the official code has k as an argument (10 in the paper) and shows all weights on the
    test data (the paper chooses one for each client by validation); by default it mixes logits with
    probabilities, as FL-bench does, which has k 5 and features before the last ReLU
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.algorithms.base import Algorithm
from fedsim.client import LocalEnv, NoTraining, Uplink, upcast
from fedsim.core.settings import Count, Positive, Probability
from fedsim.server import Average, Server, Weights

TINY = torch.finfo(torch.float32).tiny
"""The least probability, so that no loss is infinite."""


class Remember(NoTraining):
    """The features and labels of the client's training samples."""

    needs_features = needs_classes = True

    def finish(self, env: LocalEnv, s: object) -> Uplink:
        """``keys`` (n, d) and ``labels`` (n,)."""
        keys, labels = env.features().cpu().numpy(), env.y.clone().cpu().numpy()
        return Uplink(state={"keys": keys, "labels": labels})


@dataclass(frozen=True)
class Neighbours:
    """The mixture with the neighbours' labels, as logits."""

    k: int
    weight: float
    scale: float
    distance: str

    def shares(self, h: Tensor, keys: Tensor, labels: Tensor, classes: int) -> Tensor:
        """(B, C) p_i for features h (B, d), among those (n, d) of samples with labels (n,)."""
        d = torch.cdist(h, keys, compute_mode="donot_use_mm_for_euclid_dist") / self.scale
        d = d * d * (self.scale / h.shape[1]) if self.distance == "squared" else d
        near = d.topk(min(self.k, len(keys)), largest=False)
        votes = F.one_hot(labels[near.indices], classes) * (-near.values).softmax(1).unsqueeze(-1)
        return votes.sum(1)

    def __call__(self, model: nn.Module, kept: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """(B, ...) -> (B, C); those of the model where no neighbours are kept."""
        if "keys" not in kept or self.weight == 0:
            logits: Tensor = model(x)
            return logits
        h: Tensor = model.features(x)  # type: ignore[operator]
        chances = upcast(model.head(h)).softmax(dim=1)  # type: ignore[operator]
        near = self.shares(upcast(h), kept["keys"], kept["labels"], chances.shape[1])
        return torch.lerp(chances, near, self.weight).clamp(min=TINY).log()


def build(
    k: Count = 10,
    weight: Probability = 0.5,
    scale: Positive = 1.0,
    distance: Literal["squared", "euclidean"] = "squared",
    weights: Weights = "samples",
) -> Algorithm:
    """kNN-Per.

    Args:
        k: neighbours of a sample; a client with fewer samples takes all.
        weight: of the neighbours in the prediction, in [0, 1].
        scale: of the kernel, > 0.
        distance: squared and divided by the number of features (the official code), or euclidean.
        weights: of the global model's updates, by samples, or uniform.
    """
    near = Neighbours(k, weight, scale, distance)
    return Algorithm(server=Server(Average(weights)), personalise=Remember(), predict=near)
