"""Tables without files: two of scikit-learn's, and synthetic hospitals, drawn from ``data.seed``.

Each of ``data.num_clients`` hospitals is drawn on its own, so that it is the same in any number.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedsim.core import rng
from fedsim.core.settings import CountOrZero
from fedsim.core.types import F64, Array
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.tasks import find

FEATURES, LABELS = 8, 5
SHAPE = 1.5
"""Of the Weibull times."""
Shift = Annotated[float, Field(ge=0)]


def diabetes(_request: Request, *, sites: CountOrZero = 0) -> Raw:
    """442 patients (Efron et al., 2004): 10 features, and how far the disease is after a year, in
    units of its standard deviation; ``sites``: as many artificial ones of equal size, by age."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    y = ((y - y.mean()) / y.std()).astype(np.float32)
    return _embedded("diabetes", x, y, ("progression",), x[:, 0], sites, "regression")


def breast_cancer(_request: Request, *, sites: CountOrZero = 0) -> Raw:
    """569 tumours (Street et al., 1993): 30 features of their cells, malignant or benign;
    ``sites``: as many artificial ones of equal size, by the mean texture."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    classes = ("malignant", "benign")
    return _embedded("breast_cancer", x, y.astype(np.int64), classes, x[:, 1], sites)


def _embedded(
    name: str, x: F64, y: Array, classes: tuple[str, ...], by: F64, sites: int, task: str = ""
) -> Raw:
    """The table with standardised features; its sites follow each other in the order of ``by``."""
    rank = by.argsort(kind="stable").argsort(kind="stable")
    return Raw(
        source=f"scikit-learn's {name}",
        x=((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32),
        y=y,
        class_names=classes,
        site=rank * sites // len(rank) if sites else None,
        site_names=tuple(f"site_{k}" for k in range(sites)),
        task=find(task) if task else None,
    )


def labels(request: Request, *, shift: Shift = 0.5) -> Raw:
    """Five findings of patients, each by a logistic model that all hospitals share; ``shift`` is
    the standard deviation of the hospitals' means of features, and of their intercepts."""
    weights = _weights(request, (FEATURES, LABELS))

    def findings(draw: np.random.Generator, x: F64) -> Array:
        logits = x @ weights - 1 + shift * draw.standard_normal(LABELS)
        return draw.random(logits.shape) < 1 / (1 + np.exp(-logits))

    names = tuple(f"finding_{k}" for k in range(LABELS))
    return _hospitals(request, shift, findings, names, "multilabel")


def survival(
    request: Request, *, shift: Shift = 0.5, censored: Annotated[float, Field(ge=0, lt=1)] = 0.4
) -> Raw:
    """Months until an event: Weibull, with proportional hazards that all hospitals share; ``shift``
    is the standard deviation of the hospitals' means of features, and of the logarithm of the scale
    of their times, ``censored`` the chance that a patient of average risk is lost before."""
    weights, odds = _weights(request, (FEATURES,)), max(censored / (1 - censored), 1e-9)

    def times(draw: np.random.Generator, x: F64) -> Array:
        scale = 24 * np.exp(shift * draw.standard_normal())
        event, lost = (
            scale * (draw.standard_exponential(len(x)) / hazard) ** (1 / SHAPE)
            for hazard in (np.exp(x @ weights), odds)
        )
        return np.column_stack([np.ceil(np.minimum(event, lost)), event <= lost])

    return _hospitals(request, shift, times, ("risk",), "survival")


def _weights(request: Request, shape: tuple[int, ...]) -> F64:
    """Those that all hospitals share: each label's have a length of about 1.5."""
    draw = rng.generator(request.seed, request.name)
    return 1.5 / FEATURES**0.5 * draw.standard_normal(shape)


def _hospitals(
    request: Request,
    shift: float,
    targets: Callable[[np.random.Generator, F64], Array],
    class_names: tuple[str, ...],
    task: str,
) -> Raw:
    """Hospitals with 60 to 240 patients; ``targets`` draws those of one from its features."""
    x, y = [], []
    for k in range(request.num_clients):
        draw = rng.generator(request.seed, request.name, k)
        mean = shift * draw.standard_normal(FEATURES)
        x.append(mean + draw.standard_normal((int(draw.integers(60, 241)), FEATURES)))
        y.append(targets(draw, x[-1]))
    return Raw(
        source=request.name,
        x=np.concatenate(x).astype(np.float32),
        y=np.concatenate(y).astype(np.float32),
        class_names=class_names,
        site=np.repeat(range(len(x)), [len(part) for part in x]),
        site_names=tuple(f"hospital_{k}" for k in range(len(x))),
        task=find(task),
    )


SYNTHETIC: dict[str, Any] = {
    "default_model": "logistic", "default_partition": "by_site",
    "source": "drawn from data.seed", "generated": True,
}  # fmt: skip
DATASETS = (
    DatasetInfo(
        "diabetes", "442 patients, progression of diabetes: regression", diabetes,
        default_model="logistic", source="embedded",
    ),
    DatasetInfo(
        "breast_cancer", "569 tumours, malignant or benign: a table of 30 features", breast_cancer,
        2, default_model="logistic", source="embedded",
    ),
    DatasetInfo(
        "synthetic_labels", "hospitals with five findings a patient: several labels", labels,
        **SYNTHETIC,
    ),
    DatasetInfo(
        "synthetic_survival", "hospitals with Weibull times and censoring: survival", survival,
        **SYNTHETIC,
    ),
)  # fmt: skip
