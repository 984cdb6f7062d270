"""From decoded images to a checked :class:`fedsim.contracts.Dataset`."""

from __future__ import annotations

import numpy as np

from fedsim.contracts import I64, Dataset, Pipeline
from fedsim.data.images import resize
from fedsim.data.raw import TEST, TRAIN, VAL, Parts, Raw
from fedsim.data.splits import held_out
from fedsim.data.transforms import check_augment
from fedsim.errors import DataError


def assemble(
    raw: Raw,
    name: str,
    *,
    image_size: int | None,
    augment: str | None,
    val_fraction: float,
    test_fraction: float,
    seed: int,
) -> Dataset:
    """Draws the parts that the files do not give, settles the image size and checks everything.

    Arguments as in :func:`fedsim.data.load`.
    """
    parts = _parts(raw, name, val_fraction, test_fraction, seed)
    x = raw.x if raw.size or image_size is None else resize(raw.x, image_size)
    train = np.flatnonzero(parts == TRAIN)
    clients = raw.clients
    if clients is not None:
        clients = {client: i[parts[i] == TRAIN] for client, i in clients.items()}
    dataset = Dataset(
        name=name,
        x=x,
        y=raw.y,
        class_names=raw.class_names,
        train=train,
        val=np.flatnonzero(parts == VAL),
        test=np.flatnonzero(parts == TEST),
        pipeline=Pipeline(
            size=raw.size or x.shape[-1],
            mean=raw.mean,
            std=raw.std,
            augment=raw.augment if augment is None else augment,
        ),
        site=raw.site,
        site_names=raw.site_names,
        clients=clients,
        groups=raw.groups,
    )
    check(dataset, str(raw.source))
    return dataset


def _parts(raw: Raw, name: str, val_fraction: float, test_fraction: float, seed: int) -> Parts:
    """TRAIN, VAL or TEST for every image: as the files say, and drawn where they do not."""
    parts = np.full(len(raw.y), TRAIN, dtype=np.int8) if raw.parts is None else raw.parts.copy()
    for part, fraction in ((TEST, test_fraction), (VAL, val_fraction)):
        if fraction > 0 and not (parts == part).any():
            train = np.flatnonzero(parts == TRAIN)
            patient = None if raw.patient is None else raw.patient[train]
            stratum = raw.y if raw.site is None else raw.y + len(raw.class_names) * raw.site
            stream = "split.test" if part == TEST else "split.val"
            parts[train[held_out(stratum[train], patient, fraction, seed, stream, name)]] = part
    return parts


def check(dataset: Dataset, source: str) -> None:
    """Refuses a data set that breaks the contract; every reader's and every user's goes through.

    Raises:
        ConfigError: an unknown augmentation.
        DataError: a wrong dtype, shape, label or index; says which.
    """
    d, n = dataset, len(dataset.y)
    check_augment(d.pipeline.augment)
    parts = (d.train, d.val, d.test)
    rules = (
        (
            d.x.dtype == np.uint8 and d.x.ndim == 4 and d.x.shape[2] == d.x.shape[3],
            f"x is {d.x.dtype} {d.x.shape}, needed is uint8 (N, channels, H, H)",
        ),
        (
            d.y.dtype == np.int64 and d.y.shape == d.x.shape[:1],
            f"y is {d.y.dtype} {d.y.shape}, needed is int64 ({len(d.x)},)",
        ),
        (d.num_classes >= 2, f"classes are {d.class_names}, needed are at least two"),
        (
            n == 0 or (d.y.min() >= 0 and d.y.max() < d.num_classes),
            f"labels outside the classes 0..{d.num_classes - 1}",
        ),
        (len(d.train) > 0, "the training part is empty"),
        (len(d.test) > 0, "the test part is empty"),
        (
            all(p.dtype == np.int64 and p.ndim == 1 for p in parts),
            "train, val and test have to be int64 index arrays",
        ),
        (_disjoint(parts, n), f"train, val and test have to be disjoint indices in 0..{n - 1}"),
        (
            len(d.pipeline.mean) == len(d.pipeline.std) == d.x.shape[1],
            f"mean and std need {d.x.shape[1]} values",
        ),
        (min(d.pipeline.std) > 0 and d.pipeline.size > 0, "std and size have to be > 0"),
        (d.site is None or d.site.shape == d.y.shape, "site needs one value per image"),
        (
            all(np.isin(group, d.test).all() for group in d.groups.values()),
            "groups name images outside the test part",
        ),
        (
            all(map(len, d.groups.values())),
            f"groups without images: {[name for name, g in d.groups.items() if not len(g)]}",
        ),
    )
    for kept, message in rules:
        if not kept:
            raise DataError(f"{source}: data set {d.name}: {message}")


def _disjoint(parts: tuple[I64, ...], n: int) -> bool:
    everything = np.concatenate(parts)
    inside = len(everything) == 0 or (everything.min() >= 0 and everything.max() < n)
    return bool(inside and len(np.unique(everything)) == len(everything))
