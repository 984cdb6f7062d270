"""Networks of timm and torchvision for a class for each pixel.

``torchvision:NAME`` is one of its segmentation networks; their head is the last 1x1 convolution.
``timm:NAME`` is an encoder below a feature pyramid of 64 channels (Lin et al., 2017), which is the
head: what is new where the encoder has published weights. Outputs are enlarged to the images' size,
bilinearly.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedsim.core.errors import ConfigError, nearest
from fedsim.core.types import ModelSpec
from fedsim.models.unet import PixelModel

WIDTH = 64


def enlarged(x: Tensor, size: int) -> Tensor:
    """Of (B, C, h, w) the images (B, C, size, size)."""
    return interpolate(x, size=(size, size), mode="bilinear", align_corners=False)


class Classifier(nn.Conv2d):
    """A 1x1 convolution whose output is enlarged."""

    def __init__(self, width: int, num_classes: int, size: int) -> None:
        super().__init__(width, num_classes, 1)
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, C, size, size)."""
        return enlarged(super().forward(input), self.size)


class _Backbone(nn.Module):
    """A network of torchvision without its last convolution."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.backbone, self.classifier = net.backbone, net.classifier

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.backbone(x)["out"])
        return out


class _Whole(nn.Module):
    """A network of torchvision with several last convolutions, which has no head of its own."""

    def __init__(self, net: Any, size: int) -> None:
        super().__init__()
        self.backbone, self.classifier, self.size = net.backbone, net.classifier, size

    def forward(self, x: Tensor) -> Tensor:
        return enlarged(self.classifier(self.backbone(x)), self.size)


def of_torchvision(spec: ModelSpec) -> nn.Module:
    """A segmentation network of torchvision, randomly initialised, without auxiliary outputs."""
    from torchvision import models  # takes two seconds to import

    name = spec.name.partition(":")[2]
    names = models.list_models(module=models.segmentation)
    if name not in names:
        raise ConfigError(
            f"model.name={spec.name}: torchvision has no such network for masks"
            f"{nearest(name, names)}; it has {', '.join(names)}"
        )
    net: Any = models.get_model(
        name, weights=None, weights_backbone=None, num_classes=spec.num_classes
    )
    if not isinstance(net.classifier, nn.Sequential):
        return _Whole(net, spec.image_size)
    last = len(net.classifier) - 1
    convolution: Any = net.classifier[last]
    head = Classifier(convolution.in_channels, spec.num_classes, spec.image_size)
    net.classifier[last] = nn.Identity()
    model = PixelModel(_Backbone(net), head)
    model.classifier = f"classifier.{last}"
    return model


class Pyramid(nn.Module):
    """A feature pyramid: maps at several sizes, largest first -> (B, C, size, size)."""

    def __init__(self, widths: list[int], num_classes: int, size: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, WIDTH, 1) for width in widths)
        self.smooth = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.GroupNorm(8, WIDTH), nn.ReLU()
        )
        self.classifier = Classifier(WIDTH, num_classes, size)

    def forward(self, maps: list[Tensor]) -> Tensor:
        levels = [layer(x) for layer, x in zip(self.lateral, maps, strict=True)]
        x = levels.pop()
        for level in levels[::-1]:
            x = level + interpolate(x, size=level.shape[-2:], mode="nearest")
        out: Tensor = self.classifier(self.smooth(x))
        return out


def of_timm(spec: ModelSpec, timm: Any) -> PixelModel:
    """An encoder of timm, randomly initialised, below a :class:`Pyramid`."""
    encoder = timm.create_model(
        spec.name.partition(":")[2], features_only=True, in_chans=spec.in_channels
    )
    widths = encoder.feature_info.channels()
    return PixelModel(encoder, Pyramid(widths, spec.num_classes, spec.image_size))
