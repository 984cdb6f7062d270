"""Which client owns which training sample."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedsim.contracts import Dataset, Partition
from fedsim.data.draws import EQUAL, UNEQUAL, Draw, until_filled
from fedsim.data.given import fixed
from fedsim.errors import ConfigError, DataError, nearest

NAMES: Mapping[str, str] = {
    "iid": "equal shares at random",
    "dirichlet": "classes dealt out by Dirichlet(alpha); who has a fair share gets no more",
    "dirichlet_plain": "classes dealt out by Dirichlet(alpha), nothing else",
    "dirichlet_per_client": "equal shares, each with class proportions of its own",
    "quantity": "unequal shares by Dirichlet(alpha), classes not looked at",
    "shards": "a few shards of the label-sorted data per client",
    "by_site": "a client per site (hospital, device), with its own part of the test images",
    "natural": "a client per user (writer, speaker, account), with its own part of the test "
    "samples; users with fewer than data.min_samples training samples are left out",
    "files": "the client lists of the data set, or a CSV file with client,index",
}
BY_ALPHA = ("dirichlet", "dirichlet_plain", "dirichlet_per_client", "quantity")
"""The kinds that look at alpha."""
BY_LABEL = ("dirichlet", "dirichlet_plain", "dirichlet_per_client", "shards")
"""The kinds that look at a sample's label."""


def make(
    dataset: Dataset,
    kind: str,
    *,
    num_clients: int | None = None,
    alpha: float = 0.5,
    min_samples: int = 2,
    seed: int = 0,
    file: Path | None = None,
    shards_per_client: int = 2,
    prior: str = "uniform",
    order: str = "round_robin",
) -> Partition:
    """Deals the training part out to clients.

    Args:
        dataset: whose ``train`` is dealt out.
        kind: a key of :data:`NAMES`.
        num_clients: K; None where lists, sites or users fix it.
        alpha: concentration of the kinds in :data:`BY_ALPHA`, > 0; small means unequal clients.
        min_samples: samples that every client must have, >= 1. ``dirichlet``, ``dirichlet_plain``
            and ``quantity`` are drawn again until all have them, at most 1000 times.
        seed: of the draw.
        file: the CSV file of ``files``; None takes the data set's own client lists.
        shards_per_client: of ``shards``.
        prior: of ``dirichlet_per_client``: ``uniform`` (alpha times ones) or ``frequencies``
            (alpha times the class frequencies).
        order: of ``dirichlet_per_client``: ``round_robin`` or ``sequential``.

    Raises:
        ConfigError: an unknown kind or option, or a value that no partition can have.
        DataError: more clients than samples, a minimum that is out of reach, a damaged file.
    """
    _check_name("data.partition", kind, tuple(NAMES))
    _check_name("prior", prior, ("uniform", "frequencies"))
    _check_name("order", order, ("round_robin", "sequential"))
    _check_numbers(num_clients, alpha, min_samples)
    partition = fixed(dataset, kind, file)
    if partition is None:
        if kind in BY_LABEL and dataset.per_token:
            drawn = [name for name in (*EQUAL, *UNEQUAL) if name not in BY_LABEL]
            raise ConfigError(
                f"data.partition {kind!r} deals samples out by their label; {dataset.name} has a "
                f"label for every token: take natural, {' or '.join(drawn)}"
            )
        if num_clients is None:
            raise ConfigError(f"data.num_clients is missing; partition {kind!r} does not fix it")
        _check_enough(dataset, num_clients, min_samples)
        rng = np.random.RandomState(seed)
        labels = dataset.y[dataset.train]
        draw = Draw(labels, num_clients, alpha, rng, shards_per_client, prior, order)
        if kind in UNEQUAL:
            pieces = until_filled(UNEQUAL[kind], draw, min_samples)
        else:
            pieces = EQUAL[kind](draw)
        partition = Partition(tuple(dataset.train[p] for p in pieces))
    elif num_clients not in (None, partition.num_clients):
        raise ConfigError(
            f"data.num_clients {num_clients}: partition {kind!r} of {dataset.name} has "
            f"{partition.num_clients} clients, no other number is possible"
        )
    _check(dataset, partition, min_samples)
    return partition


def default_kind(dataset: Dataset) -> str:
    """``files`` with client lists, ``natural`` with users, ``by_site`` with sites, or dirichlet."""
    if dataset.clients is not None:
        return "files"
    if dataset.sites_are_users:
        return "natural"
    return "by_site" if dataset.site is not None else "dirichlet"


def fixed_num_clients(dataset: Dataset, kind: str, file: Path | None = None) -> int | None:
    """K where lists, sites or users fix it, None where it can be chosen.

    Raises:
        ConfigError: the data set has no lists, sites or users.
        DataError: a damaged file.
    """
    partition = fixed(dataset, kind, file)
    return None if partition is None else partition.num_clients


def table(dataset: Dataset, partition: Partition) -> list[dict[str, int | str]]:
    """The rows of partition.csv: one per client and label with any samples.

    Keys client_id, label, train_samples, test_samples (the client's own; 0 where the test set is
    common), and name where the clients have names. Text has the label -1.
    """
    labels, first = (
        (np.zeros(len(dataset.y), np.int64), -1) if dataset.vocabulary else (dataset.y, 0)
    )
    rows: list[dict[str, int | str]] = []
    tests = partition.test or (dataset.test[:0],) * partition.num_clients
    for client, parts in enumerate(zip(partition.train, tests, strict=True)):
        train, test = (np.bincount(labels[p], minlength=dataset.num_classes) for p in parts)
        for label in np.flatnonzero(train + test).tolist():
            row: dict[str, int | str] = {
                "client_id": client,
                "label": label + first,
                "train_samples": int(train[label]),
                "test_samples": int(test[label]),
            }
            rows.append(row | ({"name": partition.names[client]} if partition.names else {}))
    return rows


def write(partition: Partition, dataset: Dataset, path: Path) -> None:
    """Writes a partition as the CSV file that ``files`` reads: client,index[,name].

    ``index`` counts from 0 in the training part, in the order of ``dataset.train``. What a client
    held out of it for parts of its own stands after its training samples: the same fractions and
    seed hold the same samples out again.
    """
    position = np.full(len(dataset.y), -1, dtype=np.int64)
    position[dataset.train] = np.arange(len(dataset.train))
    names = [[name] for name in partition.names] or [[] for _ in partition.train]
    with path.open("w", encoding="utf-8", newline="") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(["client", "index", *(["name"] if partition.names else [])])
        for client, name in enumerate(names):
            parts = (partition.train, partition.val, partition.test)
            own = position[np.concatenate([part[client] for part in parts if part])]
            out.writerows([client, i, *name] for i in own[own >= 0].tolist())


def _check_name(key: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise ConfigError(
            f"{key} {given!r} is unknown{nearest(given, allowed)}; known: {', '.join(allowed)}"
        )


def _check_numbers(num_clients: int | None, alpha: float, min_samples: int) -> None:
    if num_clients is not None and num_clients < 1:
        raise ConfigError(f"data.num_clients {num_clients} must be at least 1")
    if not (alpha > 0 and np.isfinite(alpha)):
        raise ConfigError(f"data.alpha {alpha} must be a finite number > 0")
    if min_samples < 1:
        raise ConfigError(f"data.min_samples {min_samples} must be at least 1")


def _check_enough(dataset: Dataset, num_clients: int, min_samples: int) -> None:
    needed, n = num_clients * min_samples, len(dataset.train)
    if needed > n:
        raise DataError(
            f"{num_clients} clients with data.min_samples {min_samples} need {needed} training "
            f"samples, {dataset.name} has {n}"
        )


def _check(dataset: Dataset, partition: Partition, min_samples: int) -> None:
    everything = np.concatenate(partition.train)
    if len(np.unique(everything)) != len(everything):
        raise DataError(f"{dataset.name}: the partition gives a sample to two clients")
    if not np.isin(everything, dataset.train).all():
        raise DataError(f"{dataset.name}: the partition names a sample outside the training part")
    for client, indices in enumerate(partition.train):
        if len(indices) < min_samples:
            name = f" ({partition.names[client]})" if partition.names else ""
            raise DataError(
                f"{dataset.name}: client {client}{name} of the partition has {len(indices)} "
                f"training samples, data.min_samples is {min_samples}"
            )
