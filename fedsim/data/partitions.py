"""Partitions: which client owns which training samples, drawn at random or fixed by the data."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import I64, Array, Dataset, Partition
from fedsim.data import patients
from fedsim.data.draws import EQUAL, UNEQUAL, Draw, redrawn
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
    "files": "the client lists of the data set, or a CSV file: a run's split.csv, or client,index",
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
    listed: Partition | None = None,
    group: str = "none",
    min_patients: int = 1,
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
        listed: of ``files``, as it was read from a file; None takes the data set's own lists.
        group: ``patient`` keeps patients together, ``none`` does not.
        min_patients: patients that every client must have where they are kept together.
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
        partition = listed or _listed(dataset)
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
        draw = Draw(
            labels=dataset.y[dataset.train],
            num_clients=num_clients,
            alpha=alpha,
            rng=np.random.RandomState(seed),
            shards_per_client=shards_per_client,
            prior=prior,
            order=order,
        )
        rule, patient = (UNEQUAL | EQUAL)[kind], None
        if group == "patient":
            patient = _patients(dataset, num_clients, min_patients)
            rule = patients.whole(rule, patient, by_label=kind in BY_LABEL)
        if kind in UNEQUAL or patient is not None:
            owned = redrawn(rule, draw, min_samples, patient=patient, min_patients=min_patients)
        else:
            owned = rule(draw)
        partition = Partition(train=tuple(dataset.train[p] for p in owned))
    elif num_clients not in (None, partition.num_clients):
        raise ConfigError(
            f"data.num_clients {num_clients}: partition {kind!r} of {dataset.name} has "
            f"{partition.num_clients} clients, no other number is possible"
        )
    _check(dataset, partition, min_samples)
    if group == "patient":
        patients.check(dataset, partition)
    return partition


def _patients(dataset: Dataset, num_clients: int, min_patients: int) -> I64:
    """The patients of the training samples; refuses fewer than the clients need."""
    patient = patients.of(dataset)
    if patient is None:
        raise ConfigError(f"data.group 'patient': {dataset.name} has no patients")
    patient = patient[dataset.train]
    found, needed = len(np.unique(patient)), num_clients * min_patients
    if found < needed:
        each = "one" if min_patients == 1 else f"{min_patients} (for its own held-out parts)"
        raise DataError(
            f"{num_clients} clients with at least {each} of the patients each (data.group patient) "
            f"need {needed}, the training part of {dataset.name} has {found}; take fewer clients "
            "or --group none"
        )
    return patient


def default_kind(dataset: Dataset) -> str:
    """``files`` with client lists, ``natural`` with users, ``by_site`` with sites, or dirichlet."""
    if dataset.clients is not None:
        return "files"
    if dataset.sites_are_users:
        return "natural"
    return "by_site" if dataset.site is not None else "dirichlet"


def table(
    dataset: Dataset, partition: Partition, *, by_label: bool | None = None
) -> dict[str, Array]:
    """The columns of partition.csv, (n,) each: a row per client and label with any samples.

    They are client_id, label, train_samples, test_samples (the client's own; 0 where the test set
    is common), and name where the clients have names. Without ``by_label``, by default where every
    token has a label, all samples have the label -1.
    """
    by_label = not dataset.per_token if by_label is None else by_label
    labels, first = (dataset.y, 0) if by_label else (np.zeros(len(dataset.y), np.int64), -1)
    width = dataset.num_classes if by_label else 1
    train, test = (
        _by_client(labels, owned, partition.num_clients, width)
        for owned in (partition.train, partition.test)
    )
    client, label = np.nonzero(train + test)
    columns: dict[str, Array] = {
        "client_id": client,
        "label": label + first,
        "train_samples": train[client, label],
        "test_samples": test[client, label],
    }
    if partition.names:
        columns["name"] = np.array(partition.names, dtype=object)[client]
    return columns


def _by_client(labels: I64, owned: Sequence[I64], num_clients: int, width: int) -> I64:
    """(K, width) how many samples of each label each client owns; 0 where ``owned`` is empty."""
    if not owned:
        return np.zeros((num_clients, width), dtype=np.int64)
    client = np.repeat(np.arange(num_clients), [len(own) for own in owned])
    cells = client * width + labels[np.concatenate(owned)]
    return np.bincount(cells, minlength=num_clients * width).reshape(num_clients, width)


def _check(dataset: Dataset, partition: Partition, min_samples: int) -> None:
    everything = np.concatenate(partition.train)
    if not np.isin(everything, dataset.train).all():
        raise DataError(f"{dataset.name}: the partition names a sample outside the training part")
    if (np.bincount(everything) > 1).any():
        raise DataError(f"{dataset.name}: the partition gives a sample to two clients")
    for client, indices in enumerate(partition.train):
        if len(indices) < min_samples:
            name = f" ({partition.names[client]})" if partition.names else ""
            raise DataError(
                f"{dataset.name}: client {client}{name} of the partition has {len(indices)} "
                f"training samples, data.min_samples is {min_samples}"
            )


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
