"""The models by name, what they are and what they take; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedsim.core.types import Inputs
from fedsim.version import DISTRIBUTION


@dataclass(frozen=True)
class ModelInfo:
    """A model of the catalogue: a function (num_classes, in_channels, image_size) -> model."""

    module: Literal[
        "vision", "leaf", "unet"
    ]  # of fedsim.models, with a function of the model's name
    description: str
    min_size: int = 1  # of an image, in pixels
    inputs: tuple[Inputs, ...] = ("images",)
    per_token: bool = False  # it predicts a class for every token: (B, T) -> (B, T, C)
    per_pixel: bool = False  # outputs for every pixel: (B, channels, H, W) -> (B, C, H, W)


_VECTORS: tuple[Inputs, ...] = ("images", "features")
_FEATURES: tuple[Inputs, ...] = ("features",)
_TOKENS: tuple[Inputs, ...] = ("tokens",)
_REFERENCE = "the same with class 0 as reference: for two classes one output and a sigmoid"
_SMALL = "three 3x3 convolutions (16, 32, 64) with norm; trains on a CPU"

CATALOGUE: Mapping[str, ModelInfo] = {
    "logistic": ModelInfo("vision", "logistic regression on pixels or features", inputs=_VECTORS),
    "logistic_reference": ModelInfo("vision", _REFERENCE, inputs=_VECTORS),
    "mlp": ModelInfo("vision", "one hidden layer of 64 ReLU units", inputs=_VECTORS),
    "cnn": ModelInfo("vision", _SMALL, 4),
    "cnn_reddi": ModelInfo("vision", "two convolutions, 1.2 M parameters (Reddi 2021)", 6),
    "cnn_mcmahan": ModelInfo("vision", "FedAvg's MNIST CNN, 1.7 M parameters (McMahan 2017)", 4),
    "cnn_fedavg": ModelInfo(
        "vision", "two 5x5 convolutions, 0.8 M parameters (FedDyn, FedSAM)", 16
    ),
    "resnet18": ModelInfo("vision", "ResNet-18, 11.2 M parameters, ImageNet weights", 8),
    "resnet50": ModelInfo("vision", "ResNet-50, 23.5 M parameters, ImageNet weights", 8),
    "mobilenetv2_cifar": ModelInfo("vision", "MobileNetV2 for small images, 2.3 M parameters", 8),
    "leaf_femnist": ModelInfo("leaf", "LEAF's CNN for FEMNIST, 6.6 M parameters", 4),
    # from 9 pixels the last BatchNorm sees four values of a channel in a single image
    "leaf_celeba": ModelInfo("leaf", "LEAF's CNN for CelebA, 31,202 parameters", 9),
    "leaf_synthetic": ModelInfo(
        "leaf", "LEAF's perceptron with a sigmoid, for features", inputs=_FEATURES
    ),
    "leaf_synthetic_linear": ModelInfo("leaf", "the same without the sigmoid", inputs=_FEATURES),
    "leaf_sent140": ModelInfo(
        "leaf", "LEAF's LSTM for Sent140: a class for a text", inputs=_TOKENS
    ),
    "leaf_shakespeare": ModelInfo(
        "leaf", "LEAF's LSTM for Shakespeare: the next character", inputs=_TOKENS
    ),
    "leaf_reddit": ModelInfo(
        "leaf", "LEAF's LSTM for Reddit: a class for every token", inputs=_TOKENS, per_token=True
    ),
    "unet": ModelInfo(
        "unet", "U-Net, 0.5 M parameters: a class for every pixel", 8, per_pixel=True
    ),
    "unet_small": ModelInfo("unet", "the same with half the channels, 0.12 M", 8, per_pixel=True),
}

NAMES: Mapping[str, str] = {name: entry.description for name, entry in CATALOGUE.items()}
"""The models' names and what each is, in one line."""

LIBRARIES: Mapping[str, str] = {
    "timm": "a network of timm, as in timm:vit_tiny_patch16_224; for masks its encoder "
    f"(pip install '{DISTRIBUTION}[models]')",
    "torchvision": "a network of torchvision, as in torchvision:efficientnet_b0 or, for masks, "
    "torchvision:fcn_resnet50",
}
"""Libraries whose networks are named ``LIBRARY:NAME``, each with a line of explanation."""
