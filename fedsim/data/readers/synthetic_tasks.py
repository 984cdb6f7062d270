"""Synthetic hospitals for several labels and for survival, drawn from ``data.seed``.

Each of ``data.num_clients`` hospitals is drawn on its own, so that it is the same in any number.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.core import rng
from fedsim.core.types import F64, Array
from fedsim.data.dataset import DatasetInfo, Raw, Request
from fedsim.tasks import find

FEATURES, LABELS = 8, 5
SHAPE = 1.5
"""Of the Weibull times."""
Shift = Annotated[float, Field(ge=0)]


def labels(request: Request, *, shift: Shift = 0.5) -> Raw:
    """Five findings of patients, each by a logistic model that all hospitals share.

    Args:
        request: how many hospitals, and the seed.
        shift: standard deviation of the hospitals' means of features, and of their intercepts.
    """
    weights = _common(request, (FEATURES, LABELS))
    x, y = [], []
    for k in range(request.num_clients):
        draw, features = _patients(request, k, shift)
        logits = features @ weights - 1 + shift * draw.standard_normal(LABELS)
        y.append(draw.random(logits.shape) < 1 / (1 + np.exp(-logits)))
        x.append(features)
    names = tuple(f"finding_{k}" for k in range(LABELS))
    return _raw(request, x, y, names, "multilabel")


def survival(
    request: Request,
    *,
    shift: Shift = 0.5,
    censored: Annotated[float, Field(ge=0, lt=1)] = 0.4,
) -> Raw:
    """Months until an event: Weibull, with proportional hazards that all hospitals share.

    Args:
        request: how many hospitals, and the seed.
        shift: standard deviation of the hospitals' means of features, and of the logarithm of the
            scale of their times.
        censored: chance that a patient of average risk is lost before the event.
    """
    weights = _common(request, (FEATURES,))
    x, y = [], []
    for k in range(request.num_clients):
        draw, features = _patients(request, k, shift)
        scale = 24 * np.exp(shift * draw.standard_normal())
        hazard = np.exp(features @ weights)
        event = scale * (draw.standard_exponential(len(hazard)) / hazard) ** (1 / SHAPE)
        odds = max(censored / (1 - censored), 1e-9)
        lost = scale * (draw.standard_exponential(len(hazard)) / odds) ** (1 / SHAPE)
        y.append(np.column_stack([np.ceil(np.minimum(event, lost)), event <= lost]))
        x.append(features)
    return _raw(request, x, y, ("risk",), "survival")


def _common(request: Request, shape: tuple[int, ...]) -> F64:
    """The weights that all hospitals share: each label's have a length of about 1.5."""
    draw = rng.generator(request.seed, request.name)
    return 1.5 / FEATURES**0.5 * draw.standard_normal(shape)


def _patients(request: Request, k: int, shift: float) -> tuple[np.random.Generator, F64]:
    """The generator of a hospital, and its 60 to 240 patients' features (n, 8)."""
    draw = rng.generator(request.seed, request.name, k)
    mean = shift * draw.standard_normal(FEATURES)
    return draw, mean + draw.standard_normal((int(draw.integers(60, 241)), FEATURES))


def _raw(
    request: Request, x: list[F64], y: list[Array], class_names: tuple[str, ...], task: str
) -> Raw:
    hospitals = range(request.num_clients)
    return Raw(
        source=request.name,
        x=np.concatenate(x).astype(np.float32),
        y=np.concatenate(y).astype(np.float32),
        class_names=class_names,
        site=np.repeat(hospitals, [len(part) for part in x]),
        site_names=tuple(f"hospital_{k}" for k in hospitals),
        task=find(task),
    )


DATASETS = tuple(
    DatasetInfo(
        name, title, read, default_model="logistic", default_partition="by_site",
        source="drawn from data.seed", generated=True,
    )
    for name, title, read in (
        ("synthetic_labels", "hospitals with five findings a patient: several labels", labels),
        ("synthetic_survival", "hospitals with Weibull times and censoring: survival", survival),
    )
)  # fmt: skip
