"""The generated data set ``shortcut``: a sign of disease, and a mark of the site beside it.

Lesions tell the classes apart at every site and in the test part. In training a mark that the
site's camera leaves goes with the disease as well, so that a model can take the mark for the
disease; in the test part mark and disease have nothing to do with each other.
"""

from __future__ import annotations

import numpy as np

from fedsim.core import rng
from fedsim.core.errors import ConfigError
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import Raw, Request, parts_of
from fedsim.data.readers import fundus

TEST_IMAGES = 1000
SPREAD = 0.1
"""The first site's correlation is so much below ``data.correlation``, the last one's above."""
CLASSES = ("healthy", "diseased")
_SIZE = 32


def shortcut(request: Request) -> Raw:
    """RGB images of ``num_sites`` sites and two classes, drawn from ``seed``.

    Site k has ``samples_per_site`` training images, half of them (rounded down) diseased, and
    leaves the mark ``MARKS[k % 3]`` on a diseased image with probability (1 + rho_k) / 2 and on a
    healthy one with (1 - rho_k) / 2, see :func:`correlations`. The 1,000 test images, and the
    validation images where there are some (``val_fraction`` as many as training images, at least
    four), have each combination of class and mark equally often, at each site as far as the
    numbers allow. Groups of test images: ``aligned``, where the mark says what the image shows
    (diseased with it, healthy without), and ``conflicting``.

    Raises:
        ConfigError: a folder is given, where there is nothing to read.
    """
    if request.folder is not None:
        raise ConfigError(f"data.dir {request.folder}: shortcut is generated, it takes no folder")
    sites, each = request.num_sites, request.samples_per_site
    val = max(1, round(request.val_fraction * sites * each / 4)) if request.val_fraction else 0
    drawn = (
        _training(request.seed, correlations(sites, request.correlation), each),
        _balanced(4 * val, sites),
        _balanced(TEST_IMAGES, sites),
    )
    names = ("train", "val", "test")
    size = request.image_size or _SIZE
    x = [_images(request.seed, name, size, *part) for name, part in zip(names, drawn, strict=True)]
    site, y, mark = (np.concatenate(column) for column in zip(*drawn, strict=True))
    test = np.arange(len(y) - TEST_IMAGES, len(y))
    aligned = y[test] == mark[test]
    return Raw(
        "shortcut",
        np.concatenate(x),
        y,
        CLASSES,
        mean=(0.40, 0.20, 0.11),
        std=(0.28, 0.15, 0.09),
        parts=parts_of(*(len(part[0]) for part in drawn)),
        size=size,
        site=site,
        site_names=tuple(f"{fundus.MARKS[k % len(fundus.MARKS)]}_{k}" for k in range(sites)),
        groups={"aligned": test[aligned], "conflicting": test[~aligned]},
    )


def correlations(num_sites: int, correlation: float) -> F64:
    """(sites,) rho_k: evenly from ``correlation`` - 0.1 to ``correlation`` + 0.1, within 0..1."""
    place = (2 * np.arange(num_sites) - (num_sites - 1)) / max(1, num_sites - 1)
    return np.clip(correlation + SPREAD * place, 0, 1)


def _training(seed: int, rho: F64, each: int) -> tuple[I64, I64, I64]:
    """Site, class and mark (0 or 1) of the training images, site by site, classes in turn."""
    site = np.repeat(np.arange(len(rho)), each)
    y = np.tile(np.arange(each) % 2, len(rho))
    chance = (1 + np.where(y == 1, rho[site], -rho[site])) / 2
    mark = rng.generator(seed, "shortcut.marks").random(len(y)) < chance
    return site, y, mark.astype(np.int64)


def _balanced(count: int, sites: int) -> tuple[I64, I64, I64]:
    """Site, class and mark: the four combinations in turn at one site, then at the next one."""
    i = np.arange(count)
    return i // 4 % sites, i % 2, i // 2 % 2


def _images(seed: int, part: str, size: int, site: I64, y: I64, mark: I64) -> Array:
    eyes = fundus.draw(y == 1, rng.generator(seed, f"shortcut.{part}"))
    kind = np.where(mark == 1, site % len(fundus.MARKS), -1)
    return fundus.render(eyes, kind, size, rng.generator(seed, f"shortcut.{part}.noise"))
