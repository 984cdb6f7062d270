"""Validation and test parts for data that have none: stratified, and by patient where known."""

from __future__ import annotations

import numpy as np

from fedsim import rng
from fedsim.contracts import I64
from fedsim.errors import DataError


def held_out(
    stratum: I64, group: I64 | None, fraction: float, seed: int, stream: str, name: str
) -> I64:
    """Positions of a random held-out part of about ``fraction`` of every stratum, ascending.

    Groups are looked at in random order, and one is taken, whole, if that brings the counts
    nearer to ``fraction`` of each stratum (sum of squared relative distances). Without groups
    every stratum gives its share, rounded to the nearest number.

    Args:
        stratum: (n,) numbers of the classes, or of classes at sites.
        group: (n,) numbers of the patients, of whom none may be on both sides, or None.
        fraction: in 0..1, both excluded.
        seed: of the draw.
        stream: purpose of the draw, which makes it independent of other draws of ``seed``.
        name: of the data set, for messages.

    Raises:
        DataError: one side would be empty.
    """
    members = np.arange(len(stratum)) if group is None else np.unique(group, return_inverse=True)[1]
    strata = np.unique(stratum, return_inverse=True)[1]
    totals = np.bincount(strata)
    counts = np.zeros((int(members.max()) + 1, len(totals)))
    np.add.at(counts, (members, strata), 1)
    order = rng.generator(seed, stream).permutation(len(counts))
    relative = counts / totals
    missing = np.full(len(totals), fraction)
    taken = np.zeros(len(counts), dtype=bool)
    for g in order.tolist():
        if (relative[g] * (2 * missing - relative[g])).sum() > 0:
            missing -= relative[g]
            taken[g] = True
    out = np.flatnonzero(taken[members])
    if not 0 < len(out) < len(stratum):
        raise DataError(
            f"{name}: {len(stratum)} images of {len(counts)} patients are too few to hold out a "
            f"fraction {fraction}"
        )
    return out
