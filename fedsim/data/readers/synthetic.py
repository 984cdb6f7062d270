"""Synthetic(alpha, beta) of FedProx (Li et al. 2020): drawn, or read from LEAF's json."""

from __future__ import annotations

import numpy as np

from fedsim.core import rng
from fedsim.core.types import F64, I64, Array
from fedsim.data.dataset import Raw, Request
from fedsim.data.readers import leaf

DIMENSION = 60
CLASSES = 10


def synthetic(request: Request) -> Raw:
    """Features of users with models of their own: from ``data.dir``, else drawn from the seed."""
    return _drawn(request) if request.folder is None else leaf.synthetic(request)


def _drawn(request: Request) -> Raw:
    """``num_sites`` users; a user's samples depend on its number, not on how many there are."""
    alpha, beta, iid = request.alpha, request.beta, request.iid
    users = [user(request.seed, k, alpha, beta, iid=iid) for k in range(request.num_sites)]
    sizes = [len(y) for _, y in users]
    return Raw(
        "synthetic",
        np.concatenate([x for x, _ in users]),
        np.concatenate([y for _, y in users]),
        tuple(map(str, range(CLASSES))),
        site=np.repeat(np.arange(len(users)), sizes),
        site_names=tuple(f"f_{k:05d}" for k in range(len(users))),
        sites_are_users=True,
    )


def user(seed: int, k: int, alpha: float, beta: float, *, iid: bool = False) -> tuple[Array, I64]:
    """Features (n, 60) float32 and labels (n,) of user k.

    n = 50 + floor(Lognormal(4, 2)); u ~ N(0, alpha^2) and B ~ N(0, beta^2);
    W (60, 10) ~ N(u, 1), b (10,) ~ N(u, 1), v (60,) ~ N(B, 1); x ~ N(v, diag(j^-1.2)) and
    y = argmax softmax(x W + b). As in FedProx's code alpha and beta are standard deviations, where
    the paper's N(0, alpha) can be read as a variance; for 0 and 1 it is the same. Since u moves all
    logits of a sample alike, alpha changes no label: what users' models differ by is W and b.

    Args:
        seed: of the draw.
        k: the user's number.
        alpha: how much the means of the users' models differ.
        beta: how much the users' features differ.
        iid: all users have one W, b ~ N(0, 1), and v = B.
    """
    draw = rng.generator(seed, "synthetic", k)
    size = 50 + int(draw.lognormal(4, 2))
    u, centre = alpha * draw.standard_normal(), beta * draw.standard_normal()
    w, b = _model(rng.generator(seed, "synthetic.iid") if iid else draw)
    v = centre + (0 if iid else draw.standard_normal(DIMENSION))
    x = v + np.sqrt(variances()) * draw.standard_normal((size, DIMENSION))
    stored = x.astype(np.float32)
    shift = 0 if iid else u
    logits = stored.astype(np.float64) @ (shift + w) + (shift + b)
    return stored, logits.argmax(axis=1)


def variances() -> F64:
    """(60,) the diagonal of the features' covariance: j^-1.2, j from 1."""
    return np.arange(1.0, DIMENSION + 1) ** -1.2


def _model(draw: np.random.Generator) -> tuple[F64, F64]:
    return draw.standard_normal((DIMENSION, CLASSES)), draw.standard_normal(CLASSES)
