"""Feature shift: one transform of the images, with a strength that grows from client to client.

Client k of K has strength s k/(K-1): client 0 keeps its images, the last client has strength s. The
transforms are deterministic but for ``noise``, which is drawn for each client.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedsim.core import rng
from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, I64, Dataset, Partition

_PIXELS = 1 << 22
"""Images are changed in batches of at most so many values, which bounds memory."""
KINDS = ("blur", "noise", "contrast", "colour", "intensity", "rotation")


def changed(
    x: Tensor, kind: str, strength: float, client: int, noise: np.random.Generator
) -> Tensor:
    """One client's change, of a strength in 0..1, of its images (B, C, H, W) uint8.

    At full strength: a Gaussian blur of 1/14 of the height; noise of 64 grey levels; a quarter of
    the contrast; a colour cast, channel c times 1 + 0.5 cos(2 pi (h + c/3)) with a hue h of the
    client's; two fifths of the brightness; a rotation by 90 degrees counter-clockwise.
    """
    from torchvision.transforms.v2 import functional as f  # takes two seconds to import

    if kind == "blur":
        sigma = strength * x.shape[-1] / 14
        size = 2 * math.ceil(min(3 * sigma, (x.shape[-1] - 1) / 2)) + 1
        out: Tensor = f.gaussian_blur(x, [size, size], [sigma, sigma])
    elif kind == "noise":
        out = x + 64 * strength * torch.from_numpy(noise.standard_normal(x.shape))
    elif kind == "contrast":
        out = f.adjust_contrast(x, 1 - 0.75 * strength)
    elif kind == "colour":
        hue = client * (math.sqrt(5) - 1) / 2
        gains = [1 + 0.5 * strength * math.cos(math.tau * (hue + c / 3)) for c in range(3)]
        out = x * torch.tensor(gains, dtype=torch.float64).view(3, 1, 1)
    elif kind == "intensity":
        out = f.adjust_brightness(x, 1 - 0.6 * strength)
    else:
        out = f.rotate(x, 90 * strength, interpolation=f.InterpolationMode.BILINEAR)
    return out.round().clamp(0, 255).to(torch.uint8) if out.is_floating_point() else out


def strengths(num_clients: int, strength: float) -> F64:
    """(K,) from 0 for client 0 evenly to ``strength`` for the last one; one client has 0."""
    return strength * np.arange(num_clients) / max(1, num_clients - 1)


def shifted(
    dataset: Dataset, partition: Partition, kind: str, strength: float, seed: int, test: str
) -> Dataset:
    """The data set with every client's images changed; a function of its arguments alone.

    A client's own images have its shift. With ``test`` "mixed" each image of the common parts has
    that of one client: of the one that owns its site, where sites are clients, else of one drawn by
    ``seed`` in proportion to the training samples. With "clean" the common parts stay as they are.
    ``kind`` is "none" or one of :data:`KINDS`, ``strength`` in (0, 1].
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
        noise = rng.generator(seed, "shift.noise", client)
        images = np.flatnonzero(owner == client) if s > 0 else owner[:0]
        for start in range(0, len(images), step):
            some = images[start : start + step]
            x[some] = changed(torch.from_numpy(x[some]), kind, s, client, noise).numpy()
    return replace(dataset, x=x)


def owners(dataset: Dataset, partition: Partition, seed: int, test: str) -> I64:
    """(N,) the client whose shift each image has, -1 for none; arguments as :func:`shifted`."""
    owner = np.full(len(dataset.y), -1, dtype=np.int64)
    for of_clients in (partition.train, partition.val, partition.test):
        for client, indices in enumerate(of_clients):
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
        of_clients = [np.unique(dataset.site[indices]) for indices in partition.train]
        sites, clients = np.unique(np.concatenate(of_clients), return_counts=True)
        for client, present in enumerate(of_clients):
            alone = present[np.isin(present, sites[clients == 1])]
            out[np.isin(dataset.site, alone)] = client
    return out
