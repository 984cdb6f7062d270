"""The models by name, what they are and what they take; without torch."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fedsim.core.types import Inputs
from fedsim.version import DISTRIBUTION


@dataclass(frozen=True)
class ModelInfo:
    """A model of the catalogue.

    Args:
        module: of :mod:`fedsim.models`, with a function of the model's name (num_classes,
            in_channels, image_size) -> model; for other inputs see :class:`ModelSpec`.
        description: what it is, in one line.
        min_size: of an image, in pixels.
        inputs: what it takes.
        per_token: it predicts a class for every token: (B, T) -> (B, T, C).
    """

    module: Literal["vision", "leaf"]
    description: str
    _: KW_ONLY
    min_size: int = 1
    inputs: tuple[Inputs, ...] = ("images",)
    per_token: bool = False


_VECTORS: tuple[Inputs, ...] = ("images", "features")
_TOKENS: tuple[Inputs, ...] = ("tokens",)

CATALOGUE: Mapping[str, ModelInfo] = {
    "logistic": ModelInfo("vision", "logistic regression on pixels or features", inputs=_VECTORS),
    "logistic_reference": ModelInfo(
        "vision",
        "the same with class 0 as reference: for two classes one output and a sigmoid",
        inputs=_VECTORS,
    ),
    "mlp": ModelInfo("vision", "one hidden layer of 64 ReLU units", inputs=_VECTORS),
    "cnn": ModelInfo(
        "vision", "three 3x3 convolutions (16, 32, 64) with norm; trains on a CPU", min_size=4
    ),
    "cnn_reddi": ModelInfo("vision", "two convolutions, 1.2 M parameters (Reddi 2021)", min_size=6),
    "cnn_mcmahan": ModelInfo(
        "vision", "FedAvg's MNIST CNN, 1.7 M parameters (McMahan 2017)", min_size=4
    ),
    "cnn_fedavg": ModelInfo(
        "vision", "two 5x5 convolutions, 0.8 M parameters (FedDyn, FedSAM)", min_size=16
    ),
    "resnet18": ModelInfo("vision", "ResNet-18, 11.2 M parameters, ImageNet weights", min_size=8),
    "resnet50": ModelInfo("vision", "ResNet-50, 23.5 M parameters, ImageNet weights", min_size=8),
    "mobilenetv2_cifar": ModelInfo(
        "vision", "MobileNetV2 for small images, 2.3 M parameters", min_size=8
    ),
    "leaf_femnist": ModelInfo("leaf", "LEAF's CNN for FEMNIST, 6.6 M parameters", min_size=4),
    # from 9 pixels the last BatchNorm sees four values of a channel in a single image
    "leaf_celeba": ModelInfo("leaf", "LEAF's CNN for CelebA, 31,202 parameters", min_size=9),
    "leaf_synthetic": ModelInfo(
        "leaf", "LEAF's perceptron with a sigmoid, for features", inputs=("features",)
    ),
    "leaf_synthetic_linear": ModelInfo(
        "leaf", "the same without the sigmoid", inputs=("features",)
    ),
    "leaf_sent140": ModelInfo(
        "leaf", "LEAF's LSTM for Sent140: a class for a text", inputs=_TOKENS
    ),
    "leaf_shakespeare": ModelInfo(
        "leaf", "LEAF's LSTM for Shakespeare: the next character", inputs=_TOKENS
    ),
    "leaf_reddit": ModelInfo(
        "leaf",
        "LEAF's LSTM for Reddit: a class for every token",
        inputs=_TOKENS,
        per_token=True,
    ),
}

NAMES: Mapping[str, str] = {name: entry.description for name, entry in CATALOGUE.items()}
"""The models' names and what each is, in one line."""

LIBRARIES: Mapping[str, str] = {
    "timm": "a network of timm, as in timm:vit_tiny_patch16_224 "
    f"(pip install '{DISTRIBUTION}[models]')",
    "torchvision": "a classifier of torchvision, as in torchvision:efficientnet_b0",
}
"""Libraries whose networks are named ``LIBRARY:NAME``, each with a line of explanation."""
