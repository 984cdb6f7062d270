"""Partitions: which client owns which training samples, drawn at random or fixed by the data.

The order of calls on ``numpy.random.RandomState`` is that of SSL-FL's and NIID-Bench's public
code, so that published splits can be drawn again.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.files import read_table, whole_number
from fedsim.core.types import F64, I64, Dataset, Partition
from fedsim.data.holdout import of_sites

NAMES: Mapping[str, str] = {
    "iid": "equal numbers of samples at random",
    "dirichlet": "each class split by Dirichlet(alpha); a client with n/K samples gets no more",
    "dirichlet_plain": "each class split by Dirichlet(alpha), without a limit on sizes",
    "dirichlet_per_client": "equal sizes, class proportions drawn for each client",
    "quantity": "unequal sizes by Dirichlet(alpha), regardless of class",
    "shards": "a few shards of the data sorted by label per client",
    "by_site": "a client per site (hospital, device), with its own part of the test images",
    "natural": "a client per user (writer, speaker, account), with its own part of the test "
    "samples; users with fewer than data.min_samples training samples are left out",
    "files": "the client lists of the data set, or a CSV file with client,index",
}
BY_ALPHA = ("dirichlet", "dirichlet_plain", "dirichlet_per_client", "quantity")
"""The kinds that depend on alpha."""
BY_LABEL = ("dirichlet", "dirichlet_plain", "dirichlet_per_client", "shards")
"""The kinds that depend on the samples' labels."""


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
    """Assigns the training samples to clients.

    Args:
        dataset: whose ``train`` is partitioned.
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
        ConfigError: a kind that the data set cannot have, or another number of clients than it
            fixes.
        DataError: more clients than samples, a minimum that is out of reach, a damaged file.
    """
    partition = None
    if kind in ("by_site", "natural"):
        partition = _by_site(dataset, kind)
    elif kind == "files":
        partition = _listed(dataset) if file is None else _read(dataset, file)
    if partition is None:
        if kind in BY_LABEL and dataset.per_token:
            drawn = [name for name in (*EQUAL, *UNEQUAL) if name not in BY_LABEL]
            raise ConfigError(
                f"data.partition {kind!r} depends on the samples' labels; {dataset.name} has a "
                f"label for every token: take natural, {' or '.join(drawn)}"
            )
        if num_clients is None:
            raise ConfigError(f"data.num_clients is missing; partition {kind!r} does not fix it")
        needed, n = num_clients * min_samples, len(dataset.train)
        if needed > n:
            raise DataError(
                f"{num_clients} clients with data.min_samples {min_samples} need {needed} training "
                f"samples, {dataset.name} has {n}"
            )
        rng = np.random.RandomState(seed)
        labels = dataset.y[dataset.train]
        draw = Draw(
            labels=labels,
            num_clients=num_clients,
            alpha=alpha,
            rng=rng,
            shards_per_client=shards_per_client,
            prior=prior,
            order=order,
        )
        unequal = UNEQUAL.get(kind)
        owned = redrawn(unequal, draw, min_samples) if unequal else EQUAL[kind](draw)
        partition = Partition(train=tuple(dataset.train[p] for p in owned))
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


def table(dataset: Dataset, partition: Partition) -> list[dict[str, Any]]:
    """The rows of partition.csv: one per client and label with any samples.

    Keys client_id, label, train_samples, test_samples (the client's own; 0 where the test set is
    common), and name where the clients have names. Text has the label -1.
    """
    labels, first = (
        (np.zeros(len(dataset.y), np.int64), -1) if dataset.vocabulary else (dataset.y, 0)
    )
    rows: list[dict[str, Any]] = []
    tests = partition.test or (dataset.test[:0],) * partition.num_clients
    for client, parts in enumerate(zip(partition.train, tests, strict=True)):
        train, test = (np.bincount(labels[p], minlength=dataset.num_classes) for p in parts)
        for label in np.flatnonzero(train + test).tolist():
            row: dict[str, Any] = {
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


MAX_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a random partition is drawn from; ``labels`` (n,) of the training part, in its order.

    ``alpha``, ``shards_per_client``, ``prior`` and ``order`` are as in
    :func:`fedsim.data.partitions.make`.
    """

    labels: I64
    num_clients: int
    alpha: float
    rng: np.random.RandomState
    shards_per_client: int
    prior: str
    order: str


def iid(draw: Draw) -> list[I64]:
    """A random permutation cut into K nearly equal parts."""
    return np.array_split(draw.rng.permutation(len(draw.labels)), draw.num_clients)


def dirichlet(draw: Draw) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients, 0 for clients that have n/K samples already."""
    return _split_classes(draw, cap=len(draw.labels) / draw.num_clients)


def dirichlet_plain(draw: Draw) -> list[I64]:
    """Per class q ~ Dir(alpha) over the clients."""
    return _split_classes(draw, cap=np.inf)


def _split_classes(draw: Draw, cap: float) -> list[I64]:
    """Per class in ascending order: shuffle, draw q, cut at floor(cumsum(q) n_class).

    Where the cap leaves no client with a positive q, the uncapped q is used; the public codes
    divide by zero there.
    """
    owned: list[list[I64]] = [[] for _ in range(draw.num_clients)]
    sizes = np.zeros(draw.num_clients, dtype=np.int64)
    for label in np.unique(draw.labels):
        indices = np.flatnonzero(draw.labels == label)
        draw.rng.shuffle(indices)
        q = _proportions(draw.rng, np.full(draw.num_clients, draw.alpha))
        capped = np.where(sizes < cap, q, 0.0)
        q = capped / capped.sum() if capped.sum() > 0 else q
        cuts = (np.cumsum(q) * len(indices)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(indices, cuts)):
            owned[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(p) for p in owned]


def quantity(draw: Draw) -> list[I64]:
    """A random permutation cut by q ~ Dir(alpha) over the clients, whatever the classes.

    As NIID-Bench draws it, except that a draw that is repeated shuffles again as well.
    """
    shuffled = draw.rng.permutation(len(draw.labels))
    q = _proportions(draw.rng, np.full(draw.num_clients, draw.alpha))
    return np.split(shuffled, (np.cumsum(q) * len(shuffled)).astype(np.int64)[:-1])


def _proportions(rng: np.random.RandomState, alpha: F64) -> F64:
    """A Dirichlet draw, or its limit for alpha to 0: everything on one entry.

    The limit stands where all gamma draws underflow (alpha below about 1e-3) and NumPy gives NaN.
    """
    q = rng.dirichlet(alpha)
    if np.isnan(q).any():
        q = np.eye(len(alpha))[rng.choice(len(alpha), p=alpha / alpha.sum())]
    return q


def redrawn(rule: Callable[[Draw], list[I64]], draw: Draw, min_samples: int) -> list[I64]:
    """Draws again, the generator going on, until every client has ``min_samples``; shuffles then.

    Raises:
        DataError: no draw of 1000 does; quotes the sizes of the best one.
    """
    best: list[int] = []
    for _ in range(MAX_TRIES):
        owned = rule(draw)
        sizes = [len(p) for p in owned]
        if min(sizes) >= min_samples:
            for piece in owned:
                draw.rng.shuffle(piece)
            return owned
        best = max(best, sizes, key=lambda s: min(s, default=-1))
    reached = sorted(best)
    smallest = "" if len(reached) <= 20 else " for its smallest clients"
    raise DataError(
        f"data.alpha {draw.alpha} with {draw.num_clients} clients and {len(draw.labels)} training "
        f"samples: none of {MAX_TRIES} draws gives every client data.min_samples {min_samples}; "
        f"the best one reached {reached[:20]}{smallest}; take a larger alpha, fewer clients or a "
        "smaller minimum"
    )


def dirichlet_per_client(draw: Draw) -> list[I64]:
    """Every client takes floor(n/K) samples by class proportions of its own (Hsu et al. 2019).

    A class that is used up leaves all proportions; a client with nothing left of its classes
    takes from the remaining ones with equal probability.
    """
    pools = [np.flatnonzero(draw.labels == label) for label in np.unique(draw.labels)]
    for pool in pools:
        draw.rng.shuffle(pool)
    left = np.array([len(pool) for pool in pools])
    prior = np.ones(len(pools)) if draw.prior == "uniform" else left / left.sum()
    q = [_proportions(draw.rng, draw.alpha * prior) for _ in range(draw.num_clients)]
    share = len(draw.labels) // draw.num_clients
    clients = np.arange(draw.num_clients)
    turns = np.repeat(clients, share) if draw.order == "sequential" else np.tile(clients, share)
    owned: list[list[int]] = [[] for _ in clients]
    for client in turns.tolist():
        p = np.where(left > 0, q[client], 0.0)
        p = p if p.sum() > 0 else (left > 0).astype(np.float64)
        label = draw.rng.choice(len(pools), p=p / p.sum())
        left[label] -= 1
        owned[client].append(pools[label][left[label]])
    return [np.array(p, dtype=np.int64) for p in owned]


def shards(draw: Draw) -> list[I64]:
    """Sorted by label, cut into shards, the shards dealt out at random (McMahan et al. 2017)."""
    count = draw.num_clients * draw.shards_per_client
    if not draw.num_clients <= count <= len(draw.labels):
        raise ConfigError(
            f"shards_per_client {draw.shards_per_client}: {draw.num_clients} clients would need "
            f"{count} shards, possible are {draw.num_clients} to {len(draw.labels)}"
        )
    shuffled = draw.rng.permutation(len(draw.labels))
    by_label = shuffled[np.argsort(draw.labels[shuffled], kind="stable")]
    parts = np.array_split(by_label, count)
    dealt = draw.rng.permutation(count).reshape(draw.num_clients, draw.shards_per_client)
    return [np.concatenate([parts[s] for s in row]) for row in dealt]


EQUAL: Mapping[str, Callable[[Draw], list[I64]]] = {
    "iid": iid,
    "dirichlet_per_client": dirichlet_per_client,
    "shards": shards,
}
"""The kinds with sizes known beforehand."""
UNEQUAL: Mapping[str, Callable[[Draw], list[I64]]] = {
    "dirichlet": dirichlet,
    "dirichlet_plain": dirichlet_plain,
    "quantity": quantity,
}
"""The kinds that are drawn again until every client has ``min_samples``."""


def _by_site(dataset: Dataset, kind: str) -> Partition:
    """A client per site with training samples; of users some may have none to test on."""
    natural = kind == "natural"
    if dataset.site is None or (natural and not dataset.sites_are_users):
        raise ConfigError(
            f"data.partition {kind!r}: {dataset.name} has no {'users' if natural else 'sites'}"
            f"{_instead(dataset)}"
        )
    site = dataset.site
    present = np.unique(site[dataset.train])
    train, val, test = (
        of_sites(part, site, present, some=natural)
        for part in (dataset.train, dataset.val, dataset.test)
    )
    return Partition(
        train=train, names=tuple(dataset.site_names[s] for s in present), val=val, test=test
    )


def _instead(dataset: Dataset) -> str:
    if dataset.site is not None:
        return "; its sites are partition 'by_site'"
    return "; its client lists are partition 'files'" if dataset.clients is not None else ""


def _listed(dataset: Dataset) -> Partition:
    if dataset.clients is None:
        raise ConfigError(
            f"data.partition 'files': {dataset.name} brings no client lists; give "
            "data.partition_file, a CSV file with the columns client,index"
        )
    names = tuple(sorted(dataset.clients))
    return Partition(train=tuple(dataset.clients[name] for name in names), names=names)


def _read(dataset: Dataset, file: Path) -> Partition:
    """Reads client,index[,name]; clients in the order of their numbers, else of their names."""
    owner: dict[int, str] = {}
    members: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    for row in read_table(file, required=("client", "index")):
        index = whole_number(row.values["index"], f"{row.where}: index")
        client = row.values["client"]
        if not 0 <= index < len(dataset.train):
            raise DataError(
                f"{row.where}: index {index} is outside the training part of {dataset.name}, "
                f"0..{len(dataset.train) - 1}"
            )
        if index in owner:
            raise DataError(
                f"{row.where}: index {index} is given twice, to client {owner[index]} and to "
                f"client {client}"
            )
        owner[index] = client
        members.setdefault(client, []).append(index)
        names[client] = row.values.get("name") or client
    numbered = all(client.isdecimal() for client in members)
    clients = sorted(members, key=int) if numbered else sorted(members)
    labels = tuple(names[client] for client in clients)
    plain = labels == tuple(map(str, range(len(labels))))
    return Partition(
        train=tuple(dataset.train[members[c]] for c in clients), names=() if plain else labels
    )
