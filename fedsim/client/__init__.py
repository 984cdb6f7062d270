"""The clients: local training, what a method may change in it, the classification loss."""

from fedsim.client.context import LocalEnv, Phase, normaliser
from fedsim.client.criterion import MarginControl, matmul, upcast
from fedsim.client.rule import (
    Batch,
    FeaturePenalty,
    LocalRule,
    MeanLoss,
    NoTraining,
    Uplink,
    mean_losses,
)
from fedsim.client.transform import ClientTransform, Coded, SampleTransform

__all__ = [
    "Batch",
    "ClientTransform",
    "Coded",
    "FeaturePenalty",
    "LocalEnv",
    "LocalRule",
    "MarginControl",
    "MeanLoss",
    "NoTraining",
    "Phase",
    "SampleTransform",
    "Uplink",
    "matmul",
    "mean_losses",
    "normaliser",
    "upcast",
]
