"""Data whose sites are users: their own test samples, and users with too few samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedsim import rng
from fedsim.contracts import I64, Dataset
from fedsim.data.own import strata, stratified
from fedsim.errors import DataError


def held_out(y: I64, user: I64, fraction: float, seed: int, stream: str, name: str) -> I64:
    """Positions of random samples, ``fraction`` of each user's rounded to the nearest number.

    Args:
        y: (n,) labels, of each of which nearly its share is taken, or (n, T), not looked at.
        user: (n,) the users' numbers.
        fraction: in 0..1, both excluded.
        seed: of the draw; a user's samples are drawn whatever other users have.
        stream: purpose of the draw.
        name: of the data set, for messages.

    Raises:
        DataError: no user has enough samples to give one, or nothing is left.
    """
    label, parts = strata(y), []
    for number, own in _by_user(user):
        draw = rng.generator(seed, stream, number)
        parts.append(own[stratified(label[own], round(fraction * len(own)), draw)])
    out = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    if not 0 < len(out) < len(y):
        raise DataError(
            f"{name}: {len(y)} samples of {len(parts)} users are too few to hold out a fraction "
            f"{fraction} of each user's"
        )
    return out


def _by_user(user: I64) -> Iterator[tuple[int, I64]]:
    """Each user's number and the positions of its samples."""
    order = np.argsort(user, kind="stable")
    numbers, starts = np.unique(user[order], return_index=True)
    yield from zip(numbers.tolist(), np.split(order, starts)[1:], strict=True)


def with_enough(dataset: Dataset, min_samples: int) -> Dataset:
    """The data set without users that have fewer training samples, as by LEAF's option -k.

    Their samples stay in ``x`` and leave all parts. A validation or test part of users of whom
    none has training samples (LEAF's split by users) is common to all clients and stays whole.

    Raises:
        DataError: no user has so many.
    """
    if dataset.site is None:
        return dataset
    site = dataset.site
    counts = np.bincount(site[dataset.train], minlength=len(dataset.site_names))
    enough = counts >= min_samples
    if not enough.any():
        raise DataError(
            f"{dataset.name}: no user has data.min_samples {min_samples} training samples, the "
            f"most is {counts.max()}"
        )
    val, test = (
        part[enough[site[part]]] if (counts[site[part]] > 0).any() else part
        for part in (dataset.val, dataset.test)
    )
    return replace(dataset, train=dataset.train[enough[site[dataset.train]]], val=val, test=test)


def left_out(dataset: Dataset) -> int:
    """How many users have samples in no part."""
    if dataset.site is None or not dataset.sites_are_users:
        return 0
    parts = np.concatenate([dataset.train, dataset.val, dataset.test])
    return len(np.unique(dataset.site)) - len(np.unique(dataset.site[parts]))
