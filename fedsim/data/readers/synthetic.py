"""Synthetic(alpha, beta) of FedProx (Li et al. 2020): drawn, or read from LEAF's json."""

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.core import rng
from fedsim.core.errors import DataError
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import TRAIN, DatasetInfo, Raw, Request
from fedsim.data.readers.leaf import Samples, gather, labels, numbers, place
from fedsim.data.readers.tables import of_users

DIMENSION = 60
CLASSES = 10


def synthetic(
    request: Request,
    *,
    alpha: Annotated[float, Field(ge=0)] = 0.0,
    beta: Annotated[float, Field(ge=0)] = 0.0,
    iid: bool = False,
) -> Raw:
    """Features of users with models of their own: from ``data.dir``, else drawn from the seed.

    Args:
        request: each of its clients becomes a user, whose samples depend on its number, not on
            how many there are.
        alpha: standard deviation of the means of the users' models (which changes no label).
        beta: standard deviation of the means of the users' features.
        iid: the users do not differ.
    """
    if request.folder is not None:
        raw = gather(place(request), _read)
        return replace(raw, class_names=tuple(map(str, range(int(raw.y.max()) + 1))))
    names = [f"f_{k:05d}" for k in range(request.num_clients)]
    drawn = [user(request.seed, k, alpha, beta, iid=iid) for k in range(len(names))]
    blocks = {(TRAIN, name): block for name, block in zip(names, drawn, strict=True)}
    raw = of_users("synthetic", blocks, names)
    return replace(raw, class_names=tuple(map(str, range(CLASSES))))


def _read(samples: Samples) -> tuple[Array, I64]:
    """LEAF's or FedProx's json: features (n, d), classes as in y."""
    with np.errstate(over="ignore"):  # too large for float32: not finite, refused below
        x = numbers(samples.x, "x", samples.where).astype(np.float32)
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        raise DataError(f"{samples.where}: x has to be lists of finite numbers")
    return x, labels(samples, 10_000)


def user(seed: int, k: int, alpha: float, beta: float, *, iid: bool = False) -> tuple[Array, I64]:
    """Features (n, 60) float32 and labels (n,) of user k.

    n = 50 + floor(Lognormal(4, 2)); u ~ N(0, alpha^2) and B ~ N(0, beta^2);
    W (60, 10) ~ N(u, 1), b (10,) ~ N(u, 1), v (60,) ~ N(B, 1); x ~ N(v, diag(j^-1.2)) and
    y = argmax softmax(x W + b). As in FedProx's code alpha and beta are standard deviations. Since
    u moves all logits of a sample alike, alpha changes no label. With ``iid`` all users have one W,
    b ~ N(0, 1), and v = B.
    """
    draw = rng.generator(seed, "synthetic", k)
    size = 50 + int(draw.lognormal(4, 2))
    u, centre = alpha * draw.standard_normal(), beta * draw.standard_normal()
    model = rng.generator(seed, "synthetic.iid") if iid else draw
    w, b = model.standard_normal((DIMENSION, CLASSES)), model.standard_normal(CLASSES)
    v = centre + (0 if iid else draw.standard_normal(DIMENSION))
    x = v + np.sqrt(variances()) * draw.standard_normal((size, DIMENSION))
    stored = x.astype(np.float32)
    shift = 0 if iid else u
    logits = stored.astype(np.float64) @ (shift + w) + (shift + b)
    return stored, logits.argmax(axis=1)


def variances() -> F64:
    """(60,) the diagonal of the features' covariance: j^-1.2, j from 1."""
    return np.arange(1.0, DIMENSION + 1) ** -1.2


DATASETS = (
    DatasetInfo(
        name="synthetic",
        title="features of users with models of their own: synthetic(alpha, beta) of FedProx",
        read=synthetic,
        num_classes=CLASSES,
        default_model="leaf_synthetic",
        default_partition="natural",
        source="generated; or LEAF's json in data.dir",
        generated=True,
    ),
)
