"""The embedded default: scikit-learn's hand-written digits."""

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np

from fedsim.core.errors import ConfigError
from fedsim.core.types import F64
from fedsim.data.dataset import DatasetInfo, Raw, Request


def digits(request: Request) -> Raw:
    """1,797 grey images of 8 x 8 pixels, 10 classes; their 0..16 become 0..255, rounded.

    Source: the test part of UCI's "Optical Recognition of Handwritten Digits". It has no parts of
    its own here: a test part is made.
    """
    if request.folder is not None:
        raise ConfigError(f"data.dir {request.folder}: digits is embedded, it takes no folder")
    table = _table()
    return Raw(
        source="scikit-learn",
        x=np.rint(table[:, :-1].reshape(-1, 1, 8, 8) * 255 / 16).astype(np.uint8),
        y=table[:, -1].astype(np.int64),
        class_names=tuple(map(str, range(10))),
    )


@cache
def _table() -> F64:
    """(1797, 65) pixels and label, of the file that scikit-learn's ``load_digits`` reads.

    It is read without scikit-learn, whose import takes a second.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ConfigError("data.name digits: scikit-learn, which has the images, is not installed")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(file, delimiter=",")


DATASETS = (
    DatasetInfo(
        "digits", "scikit-learn's 1,797 hand-written digits", digits, 10, 8, 1, source="embedded"
    ),
)
