"""Tables that come with scikit-learn, so that nothing is downloaded."""

from collections.abc import Sequence

import numpy as np

from fedsim.core.settings import CountOrZero
from fedsim.core.types import F64, I64
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.tasks import find


def diabetes(_request: Request, *, sites: CountOrZero = 0) -> Raw:
    """442 patients (Efron et al., 2004): 10 features, and how far the disease is after a year, in
    units of its standard deviation.

    Args:
        sites: as many artificial sites of equal size, by age.
    """
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    return _raw("diabetes", x, y, ("progression",), x[:, 0], sites, "regression")


def breast_cancer(_request: Request, *, sites: CountOrZero = 0) -> Raw:
    """569 tumours (Street et al., 1993): 30 features of their cells, malignant or benign.

    Args:
        sites: as many artificial sites of equal size, by the mean texture.
    """
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    classes = ("malignant", "benign")
    return _raw("breast_cancer", x, y.astype(np.int64), classes, x[:, 1], sites)


def _raw(
    name: str,
    x: F64,
    y: I64,
    class_names: Sequence[str],
    by: F64,
    sites: int,
    task: str | None = None,
) -> Raw:
    """The table with standardised features; its sites follow each other in the order of ``by``."""
    rank = by.argsort(kind="stable").argsort(kind="stable")
    return Raw(
        source=f"scikit-learn's {name}",
        x=((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32),
        y=y,
        class_names=tuple(class_names),
        site=rank * sites // len(rank) if sites else None,
        site_names=tuple(f"site_{k}" for k in range(sites)),
        task=None if task is None else find(task),
    )


DATASETS = (
    DatasetInfo(
        "diabetes", "442 patients, progression of diabetes: regression", diabetes,
        default_model="logistic", source="embedded",
    ),
    DatasetInfo(
        "breast_cancer", "569 tumours, malignant or benign: a table of 30 features", breast_cancer,
        2, default_model="logistic", source="embedded",
    ),
)  # fmt: skip
