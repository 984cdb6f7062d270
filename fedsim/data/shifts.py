"""Feature shift: one transform of the images, with a strength that grows from client to client.

Client k of K has strength s k/(K-1): client 0 keeps its images, the last client has strength s. The
transforms are deterministic but for ``noise``, which is drawn for each client.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedsim.core import rng
from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, I64, Dataset, Partition

_PIXELS = 1 << 22
"""Images are changed in batches of at most so many values, which bounds memory."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Shift:
    """The transform of one client's images, of a strength in 0..1.

    The client's id determines the hue of ``colour``; ``noise`` is consumed image by image.
    """

    client: int
    strength: float
    noise: np.random.Generator


def _blur(x: Tensor, shift: Shift) -> Tensor:
    """Gaussian blur; at full strength the standard deviation is 1/14 of the image's height.

    One below a quarter of a pixel changes nothing.
    """
    from torchvision.transforms.v2.functional import gaussian_blur  # takes two seconds to import

    sigma = shift.strength * x.shape[-1] / 14
    size = 2 * math.ceil(min(3 * sigma, (x.shape[-1] - 1) / 2)) + 1
    return gaussian_blur(x, [size, size], [sigma, sigma])


def _noise(x: Tensor, shift: Shift) -> Tensor:
    """Gaussian noise on every pixel and channel; standard deviation 64 grey levels at most."""
    draws = torch.from_numpy(shift.noise.standard_normal(x.shape))
    return _rounded(x + 64 * shift.strength * draws)


def _contrast(x: Tensor, shift: Shift) -> Tensor:
    """Contrast down to a quarter, around the image's mean grey level."""
    from torchvision.transforms.v2.functional import adjust_contrast

    return adjust_contrast(x, 1 - 0.75 * shift.strength)


def _colour(x: Tensor, shift: Shift) -> Tensor:
    """A colour cast: channel c times 1 + 0.5 s cos(2 pi (h + c/3)) with a hue h of the client's."""
    hue = shift.client * _GOLDEN
    gains = [1 + 0.5 * shift.strength * math.cos(math.tau * (hue + c / 3)) for c in range(3)]
    return _rounded(x * torch.tensor(gains, dtype=torch.float64).view(3, 1, 1))


def _intensity(x: Tensor, shift: Shift) -> Tensor:
    """Brightness down to two fifths."""
    from torchvision.transforms.v2.functional import adjust_brightness

    return adjust_brightness(x, 1 - 0.6 * shift.strength)


def _rotation(x: Tensor, shift: Shift) -> Tensor:
    """Rotation around the centre by up to 90 degrees counter-clockwise; corners become black."""
    from torchvision.transforms.v2.functional import InterpolationMode, rotate

    return rotate(x, 90 * shift.strength, interpolation=InterpolationMode.BILINEAR)


def _rounded(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


KINDS: Mapping[str, Callable[[Tensor, Shift], Tensor]] = {
    "blur": _blur,
    "noise": _noise,
    "contrast": _contrast,
    "colour": _colour,
    "intensity": _intensity,
    "rotation": _rotation,
}
"""The transforms of uint8 images (B, C, H, W), which keep the shape."""


def strengths(num_clients: int, strength: float) -> F64:
    """(K,) from 0 for client 0 evenly to ``strength`` for the last one; one client has 0."""
    return strength * np.arange(num_clients) / max(1, num_clients - 1)


def shifted(
    dataset: Dataset, partition: Partition, kind: str, strength: float, seed: int, test: str
) -> Dataset:
    """The data set with every client's images changed; a function of its arguments alone.

    A client's own training, validation and test images have its shift. With ``test`` "mixed" each
    image of the common validation and test parts has the shift of one client: of the one that owns
    its site, where sites are clients, else of one drawn by ``seed`` in proportion to the clients'
    training samples. With "clean" the common parts stay as they are, also where clients own some
    of their images.

    ``kind`` is "none" or a key of :data:`KINDS`, ``strength`` that of the last client, in (0, 1].
    The data set's ``x`` is copied, once, and changed client by client.

    Raises:
        ConfigError: a colour cast for images without colours.
    """
    if kind == "none":
        return dataset
    if kind == "colour" and dataset.x.shape[1] != 3:
        raise ConfigError(
            f"data.feature_shift 'colour' needs images of three channels, {dataset.name} has "
            f"{dataset.x.shape[1]}"
        )
    owner = owners(dataset, partition, seed, test)
    x, step = np.array(dataset.x), max(1, _PIXELS // dataset.x[0].size)
    for client, s in enumerate(strengths(partition.num_clients, strength).tolist()):
        if s > 0:
            shift = Shift(client, s, rng.generator(seed, "shift.noise", client))
            which = np.flatnonzero(owner == client)
            for start in range(0, len(which), step):
                some = which[start : start + step]
                x[some] = KINDS[kind](torch.from_numpy(x[some]), shift).numpy()
    return replace(dataset, x=x)


def owners(dataset: Dataset, partition: Partition, seed: int, test: str) -> I64:
    """(N,) the client whose shift each image has, -1 for none; arguments as :func:`shifted`."""
    owner = np.full(len(dataset.y), -1, dtype=np.int64)
    for own_parts in (partition.train, partition.val, partition.test):
        for client, indices in enumerate(own_parts):
            owner[indices] = client
    sizes = np.array([len(indices) for indices in partition.train])
    at_home = _site_owners(dataset, partition)
    for name, part in (("val", dataset.val), ("test", dataset.test)):
        draw = rng.generator(seed, f"shift.{name}")
        drawn = draw.choice(len(sizes), size=len(part), p=sizes / sizes.sum())
        mixed = np.where(at_home[part] >= 0, at_home[part], drawn)
        owner[part] = mixed if test == "mixed" else -1
    return owner


def _site_owners(dataset: Dataset, partition: Partition) -> I64:
    """(N,) the client that owns all training images of an image's site, -1 where there is none."""
    out = np.full(len(dataset.y), -1, dtype=np.int64)
    if dataset.site is not None:
        at = [np.unique(dataset.site[indices]) for indices in partition.train]
        sites, clients = np.unique(np.concatenate(at), return_counts=True)
        for client, own_sites in enumerate(at):
            alone = own_sites[np.isin(own_sites, sites[clients == 1])]
            out[np.isin(dataset.site, alone)] = client
    return out
