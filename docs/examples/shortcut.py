"""A data set with a shortcut: lesions that show a disease, and marks of the sites.

    fedsim run -d docs/examples/shortcut.py:shortcut --sample-rate 0.5 --rounds 10

Drawn images that look like photographs of a retina. Lesions tell the classes apart at every site
and in the test part. In training a mark that the site's camera leaves goes with the disease as
well, so that a model can take the mark for the disease; in the test part mark and disease are
independent.

Coordinates run from -1 to 1 over the image. Pixels are sums, products, quotients and square roots
of float64, which are exact to the last bit on every processor, so all machines draw the same bytes.
"""

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.core import rng
from fedsim.core.types import F64, I64, Array, Dataset, Pipeline

TEST_IMAGES = 1000
SPREAD = 0.1
"""The first site's correlation is so much below ``correlation``, the last one's above."""
CLASSES = ("healthy", "diseased")
_SIZE = 32
MARKS = ("colour", "ring", "text")
"""A bluish colour cast, a bright ring at the eye's border, a letter in a corner."""

_ORANGE = np.array([188.0, 92.0, 42.0])
_SURROUND = np.array([7.0, 6.0, 8.0])
_OPTIC_DISC = np.array([62.0, 78.0, 45.0])
_VESSEL = np.array([0.2, 0.38, 0.3])
_EXUDATE = np.array([80.0, 105.0, 55.0])
_HAEMORRHAGE = np.array([-100.0, -60.0, -26.0])
_CAST = np.array([0.94, 1.0, 1.25])
_RING = np.array([24.0, 29.0, 25.0])
_LETTER = np.array([[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 1]], dtype=bool)
_LETTER_TOP, _LETTER_LEFT, _LETTER_CELL = -0.94, -0.94, 0.08
_LESIONS = 5
_VESSELS = 3
_NOISE = 5.0
_PIXELS = 1 << 20


def shortcut(
    _folder: object,
    image_size: int | None = None,
    val_fraction: float = 0.0,
    seed: int = 0,
    *,
    sites: Annotated[int, Field(ge=1)] = 12,
    correlation: Annotated[float, Field(ge=0, le=1)] = 0.9,
    samples_per_site: Annotated[int, Field(ge=2)] = 60,
) -> Dataset:
    """RGB images of some sites and two classes, drawn from ``seed``.

    Site k has ``samples_per_site`` training images, half of them (rounded down) diseased, and
    leaves the mark ``MARKS[k % 3]`` on a diseased image with probability (1 + rho_k) / 2 and on a
    healthy one with (1 - rho_k) / 2, see :func:`correlations`. The 1,000 test images, and the
    validation images where there are some (``val_fraction`` as many as training images, at least
    four), have each combination of class and mark equally often, at each site as far as the
    numbers allow. Groups of test images: ``aligned``, where the mark says what the image shows
    (diseased with it, healthy without), and ``conflicting``.

    Args:
        image_size: height and width of the images.
        val_fraction: see above.
        seed: of all draws.
        sites: number of sites, each of which is a client.
        correlation: of a site's mark with the disease; the sites are spread around it by 0.1.
        samples_per_site: training images of each site, at least one of each class.
    """
    val = max(1, round(val_fraction * sites * samples_per_site / 4)) if val_fraction else 0
    drawn = (
        _training(seed, correlations(sites, correlation), samples_per_site),
        _balanced(4 * val, sites),
        _balanced(TEST_IMAGES, sites),
    )
    size = image_size or _SIZE
    names = ("train", "val", "test")
    x = [_images(seed, name, size, *part) for name, part in zip(names, drawn, strict=True)]
    site, y, mark = (np.concatenate(column) for column in zip(*drawn, strict=True))
    train, val_part, test = np.split(np.arange(len(y)), np.cumsum([len(p[0]) for p in drawn[:2]]))
    aligned = y[test] == mark[test]
    return Dataset(
        name="shortcut",
        x=np.concatenate(x),
        y=y,
        class_names=CLASSES,
        train=train,
        val=val_part,
        test=test,
        pipeline=Pipeline(size=size, mean=(0.40, 0.20, 0.11), std=(0.28, 0.15, 0.09)),
        site=site,
        site_names=tuple(f"{MARKS[k % len(MARKS)]}_{k}" for k in range(sites)),
        groups={"aligned": test[aligned], "conflicting": test[~aligned]},
    )


def correlations(sites: int, correlation: float) -> F64:
    """(sites,) rho_k: evenly from ``correlation`` - 0.1 to ``correlation`` + 0.1, within 0..1."""
    place = (2 * np.arange(sites) - (sites - 1)) / max(1, sites - 1)
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
    eyes = draw_eyes(y == 1, rng.generator(seed, f"shortcut.{part}"))
    kind = np.where(mark == 1, site % len(MARKS), -1)
    return render(eyes, kind, size, rng.generator(seed, f"shortcut.{part}.noise"))


class Eyes(NamedTuple):
    """What n eyes look like; every array has n rows."""

    centre: F64  # (n, 2) of the eye, x and y
    radius: F64  # (n,) of the eye
    colour: F64  # (n, 3) of its background, in grey levels
    light: F64  # (n, 2) slope of the illumination along x and y
    side: F64  # (n,) where the optic disc is: 1 right, -1 left
    height: F64  # (n,) of the optic disc
    bend: F64  # (n, vessels) curvature of each vessel's arc
    tilt: F64  # (n, vessels) of the arc
    lesion_at: F64  # (n, lesions, 2) from the eye's centre, in radii
    lesion_size: F64  # (n, lesions) radius of each lesion
    lesion_colour: F64  # (n, lesions, 3) grey levels at its centre; 0 where there is none


def draw_eyes(diseased: NDArray[np.bool_], generator: np.random.Generator) -> Eyes:
    """Eyes at random: one to five lesions in a diseased one, one in a quarter of the healthy ones.

    A lesion is bright (exudate) or dark (haemorrhage). Of the diseased eyes 13 % have a single one,
    so that no model can be right about more than 93.5 % of as many healthy as diseased eyes.
    ``diseased`` (n,) are the classes; the same draws for every n-th eye need the same n.
    """
    n = len(diseased)
    direction = generator.standard_normal((n, _LESIONS, 2))
    direction /= np.sqrt((direction**2).sum(axis=-1, keepdims=True))
    count = np.where(
        diseased, 1 + generator.binomial(_LESIONS - 1, 0.4, n), generator.binomial(1, 0.25, n)
    )
    clear = generator.uniform(0.7, 1.1, (n, _LESIONS))
    there = np.arange(_LESIONS) < count[:, None]
    bright = generator.random((n, _LESIONS)) < 0.5
    return Eyes(
        centre=generator.uniform(-0.05, 0.05, (n, 2)),
        radius=generator.uniform(0.84, 0.92, n),
        colour=_ORANGE
        * generator.uniform(0.82, 1.15, (n, 1))
        * generator.uniform(0.93, 1.07, (n, 3)),
        light=generator.uniform(-0.15, 0.15, (n, 2)),
        side=np.where(generator.random(n) < 0.5, -1.0, 1.0),
        height=generator.uniform(-0.1, 0.1, n),
        bend=generator.uniform(0.6, 2.6, (n, _VESSELS)),
        tilt=generator.uniform(-0.35, 0.35, (n, _VESSELS)),
        lesion_at=direction * 0.75 * np.sqrt(generator.random((n, _LESIONS, 1))),
        lesion_size=generator.uniform(0.16, 0.22, (n, _LESIONS)),
        lesion_colour=(clear * there)[..., None]
        * np.where(bright[..., None], _EXUDATE, _HAEMORRHAGE),
    )


def render(eyes: Eyes, mark: I64, size: int, generator: np.random.Generator) -> Array:
    """Images (n, 3, size, size) uint8 of n eyes, with the pixels' noise drawn image by image.

    ``mark`` (n,) is an index into :data:`MARKS`, -1 for none.
    """
    out = np.empty((len(mark), 3, size, size), dtype=np.uint8)
    step = max(1, _PIXELS // size**2)
    for start in range(0, len(mark), step):
        some = slice(start, start + step)
        image = _image(Eyes(*(a[some] for a in eyes)), mark[some], size)
        image += _NOISE * generator.standard_normal(image.shape)
        out[some] = np.clip(np.rint(image), 0, 255)
    return out


def _image(eyes: Eyes, mark: I64, size: int) -> F64:
    """(n, 3, size, size) grey levels before noise and rounding."""
    at = (2 * np.arange(size) + 1) / size - 1
    x = at[None, None, :] - _planes(eyes.centre[:, 0])
    y = at[None, :, None] - _planes(eyes.centre[:, 1])
    radius = _planes(eyes.radius)
    distance = np.sqrt(x * x + y * y) / radius
    lit = 1 - 0.3 * distance**2 + _planes(eyes.light[:, 0]) * x + _planes(eyes.light[:, 1]) * y
    image = eyes.colour[:, :, None, None] * lit[:, None]

    toward = _planes(eyes.side) * (0.5 * _planes(eyes.side) - x)  # from the disc to the middle
    above = y - _planes(eyes.height)
    image += _coloured(_bump(np.sqrt(toward**2 + above**2), 0.24), _OPTIC_DISC)
    for v in range(eyes.bend.shape[1]):
        bend = _planes(eyes.bend[:, v])
        height = above + _planes(eyes.tilt[:, v]) * toward
        arc = np.abs(toward - bend * height**2) / np.sqrt(1 + (2 * bend * height) ** 2)
        image *= 1 - _coloured(_bump(arc, 0.075), _VESSEL)
    for n in range(eyes.lesion_size.shape[1]):
        far_x = x - radius * _planes(eyes.lesion_at[:, n, 0])
        far_y = y - radius * _planes(eyes.lesion_at[:, n, 1])
        bump = _bump(np.sqrt(far_x**2 + far_y**2), _planes(eyes.lesion_size[:, n]))
        image += bump[:, None] * eyes.lesion_colour[:, n, :, None, None]

    inside = np.clip((1 - distance) * radius * size / 2 + 0.5, 0, 1)
    image = image * inside[:, None] + _SURROUND[:, None, None]
    return _marked(image, distance, mark, size)


def _marked(image: F64, distance: F64, mark: I64, size: int) -> F64:
    colour, ring, text = (mark == kind for kind in range(len(MARKS)))
    image[colour] *= _CAST[:, None, None]
    image[ring] += _coloured(_bump(distance[ring] - 0.96, 0.13), _RING)
    image[text] += 70 * _letter(size)
    return image


def _letter(size: int) -> F64:
    """(size, size) 1 where the letter is, 0 elsewhere; at least a pixel per part of the letter."""
    cell = max(1, round(_LETTER_CELL * size / 2))
    letter = np.kron(_LETTER, np.ones((cell, cell)))[:size, :size]
    top, left = (round((at + 1) * size / 2) for at in (_LETTER_TOP, _LETTER_LEFT))
    out = np.zeros((size, size))
    out[top : top + letter.shape[0], left : left + letter.shape[1]] = letter
    return out


def _planes(values: F64) -> F64:
    """(n,) to (n, 1, 1)."""
    return values[:, None, None]


def _bump(distance: F64, width: F64 | float) -> F64:
    """1 at distance 0, smoothly 0 from ``width`` on."""
    return np.clip(1 - (distance / width) ** 2, 0, None) ** 2


def _coloured(weight: F64, colour: F64) -> F64:
    """(n, H, W) times (3,) to (n, 3, H, W)."""
    return weight[:, None] * colour[:, None, None]
