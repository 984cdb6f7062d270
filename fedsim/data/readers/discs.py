"""Drawn images with masks: discs on a textured ground, at three sites with a scanner each."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from fedsim.core import rng
from fedsim.core.errors import ConfigError
from fedsim.core.types import Array
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.tasks import find

SIZE = 64


class Site(NamedTuple):
    """What the images of a site look like, in grey levels and pixels."""

    ground: float  # its mean
    contrast: float  # of discs to the ground
    noise: float  # its standard deviation
    radius: tuple[float, float]


SITES: Mapping[str, Site] = {
    "north": Site(90, 80, 8, (5, 9)),
    "east": Site(80, 50, 12, (8, 13)),
    "south": Site(110, 60, 18, (4, 7)),
}
EMPTY = 0.05
"""The share of images without a disc."""


def discs(
    request: Request, *, samples: Annotated[int, Field(ge=4)] = 120, rings: bool = False
) -> Raw:
    """Grey images of 64 x 64 pixels: background 0, discs 1; drawn by ``data.seed``.

    Args:
        request: takes no folder.
        samples: images of a site.
        rings: every other disc has a hole, class 2 is such a ring.
    """
    if request.folder is not None:
        raise ConfigError(f"data.dir {request.folder}: discs are drawn, they take no folder")
    drawn = [
        image(rng.generator(request.seed, "discs", number, i), site, rings)
        for number, site in enumerate(SITES.values())
        for i in range(samples)
    ]
    x, y = (np.stack(arrays) for arrays in zip(*drawn, strict=True))
    return Raw(
        source="discs",
        x=x[:, None],
        y=y,
        class_names=("background", "disc", *["ring"] * rings),
        site=np.repeat(np.arange(len(SITES)), samples),
        site_names=tuple(SITES),
        task=find("segmentation"),
    )


def image(draw: np.random.Generator, site: Site, rings: bool) -> tuple[Array, Array]:
    """An image and its mask, (64, 64) uint8 each."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    mask = np.zeros((SIZE, SIZE), np.uint8)
    waves = [draw.uniform(-0.4, 0.4, 2) for _ in range(4)]
    phases = draw.uniform(0, 2 * np.pi, 4)
    ground = sum(
        np.cos(a * rows + b * columns + phase)
        for (a, b), phase in zip(waves, phases, strict=True)
    )  # fmt: skip
    for _ in range(0 if draw.random() < EMPTY else draw.integers(1, 4)):
        radius = draw.uniform(*site.radius)
        centre = draw.uniform(radius, SIZE - radius, 2)
        distance = np.hypot(rows - centre[0], columns - centre[1])
        is_ring = rings and draw.random() < 0.5
        mask[distance <= radius] = 2 if is_ring else 1
        if is_ring:
            mask[distance <= radius / 2] = 0
    grey = site.ground + 6 * ground + site.contrast * (mask > 0)
    grey = grey + site.noise * draw.standard_normal(grey.shape)
    return np.rint(grey.clip(0, 255)).astype(np.uint8), mask


DATASETS = (
    DatasetInfo(
        name="discs",
        title="drawn discs with masks, segmentation at three sites",
        read=discs,
        num_classes=2,
        image_size=SIZE,
        channels=1,
        default_model="unet_small",
        default_partition="by_site",
        source="embedded",
    ),
)
