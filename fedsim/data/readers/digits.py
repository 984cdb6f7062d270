"""The embedded default: scikit-learn's hand-written digits."""

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.data.dataset import DatasetInfo, Raw, Request


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
    return Raw(
        source="scikit-learn",
        x=x,
        y=bunch.target.astype(np.int64),
        class_names=tuple(map(str, range(10))),
        mean=(0.5,),
        std=(0.5,),
    )


DATASETS = (
    DatasetInfo(
        name="digits",
        title="scikit-learn's 1,797 hand-written digits",
        read=digits,
        num_classes=10,
        image_size=8,
        channels=1,
        source="embedded",
    ),
)
