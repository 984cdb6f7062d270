"""What a reader of files hands over, before parts are drawn and sizes settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.contracts import I64, Array
from fedsim.errors import ConfigError

TRAIN, VAL, TEST = 0, 1, 2
Parts = NDArray[np.int8]
"""(N,): TRAIN, VAL or TEST for every sample."""


@dataclass(frozen=True)
class Request:
    """What a reader is asked for.

    Args:
        name: the data set's name.
        folder: where its files (or their parent folder) are; None: embedded or downloaded.
        image_size: height and width in pixels that the model shall see; None: the default.
        split: the folder of client lists to use, for the data sets that have such folders.
        source: how to get the data set, for messages.
        seed: of what is drawn.
        num_sites: of generated data.
        samples_per_site: training images of each such site.
        correlation: of mark and class at such sites, in 0..1.
        val_fraction: validation images, as a share of the training images.
        alpha: how much the models of drawn users differ (synthetic).
        beta: how much their features differ.
        iid: they do not differ.
    """

    name: str
    folder: Path | None
    image_size: int | None = None
    split: str | None = None
    source: str = ""
    seed: int = 0
    num_sites: int = 50
    samples_per_site: int = 60
    correlation: float = 0.9
    val_fraction: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    iid: bool = False

    @property
    def own_folder(self) -> Path:
        """``folder``, for the data sets that cannot do without.

        Raises:
            ConfigError: none was given.
        """
        if self.folder is None:
            raise ConfigError(f"data set {self.name!r} needs data.dir: {self.source}")
        return self.folder


@dataclass(frozen=True)
class Raw:
    """Decoded samples of a data set.

    Args:
        source: the file or folder that was read, for messages.
        x: images (N, channels, H, W) uint8, H = W; features (N, d) float32; tokens (N, T) int32.
        y: (N,) int64 class indices, or (N, T) of tokens, -1 where one does not count.
        class_names: one per class.
        mean: of images, per channel, of values in 0..1.
        std: of images, per channel, of values in 0..1.
        parts: (N,) part of each sample where the files say so, or None.
        size: the model's image size where ``x`` is stored at another one and fitted on the
            device; None: ``x`` is resized once.
        augment: the training augmentation of the published pipeline.
        patient: (N,) int64 number of the patient, or None where unknown.
        site: (N,) int64 index into ``site_names``, or None.
        site_names: names of the sites.
        clients: training indices per client, by client name, or None.
        groups: indices of test images by the name of a group.
        vocabulary: the number of different tokens, 0 for images and features.
        never_right: classes that count as wrong wherever they are predicted.
        sites_are_users: the sites are people, of whom each has training samples of its own where
            a part is drawn.
    """

    source: Path | str
    x: Array
    y: I64
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    parts: Parts | None = None
    size: int | None = None
    augment: str = "none"
    patient: I64 | None = None
    site: I64 | None = None
    site_names: tuple[str, ...] = ()
    clients: Mapping[str, I64] | None = None
    groups: Mapping[str, I64] = field(default_factory=dict)
    vocabulary: int = 0
    never_right: tuple[int, ...] = ()
    sites_are_users: bool = False


Reader = Callable[[Request], Raw]


def parts_of(train: int, val: int, test: int) -> Parts:
    """The parts of images that lie in the order training, validation, test."""
    return np.repeat(np.array([TRAIN, VAL, TEST], dtype=np.int8), [train, val, test])
