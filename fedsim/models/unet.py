"""A U-Net for images in two dimensions (Ronneberger et al., 2015): (B, C, H, W) for each pixel."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fedsim.models.vision import MaxPool2x2


class PixelModel(nn.Module):
    """A network as two parts, ``head(features(x))``: the head is the last, 1x1, convolution, with
    what follows it.

    Args:
        features: (B, channels, H, W) -> (B, d, h, w).
        head: (B, d, h, w) -> (B, C, H, W) logits.
    """

    classifier = "classifier"

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, C, H, W)."""
        logits: Tensor = self.head(self.features(x))
        return logits

    forward_clients = forward


class UNet(nn.Module):
    """Two 3x3 convolutions at each of ``depth`` + 1 resolutions, with twice the channels at half
    the size, down and up again; GroupNorm, so that small batches and clients do not matter.

    As its own layers it works on (A, B, channels, H, W) of A clients. Pixels are doubled on the way
    up, where the paper has transposed convolutions; odd sizes get a row and a column of zeros.
    """

    def __init__(self, in_channels: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        inputs = [in_channels, *widths]
        self.down = nn.Sequential(*map(_block, inputs, widths))
        pairs = zip(widths[1:], widths, strict=False)
        self.up = nn.Sequential(*(_block(below + beside, beside) for below, beside in pairs))
        self.pool = MaxPool2x2()

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, width, H, W)."""
        levels: list[Tensor] = []
        for block in self.down:
            levels.append(block(self.pool(levels[-1]) if levels else x))
        x = levels.pop()
        for block in list(self.up)[::-1]:
            beside = levels.pop()
            x = block(torch.cat([_doubled(x, beside), beside], dim=-3))
        return x

    forward_clients = forward


def _block(inputs: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, width):
        groups = next(n for n in (8, 4, 2, 1) if width % n == 0 and (width > n or n == 1))
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


def _doubled(x: Tensor, like: Tensor) -> Tensor:
    """Every pixel twice in both directions, of the size of another tensor.

    A sum in the backward pass, which is deterministic on every device, as interpolation is not.
    """
    height, width = x.shape[-2:]
    shape = (*x.shape[:-2], height, 2, width, 2)
    twice = x[..., :, None, :, None].expand(shape).reshape(*x.shape[:-2], 2 * height, 2 * width)
    rows, columns = (a - b for a, b in zip(like.shape[-2:], twice.shape[-2:], strict=True))
    return pad(twice, (0, columns, 0, rows)) if rows or columns else twice


def unet(
    num_classes: int, in_channels: int, image_size: int, width: int = 16, depth: int = 3
) -> PixelModel:
    """A U-Net, 487,730 parameters for grey images and two classes."""
    return PixelModel(UNet(in_channels, width, depth), nn.Conv2d(width, num_classes, 1))


unet_small = partial(unet, width=8)
