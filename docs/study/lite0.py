"""EfficientNet-Lite0 for the study of docs/RESULTS.md; its ImageNet weights come from weights.py.

The network is timm's ``tf_efficientnet_lite0``. It wants values in -1..1: readers of npz files
normalise so (``normalised_by_half``, which also enlarges images to 96 x 96 pixels); the folder
reader normalises with the mean and standard deviation of ImageNet (``normalised_as_imagenet``).
"""

from __future__ import annotations

import timm
from torch import Tensor, nn
from torch.nn import functional as F

from fedsim.models.vision import SplitModel

SIZE = 96
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Features(nn.Module):
    """Normalised images (B, channels, H, W) -> features (B, 1280)."""

    def __init__(
        self, channels: int, mean: tuple[float, ...], std: tuple[float, ...], size: int
    ) -> None:
        super().__init__()
        self.mean, self.std, self.size = mean, std, size
        self.net = timm.create_model("tf_efficientnet_lite0", num_classes=0, in_chans=channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, 1280)."""
        mean, std = (x.new_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        x = (x * std + mean - 0.5) / 0.5
        if x.shape[-1] != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", align_corners=False)
        features: Tensor = self.net(x)
        return features


class Pointwise(nn.Module):
    """A 1 x 1 convolution without bias as a linear layer, which can have an adapter (LoRA)."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.linear = nn.Linear(convolution.in_channels, convolution.out_channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H, W)."""
        out: Tensor = self.linear(x.permute(0, 2, 3, 1))
        return out.permute(0, 3, 1, 2)


def normalised_by_half(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """For data sets that are normalised with mean and standard deviation 0.5."""
    half = (0.5,) * in_channels
    return SplitModel(
        Features(in_channels, half, half, max(image_size, SIZE)), nn.Linear(1280, num_classes)
    )


def normalised_as_imagenet(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """For data sets that are normalised as ImageNet is."""
    return SplitModel(Features(in_channels, MEAN, STD, image_size), nn.Linear(1280, num_classes))


def with_linear_layers(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """``normalised_as_imagenet`` with linear layers for 1 x 1 convolutions: the same function."""
    model = normalised_as_imagenet(num_classes, in_channels, image_size)
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
                setattr(parent, name, Pointwise(module))
    return model
