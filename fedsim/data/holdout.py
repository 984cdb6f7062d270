"""Holds out validation and test parts: common ones, per user, and per client."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.core import rng
from fedsim.core.errors import DataError, nearest
from fedsim.core.settings import listed
from fedsim.core.text import few
from fedsim.core.types import F64, I64, Dataset, LabelledSamples, Partition
from fedsim.data import patients

MOST_NAMED = 20  # a message names at most so many clients


def of_sites(part: I64, site: I64, sites: I64, *, some: bool = False) -> tuple[I64, ...]:
    """The samples of each site in a part; empty unless every site has some there.

    ``part`` are indices of samples, ``site`` is the (N,) site of every sample, and ``sites`` are
    ascending. With ``some``, one site with samples there is enough.
    """
    order = part[np.argsort(site[part], kind="stable")]
    starts, stops = (np.searchsorted(site[order], sites, side) for side in ("left", "right"))
    of_site = tuple(order[i:j] for i, j in zip(starts, stops, strict=True))
    return of_site if (any if some else all)(map(len, of_site)) else ()


def hold_out(
    dataset: Dataset,
    partition: Partition,
    *,
    val_fraction: float = 0.0,
    test_fraction: float = 0.0,
    min_samples: int = 1,
    seed: int = 0,
    group: str = "none",
) -> Partition:
    """Moves some of each client's training samples to its own validation and test parts.

    A fraction above 0 is rounded to the nearest number of samples, but to 1 at least. The test
    samples depend neither on the order of a client's samples nor on the validation fraction. With
    ``group`` "patient" whole patients are held out, whose samples come near to that number.
    """
    kept, label = partition, strata(dataset)
    patient = patients.of(dataset) if group == "patient" else None
    drawn = [(p, f) for p, f in (("test", test_fraction), ("val", val_fraction)) if f > 0]
    for spare, (part, fraction) in zip((len(drawn), 1), drawn, strict=False):
        train, held = [], []
        for client, indices in enumerate(kept.train):
            count, ordered = num_held_out(len(partition.train[client]), fraction), np.sort(indices)
            draw = rng.generator(seed, f"own.{part}", client)
            if patient is None:
                chosen = stratified(label[ordered], count, draw)
            else:
                most = len(np.unique(patient[indices])) - spare  # of whom the others stay
                if most < 1:
                    raise DataError(
                        f"{dataset.name}: client {client} has too few patients for a {part} part "
                        f"of its own (data.client_{part}_fraction, data.group patient); take fewer "
                        "clients, no such part, or --group none"
                    )
                chosen = patients.held_out(label[ordered], patient[ordered], count, most, draw)
            out = np.isin(indices, ordered[chosen])
            train.append(indices[~out])
            held.append(indices[out])
        parts: dict[str, Any] = {"train": tuple(train), part: tuple(held)}
        kept = replace(kept, **parts)
    for client, indices in enumerate(kept.train):
        if len(indices) < min_samples:
            raise DataError(
                f"{dataset.name}: client {client} has {len(partition.train[client])} samples; "
                f"data.client_val_fraction {val_fraction} and data.client_test_fraction "
                f"{test_fraction} leave it {len(indices)}, data.min_samples is {min_samples}"
            )
    return kept


def hold_out_clients(
    dataset: Dataset, partition: Partition, wanted: float | str, seed: int
) -> tuple[Dataset, Partition]:
    """Takes clients that never train; what they own of the common parts leaves these.

    ``wanted`` is how many are drawn; below 1 their share, rounded, but to 1 client at least; or a
    line of their names, see :func:`~fedsim.core.settings.clients_or_number`. What is fitted to
    training samples is then fitted to those of the others.
    """
    if not wanted:
        return dataset, partition
    k, named = partition.num_clients, isinstance(wanted, str)
    given = f"data.heldout_clients {wanted if isinstance(wanted, str) else format(wanted, 'g')}"
    if isinstance(wanted, str):
        names = listed(wanted.removeprefix("[").removesuffix("]"))
        chosen = tuple(sorted({_number_of(name, partition, given) for name in names}))
    else:
        count = num_held_out(k, wanted) if wanted < 1 else int(wanted)
        drawn = rng.generator(seed, "heldout.clients")
        chosen = tuple(sorted(drawn.choice(k, min(count, k), replace=False).tolist()))
    if len(chosen) >= k:
        raise DataError(f"{given} given; of {k} clients at least one has to train")
    parts = (partition.val, partition.test)
    owned = [part[c] for part in parts if part for c in chosen]
    out = np.concatenate([np.empty(0, np.int64), *owned])
    val, test = (part[~np.isin(part, out)] for part in (dataset.val, dataset.test))
    if not len(test):
        whose = "these clients" if named else "the clients drawn"
        raise DataError(f"{given} given; {whose} own all test samples of {dataset.name}")
    train = dataset.train
    if named:
        out = np.concatenate([out, *(partition.train[c] for c in chosen)])
        train = train[~np.isin(train, out)]
    dataset = dataset.with_parts(train=train, val=val, test=test, own_test=dataset.own_test)
    return dataset, replace(partition, held_out=chosen)


def _number_of(name: str, partition: Partition, given: str) -> int:
    """The number of the client of this name, or with this number where clients have no names."""
    names = partition.names or tuple(map(str, range(partition.num_clients)))
    found = [client for client, other in enumerate(names) if other == name]
    if len(found) == 1:
        return found[0]
    if found:
        several = few(list(map(str, found)), MOST_NAMED)
        raise DataError(f"{given}: the clients {several} have the name {name!r}")
    known = few(names, MOST_NAMED) if partition.names else f"0 to {len(names) - 1}, without names"
    raise DataError(f"{given}: no client is {name!r}{nearest(name, names)}; they are {known}")


def held_out_line(partition: Partition) -> str:
    """Who is held out from training, in a line; empty where nobody is."""
    names = partition.names
    clients = [f"{names[c]} (client {c})" if names else str(c) for c in partition.held_out]
    noun = "" if names else f"client{'s' * (len(clients) > 1)} "
    return f"held out from training: {noun}{', '.join(clients)}" if clients else ""


def num_held_out(samples: int, fraction: float) -> int:
    """How many samples a fraction holds out: at least 1 where it is above 0."""
    return max(1, round(fraction * samples)) if fraction > 0 else 0


def fewest_samples(min_samples: int, val_fraction: float, test_fraction: float) -> int:
    """The fewest samples of which the fractions, together below 1, leave ``min_samples``."""
    return next(
        n
        for n in itertools.count(min_samples)
        if n - num_held_out(n, val_fraction) - num_held_out(n, test_fraction) >= min_samples
    )


def strata(samples: LabelledSamples) -> I64:
    """(N,) the strata of random parts: the classes; one stratum where samples have none."""
    classes = samples.strata
    return np.zeros(len(samples.y), dtype=np.int64) if classes is None else classes


def stratified(labels: I64, count: int, draw: np.random.Generator) -> I64:
    """Positions of ``count`` random samples, or all, of each class nearly its share.

    Every n/count-th of the shuffled samples in the order of their classes, from a random first one
    on: a class of c samples gives c count/n of them, rounded down or up. ``labels`` are (n,).
    """
    shuffled = draw.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    n, taken = max(1, len(labels)), max(1, min(count, len(labels)))
    # systematic sampling: positions (i n + u) / taken, with one random u for all i
    return by_class[(np.arange(len(labels))[:count] * n + draw.integers(n)) // taken]


def held_out_by_user(
    label: I64, user: I64, fraction: float, seed: int, stream: str, source: str
) -> I64:
    """Positions of random samples, ``fraction`` of each user's rounded to the nearest number.

    Of each ``label`` (n,) nearly its share is taken. Samples of a ``user`` (n,) are drawn whatever
    other users have. Others as in :func:`held_out`.
    """
    parts = []
    order = np.argsort(user, kind="stable")
    numbers, starts = np.unique(user[order], return_index=True)
    for number, positions in zip(numbers.tolist(), np.split(order, starts)[1:], strict=True):
        draw = rng.generator(seed, stream, number)
        count = round(fraction * len(positions))
        parts.append(positions[stratified(label[positions], count, draw)])
    out = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    if not 0 < len(out) < len(label):
        raise DataError(
            f"{source}: {len(label)} samples of {len(parts)} users are too few to hold out a "
            f"fraction {fraction} of each user's"
        )
    return out


def without_small_users(dataset: Dataset, min_samples: int) -> Dataset:
    """The data set without users that have fewer training samples, like LEAF's option -k.

    A validation or test part of users of whom none has training samples (LEAF's split by users) is
    common to all clients and stays whole.
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
    train = dataset.train[enough[site[dataset.train]]]
    return dataset.with_parts(train=train, val=val, test=test, own_test=dataset.own_test)


def num_left_out(dataset: Dataset) -> int:
    """The number of users whose samples are in no part."""
    if dataset.site is None or not dataset.sites_are_users:
        return 0
    parts = np.concatenate([dataset.train, dataset.val, dataset.test])
    return len(np.unique(dataset.site)) - len(np.unique(dataset.site[parts]))


def held_out(
    stratum: I64, group: I64 | None, fraction: float, seed: int, stream: str, source: str
) -> I64:
    """Positions of a random held-out part of about ``fraction`` of every stratum, ascending.

    Groups are visited in random order, and each is taken whole if that brings the counts nearer
    to ``fraction`` of each stratum (sum of squared relative distances). Without groups
    every stratum gives its share, rounded to the nearest number. ``stratum`` (n,) numbers the
    classes, or classes at sites, ``group`` (n,) the patients; ``source`` is for messages.
    """
    members = np.arange(len(stratum)) if group is None else np.unique(group, return_inverse=True)[1]
    groups = int(members.max()) + 1
    strata = np.unique(stratum, return_inverse=True)[1]
    totals = np.bincount(strata)
    order = rng.generator(seed, stream).permutation(groups)
    if group is None:
        taken = _taken_one_by_one(strata, totals, fraction, order)
    else:
        counts = np.zeros((groups, len(totals)))
        np.add.at(counts, (members, strata), 1)
        taken = _taken_whole(counts / totals, fraction, order)
    out = np.flatnonzero(taken[members])
    if not 0 < len(out) < len(stratum):
        of = "" if group is None else f" of {groups} patients"
        raise DataError(
            f"{source}: {len(stratum)} samples{of} are too few to hold out a fraction {fraction}"
        )
    return out


def _taken_whole(relative: F64, fraction: float, order: I64) -> NDArray[np.bool_]:
    """Which groups are taken; ``relative`` (groups, strata) are their shares of each stratum."""
    missing = np.full(relative.shape[1], fraction)
    taken = np.zeros(len(relative), dtype=bool)
    for g in order.tolist():
        # |missing|^2 - |missing - r|^2 = r (2 missing - r): the distance falls with the group
        if (relative[g] * (2 * missing - relative[g])).sum() > 0:
            missing -= relative[g]
            taken[g] = True
    return taken


def _taken_one_by_one(strata: I64, totals: I64, fraction: float, order: I64) -> NDArray[np.bool_]:
    """The same where each sample is its own group, of one stratum: without arrays, much faster."""
    share, missing = (1 / totals).tolist(), [fraction] * len(totals)
    taken = np.zeros(len(strata), dtype=bool)
    stratum = strata.tolist()
    for g in order.tolist():
        s = stratum[g]
        if 2 * missing[s] - share[s] > 0:
            missing[s] -= share[s]
            taken[g] = True
    return taken
