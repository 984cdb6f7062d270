"""``data.normalization`` as text: the mean and standard deviation of images, and their size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedsim.core.types import Dataset

OF_DATASET = "dataset"
"""The value that leaves the data set its own."""
_FORM = "must be dataset, or MEAN/STD or MEAN/STD/PIXELS with a number per channel, as in 0.5/0.25"


@dataclass(frozen=True)
class Normalization:
    """What a network's images are normalised with: per channel, of values in 0..1; ``size``: height
    and width in pixels that the network sees, None: the data set's.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None

    @classmethod
    def parse(cls, text: str) -> Normalization:
        """That of ``mean/std`` or ``mean/std/size``; a ValueError says what is allowed."""
        mean, _, rest = text.partition("/")
        std, _, size = rest.partition("/")
        try:
            means, stds = (tuple(map(float, part.split(","))) for part in (mean, std))
            sizes = range(1, 8193)
            fits = len(means) == len(stds) and min(stds) > 0 and (not size or int(size) in sizes)
        except ValueError:
            raise ValueError(_FORM) from None
        if not (fits and all(map(math.isfinite, (*means, *stds)))):
            raise ValueError(_FORM)
        return cls(means, stds, int(size) if size else None)

    def __str__(self) -> str:
        parts = [",".join(f"{value:g}" for value in values) for values in (self.mean, self.std)]
        return "/".join([*parts, *([str(self.size)] if self.size else [])])

    def applied(self, dataset: Dataset) -> Dataset:
        """The data set with it, grey images with mean values; a ValueError for other channels."""
        if dataset.pipeline is None:
            return dataset
        channels = dataset.x.shape[1]
        mean, std = self.mean, self.std
        if channels == 1:
            mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
        elif len(mean) == 1:
            mean, std = mean * channels, std * channels
        if len(mean) != channels:
            raise ValueError(f"{len(mean)} channels, and the images have {channels}")
        size = self.size or dataset.pipeline.size
        return replace(dataset, pipeline=replace(dataset.pipeline, mean=mean, std=std, size=size))
