"""Partitions: which client owns which training samples, drawn at random or fixed by the data."""

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import Parameter, signature

import numpy as np

from fedsim.core import imports
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.settings import Scalar, defaults
from fedsim.core.types import I64, Array, Dataset, Partition
from fedsim.data import patients
from fedsim.data.draws import KINDS, Deal, Draw, Kind, redrawn
from fedsim.data.holdout import of_sites

NAMES: Mapping[str, str] = {
    **{name: kind.about for name, kind in KINDS.items()},
    "by_site": "a client per site (hospital, device), with its own part of the test images",
    "natural": "a client per user (writer, speaker, account), with its own part of the test "
    "samples; users with fewer than data.min_samples training samples are left out",
    "files": "the client lists of the data set, or a CSV file: a run's split.csv, or client,index",
}
LEAVE_ONE_OUT = "leave_one_site_out"
"""In the grid of a sweep and the partitions of a study: by_site, each site held out in its turn."""
FIXED = ("by_site", "natural", "files")
"""Partitions in which the data decide the number of clients."""
IN_DATA = ("alpha", "shards_per_client", "prior", "order")
"""Options of this name are keys of section ``data``, all others of the partition's own section."""


def kind_of(name: str, *, by_label: bool = True) -> Kind:
    """A random partition: one of :data:`KINDS`, or a user's function ``module:function``.

    The function gets a :class:`~fedsim.data.draws.Draw` and its options, typed keyword-only
    parameters, and returns for each client the positions of its samples in ``draw.labels``.
    """
    if ":" not in name:
        return KINDS[name]
    where = f"partition {name!r}"
    function = imports.resolve(name, where)

    def deal(draw: Draw, **options: Scalar) -> list[I64]:
        owned = imports.call(function, where, draw, **options)
        with imports.users_code(where, ConfigError):
            positions = [np.array(indices, dtype=np.int64) for indices in owned]
            outside = any((p < 0).any() or (p >= len(draw.labels)).any() for p in positions)
        if len(positions) != draw.num_clients or outside or any(p.ndim != 1 for p in positions):
            raise ConfigError(
                f"{where}: the function must return {draw.num_clients} arrays of positions from 0 "
                f"to {len(draw.labels) - 1}, one for each client"
            )
        return positions

    return Kind(deal, "your own", by_label=by_label, redrawn=True)


def options(name: str) -> Mapping[str, Parameter]:
    """The options of a partition: the typed keyword-only parameters of its function."""
    if name in FIXED:
        return {}
    where = f"partition {name!r}"
    function = KINDS[name].deal if name in KINDS else imports.resolve(name, where)
    declared = imports.options(function, where)
    for option in declared.keys() & signature(make).parameters.keys():
        raise ConfigError(f"{where}: {option!r} cannot be an option, every partition has it")
    return declared


def make(
    dataset: Dataset,
    kind: str,
    *,
    num_clients: int | None = None,
    min_samples: int = 2,
    seed: int = 0,
    listed: Partition | None = None,
    group: str = "none",
    min_patients: int = 1,
    **given: Scalar,
) -> Partition:
    """Assigns the training samples to clients.

    ``kind`` is a key of :data:`NAMES` or ``module:function``; ``num_clients`` None where lists,
    sites or users fix it; ``listed``, of ``files``, as read from a file, else the data set's own
    lists. ``group`` "patient" keeps patients together, of whom each client must have
    ``min_patients``. Options ``given`` that the kind does not have are of no effect.
    """
    if kind in ("by_site", "natural"):
        partition = _by_site(dataset, kind)
    elif kind == "files":
        partition = listed or _listed(dataset)
    else:
        if num_clients is None:
            raise ConfigError(f"data.num_clients is missing; partition {kind!r} does not fix it")
        together = min_patients if group == "patient" else 0
        partition = _drawn(dataset, kind, num_clients, min_samples, seed, together, given)
    if num_clients not in (None, partition.num_clients):
        raise ConfigError(
            f"data.num_clients {num_clients}: partition {kind!r} of {dataset.name} has "
            f"{partition.num_clients} clients, no other number is possible"
        )
    _check(dataset, partition, min_samples)
    if group == "patient":
        patients.check(dataset, partition)
    return partition


def _drawn(
    dataset: Dataset,
    kind: str,
    num_clients: int,
    min_samples: int,
    seed: int,
    min_patients: int,
    values: Mapping[str, Scalar],
) -> Partition:
    """A random partition; of whole patients, of whom every client has ``min_patients``, above 0."""
    strata = dataset.strata
    drawn = kind_of(kind, by_label=strata is not None)
    if drawn.by_label and strata is None:
        other = [name for name, k in KINDS.items() if not k.by_label]
        raise ConfigError(
            f"data.partition {kind!r} depends on the samples' classes; {dataset.name} has none, or "
            f"one for every token: take natural, {' or '.join(other)}"
        )
    needed, n = num_clients * min_samples, len(dataset.train)
    if needed > n:
        raise DataError(
            f"{num_clients} clients with data.min_samples {min_samples} need {needed} training "
            f"samples, {dataset.name} has {n}"
        )
    declared = options(kind)
    settings = defaults(declared) | {k: v for k, v in values.items() if k in declared}
    labels = (np.zeros(len(dataset.y), np.int64) if strata is None else strata)[dataset.train]
    draw = Draw(labels=labels, num_clients=num_clients, rng=np.random.RandomState(seed))
    rule: Deal = partial(drawn.deal, **settings)
    patient = None
    if min_patients:
        patient = _patients(dataset, num_clients, min_patients)
        rule = patients.whole(rule, patient, by_label=drawn.by_label)
    if drawn.redrawn or patient is not None:
        alpha = settings.get("alpha")
        rule = partial(
            redrawn,
            rule,
            min_samples=min_samples,
            patient=patient,
            alpha=alpha,
            min_patients=min_patients,
        )
    return Partition(train=tuple(dataset.train[p] for p in rule(draw)))


def _patients(dataset: Dataset, num_clients: int, min_patients: int) -> I64:
    """The patients of the training samples; refuses fewer than the clients need."""
    patient = patients.of(dataset)
    if patient is None:
        raise ConfigError(f"data.group 'patient': {dataset.name} has no patients")
    patient = patient[dataset.train]
    present, needed = len(np.unique(patient)), num_clients * min_patients
    if present < needed:
        raise DataError(
            f"{num_clients} clients with at least {min_patients} patients each (data.group "
            f"patient, own held-out parts) need {needed}, the training part of {dataset.name} has "
            f"{present}; take fewer clients or --group none"
        )
    return patient


def default_kind(dataset: Dataset) -> str:
    """``files`` with client lists, ``natural`` with users, ``by_site`` with sites, else dirichlet,
    or quantity where samples have no class."""
    of_sites = "natural" if dataset.sites_are_users else "by_site"
    drawn = "quantity" if dataset.strata is None else "dirichlet"
    by_default = drawn if dataset.site is None else of_sites
    return by_default if dataset.clients is None else "files"


def table(
    dataset: Dataset, partition: Partition, *, malicious: Sequence[int] = ()
) -> dict[str, Array]:
    """The columns of partition.csv, (n,) each: a row per client and label with any samples.

    ``test_samples`` are the client's own; where samples have no class, all labels are -1.
    """
    strata, first = dataset.strata, 0
    if strata is None:
        strata, first = np.zeros(len(dataset.y), np.int64), -1
    width = max(dataset.num_classes, 1 + int(strata.max(initial=0)))
    train, *tests = (
        np.stack([np.bincount(strata[samples], minlength=width) for samples in owned])
        for owned in (partition.train, partition.test)
        if owned
    )
    test = tests[0] if tests else np.zeros_like(train)
    client, label = np.nonzero(train + test)
    columns: dict[str, Array] = {
        "client_id": client,
        "label": label + first,
        "train_samples": train[client, label],
        "test_samples": test[client, label],
    }
    if partition.names:
        columns["name"] = np.array(partition.names, dtype=object)[client]
    if malicious:
        columns["malicious"] = np.isin(client, malicious).astype(np.int64)
    return columns


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
        other = "" if dataset.clients is None else "; its client lists are partition 'files'"
        other = other if dataset.site is None else "; its sites are partition 'by_site'"
        raise ConfigError(
            f"data.partition {kind!r}: {dataset.name} has no "
            f"{'users' if natural else 'sites'}{other}"
        )
    site = dataset.site
    present = np.unique(site[dataset.train])
    tested = dataset.own_test if len(dataset.own_test) else dataset.test
    train, val, test = (
        of_sites(part, site, present, some=natural) for part in (dataset.train, dataset.val, tested)
    )
    return Partition(
        train=train, names=tuple(dataset.site_names[s] for s in present), val=val, test=test
    )


def _listed(dataset: Dataset) -> Partition:
    if dataset.clients is None:
        raise ConfigError(
            f"data.partition 'files': {dataset.name} brings no client lists; give "
            "data.partition_file, a CSV file with the columns client,index"
        )
    names = tuple(sorted(dataset.clients))
    return Partition(train=tuple(dataset.clients[name] for name in names), names=names)
