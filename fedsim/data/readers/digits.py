"""The embedded default: scikit-learn's hand-written digits."""

from __future__ import annotations

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.data.dataset import Raw, Request


def digits(request: Request) -> Raw:
    """1,797 grey images of 8 x 8 pixels, 10 classes; their 0..16 become 0..255, rounded.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits". It has no parts of
    its own here: a test part is made.

    Raises:
        ConfigError: a folder is given, where there is nothing to read.
    """
    if request.folder is not None:
        raise ConfigError(f"data.dir {request.folder}: digits is embedded, it takes no folder")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = np.rint(bunch.images * 255 / 16).astype(np.uint8)[:, None]
    classes = tuple(map(str, range(10)))
    return Raw("scikit-learn", x, bunch.target.astype(np.int64), classes, (0.5,), (0.5,))
