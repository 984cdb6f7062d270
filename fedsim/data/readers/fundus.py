"""Drawn images that look like photographs of a retina: lesions, and marks that cameras leave.

Coordinates run from -1 to 1 over the image. Pixels are sums, products, quotients and square roots
of float64, which are exact to the last bit on every processor, so all machines draw the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fedsim.core.types import F64, I64, Array

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


@dataclass(frozen=True)
class Eyes:
    """What n eyes look like; every array has n rows.

    Args:
        centre: (n, 2) of the eye, x and y.
        radius: (n,) of the eye.
        colour: (n, 3) of its background, in grey levels.
        light: (n, 2) slope of the illumination along x and y.
        side: (n,) where the optic disc is: 1 right, -1 left.
        height: (n,) of the optic disc.
        bend: (n, vessels) curvature of each vessel's arc.
        tilt: (n, vessels) of the arc.
        lesion_at: (n, lesions, 2) from the eye's centre, in radii.
        lesion_size: (n, lesions) radius of each lesion.
        lesion_colour: (n, lesions, 3) grey levels at its centre; 0 where there is none.
    """

    centre: F64
    radius: F64
    colour: F64
    light: F64
    side: F64
    height: F64
    bend: F64
    tilt: F64
    lesion_at: F64
    lesion_size: F64
    lesion_colour: F64

    def rows(self, which: slice) -> Eyes:
        """Some of the eyes."""
        return Eyes(*(getattr(self, f.name)[which] for f in fields(self)))


def draw(diseased: NDArray[np.bool_], rng: np.random.Generator) -> Eyes:
    """Eyes at random: one to five lesions in a diseased one, one in a quarter of the healthy ones.

    A lesion is bright (exudate) or dark (haemorrhage). Of the diseased eyes 13 % have a single one,
    so that no model can be right about more than 93.5 % of as many healthy as diseased eyes.

    Args:
        diseased: (n,) the classes.
        rng: consumed; the same draws for every n-th eye need the same n.
    """
    n = len(diseased)
    direction = rng.standard_normal((n, _LESIONS, 2))
    direction /= np.sqrt((direction**2).sum(axis=-1, keepdims=True))
    count = np.where(diseased, 1 + rng.binomial(_LESIONS - 1, 0.4, n), rng.binomial(1, 0.25, n))
    clear = rng.uniform(0.7, 1.1, (n, _LESIONS))
    there = np.arange(_LESIONS) < count[:, None]
    bright = rng.random((n, _LESIONS)) < 0.5
    return Eyes(
        centre=rng.uniform(-0.05, 0.05, (n, 2)),
        radius=rng.uniform(0.84, 0.92, n),
        colour=_ORANGE * rng.uniform(0.82, 1.15, (n, 1)) * rng.uniform(0.93, 1.07, (n, 3)),
        light=rng.uniform(-0.15, 0.15, (n, 2)),
        side=np.where(rng.random(n) < 0.5, -1.0, 1.0),
        height=rng.uniform(-0.1, 0.1, n),
        bend=rng.uniform(0.6, 2.6, (n, _VESSELS)),
        tilt=rng.uniform(-0.35, 0.35, (n, _VESSELS)),
        lesion_at=direction * 0.75 * np.sqrt(rng.random((n, _LESIONS, 1))),
        lesion_size=rng.uniform(0.16, 0.22, (n, _LESIONS)),
        lesion_colour=(clear * there)[..., None]
        * np.where(bright[..., None], _EXUDATE, _HAEMORRHAGE),
    )


def render(eyes: Eyes, mark: I64, size: int, rng: np.random.Generator) -> Array:
    """Images (n, 3, size, size) uint8.

    Args:
        eyes: n of them.
        mark: (n,) index into :data:`MARKS`, -1 for none.
        size: height and width in pixels.
        rng: of the pixels' noise; consumed image by image.
    """
    out = np.empty((len(mark), 3, size, size), dtype=np.uint8)
    step = max(1, _PIXELS // size**2)
    for start in range(0, len(mark), step):
        some = slice(start, start + step)
        image = _image(eyes.rows(some), mark[some], size)
        image += _NOISE * rng.standard_normal(image.shape)
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
