"""The clients: local training, what a method may change in it, the classification loss."""

from fedsim.client.context import LocalEnv, Phase, normaliser
from fedsim.client.criterion import MarginControl, matmul, upcast
from fedsim.client.trainer import Batch, FeaturePenalty, LocalRule, Uplink

__all__ = [
    "Batch",
    "FeaturePenalty",
    "LocalEnv",
    "LocalRule",
    "MarginControl",
    "Phase",
    "Uplink",
    "matmul",
    "normaliser",
    "upcast",
]
