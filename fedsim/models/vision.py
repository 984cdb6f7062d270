"""The networks for images: functions (num_classes, in_channels, image_size) -> SplitModel.

Every one is a feature extractor and a linear head, for the methods that treat the two apart.
B images, ``d`` features, C classes.
"""

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from fedsim.core.errors import ConfigError


class SplitModel(nn.Module):
    """A network as two parts: ``head(features(x))``; files may call the head ``classifier``.

    Args:
        features: (B, channels, H, W) or (B, d) float32 or (B, T) tokens -> (B, d), or (B, T, d)
            for a class for every token.
        head: (B, d) -> (B, C) logits; the model's last linear layer, with what follows it.
    """

    classifier: str = "fc"

    def __init__(self, features: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Samples -> (B, C) logits, or (B, T, C)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    forward_clients = forward  # a client dimension in front is the layers' concern


class MaxPool2x2(nn.MaxPool2d):
    """Max pooling over 2x2 pixels; without gradients, by maxima of rows, far faster on a CPU."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        """(..., H, W) -> (..., H // 2, W // 2)."""
        if torch.is_grad_enabled() or x.is_cuda:
            return super().forward(x)
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :], x[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])

    def forward_clients(self, x: Tensor) -> Tensor:
        """(A, B, channels, H, W) of A clients; in memory the samples stay in front."""
        out: Tensor = super().forward(x.transpose(0, 1).flatten(0, 1))
        return out.unflatten(0, (x.shape[1], -1)).transpose(0, 1)


class ReferenceLinear(nn.Linear):
    """A linear layer with class 0 as reference: (B, d) -> (B, C) logits, the first of them 0.

    For two classes the cross-entropy of its logits (0, z) is the binary one of ``sigmoid(z)``.
    """

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes - 1)
        self.out_features = num_classes

    def forward(self, input: Tensor) -> Tensor:
        """(B, d) -> (B, C)."""
        return nn.functional.pad(super().forward(input), (1, 0))

    def forward_clients(self, x: Tensor) -> Tensor:
        """(A, B, d) -> (A, B, C) for the stacked weights of A clients."""
        z = torch.baddbmm(self.bias[:, None], x, self.weight.mT)
        return nn.functional.pad(z, (1, 0))


def logistic_reference(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """Logistic regression with class 0 as reference, for two classes one output and a sigmoid."""
    return SplitModel(nn.Flatten(), ReferenceLinear(in_channels * image_size**2, num_classes))


def logistic(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """Multinomial logistic regression on pixels, or on features (B, in_channels) at size 1."""
    return SplitModel(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


def mlp(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """One hidden layer of 64 rectified units on pixels, or on features at size 1."""
    hidden = nn.Linear(in_channels * image_size**2, 64)
    return SplitModel(nn.Sequential(nn.Flatten(), hidden, nn.ReLU()), nn.Linear(64, num_classes))


def cnn(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """Three 3x3 convolutions (16, 32, 64), each with BatchNorm and ReLU.

    Pooling after the first two halves the image, the mean over the rest gives 64 features.
    """
    features = nn.Sequential(
        *_conv_bn(in_channels, 16, 3), nn.ReLU(), MaxPool2x2(),
        *_conv_bn(16, 32, 3), nn.ReLU(), MaxPool2x2(),
        *_conv_bn(32, 64, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(64, num_classes))


def cnn_reddi(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """The EMNIST network of Reddi et al. 2021 (Adaptive Federated Optimization), Table 4.

    1,206,590 parameters for 28x28x1 and 62 classes, 1,626,442 for 32x32x3 and 10.
    """
    side = (image_size - 4) // 2
    features = nn.Sequential(
        nn.Conv2d(in_channels, 32, 3), nn.ReLU(),
        nn.Conv2d(32, 64, 3), nn.ReLU(), MaxPool2x2(),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * side**2, 128), nn.ReLU(), nn.Dropout(0.5),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(128, num_classes))


def cnn_mcmahan(
    num_classes: int, in_channels: int, image_size: int, units: int = 512
) -> SplitModel:
    """The MNIST CNN of FedAvg (McMahan et al. 2017): two padded 5x5 convolutions, 512 units.

    1,663,370 parameters for 28x28x1 and 10 classes.
    """
    features = nn.Sequential(
        nn.Conv2d(in_channels, 32, 5, padding=2), nn.ReLU(), MaxPool2x2(),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), MaxPool2x2(), nn.Flatten(),
        nn.Linear(64 * (image_size // 4) ** 2, units), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(units, num_classes))


def cnn_fedavg(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """The CIFAR network of FedDyn (Acar et al. 2021) and FedSAM: 5x5, 5x5, 384, 192.

    797,962 parameters for 32x32x3 and 10 classes.
    """
    side = ((image_size - 4) // 2 - 4) // 2
    features = nn.Sequential(
        nn.Conv2d(in_channels, 64, 5), nn.ReLU(), MaxPool2x2(),
        nn.Conv2d(64, 64, 5), nn.ReLU(), MaxPool2x2(), nn.Flatten(),
        nn.Linear(64 * side**2, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
    )  # fmt: skip
    return SplitModel(features, nn.Linear(192, num_classes))


def resnet(name: str, num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """The ResNet of torchvision with this name, randomly initialised, with a head of its own."""
    from torchvision.models import get_model  # takes two seconds to import

    net = get_model(name, weights=None)
    width = net.fc.in_features
    net.fc = nn.Identity()
    if in_channels != 3:
        net.conv1 = nn.Conv2d(in_channels, 64, 7, 2, 3, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return SplitModel(net, nn.Linear(width, num_classes))


resnet18, resnet50 = partial(resnet, "resnet18"), partial(resnet, "resnet50")


def mobilenetv2_cifar(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """MobileNetV2 (Sandler et al. 2018) for small images, as FedDecorr and FedGH use it.

    Stem and second stage keep the resolution, ReLU instead of ReLU6, and a 1x1 convolution as
    shortcut where the widths differ. 2,296,922 parameters for 10 classes of colour images.
    """
    stages = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    layers: list[nn.Module] = [*_conv_bn(in_channels, 32, 3), nn.ReLU()]
    width = 32
    for expansion, out, repeats, stride in stages:
        for index in range(repeats):
            layers.append(InvertedResidual(width, out, expansion, stride if index == 0 else 1))
            width = out
    layers += [*_conv_bn(width, 1280, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return SplitModel(nn.Sequential(*layers), nn.Linear(1280, num_classes))


class InvertedResidual(nn.Module):
    """Expand (1x1), filter each channel (3x3), project (1x1); with a shortcut at stride 1."""

    def __init__(self, width: int, out: int, expansion: int, stride: int) -> None:
        super().__init__()
        inner = expansion * width
        self.block = nn.Sequential(
            *_conv_bn(width, inner, 1), nn.ReLU(),
            *_conv_bn(inner, inner, 3, stride=stride, groups=inner), nn.ReLU(),
            *_conv_bn(inner, out, 1),
        )  # fmt: skip
        self.shortcut: nn.Module | None = None
        if stride == 1:
            self.shortcut = (
                nn.Identity() if width == out else nn.Sequential(*_conv_bn(width, out, 1))
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) -> (B, out, H / stride, W / stride)."""
        y: Tensor = self.block(x)
        return y if self.shortcut is None else y + self.shortcut(x)

    forward_clients = forward


def with_group_norm(model: nn.Module) -> None:
    """Replaces every BatchNorm2d of ``model``, in place, by a GroupNorm.

    The number of groups is the largest divisor of the channels that is at most 32 (for all of
    ResNet, as Wu and He 2018 advise) and leaves two channels to a group.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                channels = child.num_features
                most = max(1, min(32, channels // 2))
                groups = next(n for n in range(most, 0, -1) if channels % n == 0)
                setattr(parent, name, nn.GroupNorm(groups, channels))


def with_projection(model: nn.Module, width: int, where: str) -> None:
    """Puts linear, ReLU, linear between features and a new head for ``width`` inputs, in place.

    The features' own names become ``features.backbone...``. ``where`` is the beginning of the
    ConfigError where the model has no modules ``features`` and ``head``, a linear layer.
    """
    features, head = getattr(model, "features", None), getattr(model, "head", None)
    if not isinstance(features, nn.Module) or not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{where}: a projection head (model.projection={width}) goes between modules "
            "'features' and 'head', a linear layer; the model does not have both"
        )
    d = head.in_features
    projection = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, width))
    model.features = nn.Sequential(OrderedDict(backbone=features, projection=projection))
    model.head = type(head)(width, head.out_features)


def _conv_bn(
    width: int, out: int, kernel: int, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    conv = nn.Conv2d(width, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return conv, nn.BatchNorm2d(out)
