"""The networks of the workloads: (num_classes, in_channels, image_size) -> module. PyTorch alone.

Only PyTorch is imported, so that another framework's process can build the same networks.
"""

from __future__ import annotations

from torch import nn


def mlp(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """64-32-10 for 8x8 images: 2,410 parameters."""
    inputs = in_channels * image_size**2
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, num_classes))


def cnn(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The MNIST network of McMahan et al. 2017: 5x5 convolutions 32 and 64, 512 units.

    1,663,370 parameters for 28x28x1 and 10 classes.
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * (image_size // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, num_classes),
    )  # fmt: skip


def reddi(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The network of pfl-research's CIFAR-10 job, fedsim's ``cnn_reddi``: 1,626,442 parameters."""
    side = (image_size - 4) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * side**2, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )  # fmt: skip


def wide(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """One hidden layer of 24,730 units: 25,595,560 parameters for 32x32x1 and 10 classes.

    The size of ResNet-50 in two matrices: a step is cheap beside what it costs to move the model.
    """
    return _one_hidden(in_channels * image_size**2, 24730, num_classes)


def wide_small(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """The form of :func:`wide` with 2,000 units, for tests."""
    return _one_hidden(in_channels * image_size**2, 2000, num_classes)


def logistic(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """Logistic regression on the pixels: 650 parameters for 8x8x1 and 10 classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def resnet50(num_classes: int, in_channels: int, image_size: int) -> nn.Module:
    """ResNet-50 of torchvision for colour images, randomly initialised."""
    from torchvision import models  # takes two seconds to import

    return models.resnet50(weights=None, num_classes=num_classes)


def _one_hidden(inputs: int, units: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, num_classes)
    )
