"""The models by name, what each takes, and which of them fit some data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from fedsim.contracts import Inputs, ModelSpec
from fedsim.errors import ConfigError, nearest
from fedsim.models import leaf, nets

Factory = Callable[[int, int, int], nn.Module]
"""(num_classes, in_channels, image_size) -> model; see :class:`ModelSpec` for other inputs."""


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue.

    Args:
        make: builds it.
        description: what it is, in one line.
        min_size: of an image, in pixels.
        inputs: what it takes.
        per_token: it predicts a class for every token: (B, T) -> (B, T, C).
    """

    make: Factory
    description: str
    min_size: int = 1
    inputs: tuple[Inputs, ...] = ("images",)
    per_token: bool = False


_VECTORS: tuple[Inputs, ...] = ("images", "features")
_TOKENS: tuple[Inputs, ...] = ("tokens",)

CATALOGUE: Mapping[str, Entry] = {
    "logistic": Entry(nets.logistic, "logistic regression on pixels or features", inputs=_VECTORS),
    "mlp": Entry(nets.mlp, "one hidden layer of 64 ReLU units", inputs=_VECTORS),
    "cnn": Entry(nets.cnn, "three 3x3 convolutions (16, 32, 64) with norm; trains on a CPU", 4),
    "cnn_reddi": Entry(nets.cnn_reddi, "two convolutions, 1.2 M parameters (Reddi 2021)", 6),
    "cnn_fedavg": Entry(
        nets.cnn_fedavg, "two 5x5 convolutions, 0.8 M parameters (FedDyn, FedSAM)", 16
    ),
    "resnet18": Entry(nets.resnet18, "ResNet-18, 11.2 M parameters, ImageNet weights", 8),
    "resnet50": Entry(nets.resnet50, "ResNet-50, 23.5 M parameters, ImageNet weights", 8),
    "mobilenetv2_cifar": Entry(
        nets.mobilenetv2_cifar, "MobileNetV2 for small images, 2.3 M parameters", 8
    ),
    "leaf_femnist": Entry(leaf.leaf_femnist, "LEAF's CNN for FEMNIST, 6.6 M parameters", 4),
    # from 9 pixels the last BatchNorm sees four values of a channel in a single image
    "leaf_celeba": Entry(leaf.leaf_celeba, "LEAF's CNN for CelebA, 31,202 parameters", 9),
    "leaf_synthetic": Entry(
        leaf.leaf_synthetic, "LEAF's perceptron with a sigmoid, for features", inputs=("features",)
    ),
    "leaf_synthetic_linear": Entry(
        leaf.leaf_synthetic_linear, "the same without the sigmoid", inputs=("features",)
    ),
    "leaf_sent140": Entry(
        leaf.leaf_sent140, "LEAF's LSTM for Sent140: a class for a text", inputs=_TOKENS
    ),
    "leaf_shakespeare": Entry(
        leaf.leaf_shakespeare, "LEAF's LSTM for Shakespeare: the next character", inputs=_TOKENS
    ),
    "leaf_reddit": Entry(
        leaf.leaf_reddit, "LEAF's LSTM for Reddit: a class for every token", inputs=_TOKENS,
        per_token=True,
    ),
}  # fmt: skip

NAMES: Mapping[str, str] = {name: entry.description for name, entry in CATALOGUE.items()}
"""The models' names and what each is, in one line."""


def find(spec: ModelSpec) -> Entry:
    """The entry of ``spec.name``, which fits the data that ``spec`` describes.

    Raises:
        ConfigError: there is none of this name, it takes something else, or an image is too small.
    """
    entry = CATALOGUE.get(spec.name)
    if entry is None:
        raise ConfigError(
            f"model.name={spec.name}: no such model{nearest(spec.name, CATALOGUE)}; there are "
            f"{', '.join(CATALOGUE)}, or your own as module:function"
        )
    if not _fits(entry, spec):
        fitting = [name for name, other in CATALOGUE.items() if _fits(other, spec)]
        taken = _kind(" or ".join(entry.inputs), entry.per_token)
        raise ConfigError(
            f"model.name={spec.name}: takes {taken}, and the data are "
            f"{_kind(spec.inputs, spec.per_token)}; for them there are "
            f"{', '.join([*fitting, 'your own'])} as module:function"
        )
    if spec.image_size < entry.min_size:
        raise ConfigError(
            f"model.name={spec.name}: images of {spec.image_size}x{spec.image_size} pixels are "
            f"too small, it needs {entry.min_size}x{entry.min_size}; see data.image_size"
        )
    return entry


def _fits(entry: Entry, spec: ModelSpec) -> bool:
    return spec.inputs in entry.inputs and spec.per_token == entry.per_token


def _kind(inputs: str, per_token: bool) -> str:
    """In words, ``"tokens with one label each"``."""
    return f"{inputs} with {'a label for every token' if per_token else 'one label each'}"
