"""Patients: keeps the samples of a patient together, in partitions and in held-out parts.

A patient is known by site and name: patient 1 of one hospital is not patient 1 of another. One with
samples of several classes counts with the most frequent of them (ties: the lowest).
"""

import heapq
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import I64, Dataset, Partition
from fedsim.data.draws import Draw
from fedsim.data.splits import rows


def numbered(patient: I64, site: I64 | None) -> I64:
    """(N,) the number of each sample's patient, known by (site, patient), in that one's order."""
    if site is None:
        return patient
    pair = patient * (int(site.max(initial=0)) + 1) + site
    return np.unique(pair, return_inverse=True)[1].astype(np.int64)


def of(dataset: Dataset) -> I64 | None:
    """(N,) the number of each sample's patient, None where patients are not known."""
    return None if dataset.patient is None else numbered(dataset.patient, dataset.site)


def grouping(dataset: Dataset, kind: str, wanted: str | None) -> str:
    """``data.group``: what is ``wanted``, else patient where they are known, but none for lists."""
    if wanted == "patient" and dataset.patient is None:
        raise ConfigError(
            f"data.group 'patient': {dataset.name} does not say which patients its samples are "
            "from; allowed: none"
        )
    by_default = dataset.patient is not None and kind != "files"
    return wanted or ("patient" if by_default else "none")


def whole(
    rule: Callable[[Draw], list[I64]], patient: I64, *, by_label: bool
) -> Callable[[Draw], list[I64]]:
    """The rule of a partition, with whole ``patient`` (n,) in place of samples.

    The rule says how many samples (``by_label``: of each class) every client is to have. Class by
    class, from the largest patient to the smallest, each goes to the client that lacks most; what a
    client got too much of one class it gets less of the next.
    """
    member = np.unique(patient, return_inverse=True)[1].reshape(-1)
    size = np.bincount(member)

    def dealt(draw: Draw) -> list[I64]:
        label = most_frequent(draw.labels, member) if by_label else np.zeros_like(size)
        owned = rule(replace(draw, labels=label[member]))
        counts = [np.bincount(label[member[own]], minlength=label.max() + 1) for own in owned]
        owner = _assigned(np.stack(counts), label, size, draw.rng)[member]
        order = np.argsort(owner, kind="stable")
        return np.split(order, np.cumsum(np.bincount(owner, minlength=draw.num_clients))[:-1])

    return dealt


def most_frequent(labels: I64, member: I64) -> I64:
    """(P,) the most frequent of the labels (n,) of each ``member`` (n,), the lowest of several."""
    classes = int(labels.max()) + 1
    pair, count = np.unique(member * classes + labels, return_counts=True)
    person, label = np.divmod(pair, classes)
    order = np.lexsort((label, -count, person))
    _, first = np.unique(person[order], return_index=True)
    return label[order[first]]


def _assigned(target: I64, label: I64, size: I64, rng: np.random.RandomState) -> I64:
    """(P,) the client of each patient, by Graham's LPT rule (1969), as jobs are given to machines.

    ``target`` (K, C) are samples of each class that the clients are to have, ``label`` (P,) the
    patients' classes, ``size`` (P,) their samples.
    """
    owner = np.empty(len(label), dtype=np.int64)
    lacking = np.zeros(len(target), dtype=np.int64)  # what a client got too much is carried over
    for c in np.unique(label).tolist():
        # the largest first; equals stay in random order, since the sort is stable
        patients = rng.permutation(np.flatnonzero(label == c))
        patients = patients[np.argsort(-size[patients], kind="stable")]
        lacking += target[:, c]
        # clients that are to have the class; all, where the rule gives none of it to anybody
        clients = np.flatnonzero(target[:, c] if target[:, c].any() else np.ones(len(target)))
        # a heap whose top is the client that lacks most, ties by a random rank
        ranks = rng.permutation(len(clients)).tolist()
        heap = list(zip((-lacking[clients]).tolist(), ranks, clients.tolist(), strict=True))
        heapq.heapify(heap)
        for p in patients.tolist():
            surplus, rank, k = heap[0]
            owner[p] = k
            heapq.heapreplace(heap, (surplus + int(size[p]), rank, k))
        for surplus, _, k in heap:
            lacking[k] = -surplus
    return owner


def held_out(labels: I64, patient: I64, count: int, most: int, draw: np.random.Generator) -> I64:
    """Positions of whole patients with about ``count`` samples, of each class nearly its share.

    Class by class the patients are visited in random order, and each is taken whole if that brings
    the number of samples nearer to the class's share; what is missing or too much is carried over.
    At least one patient is taken, the smallest one at need, ``most`` at most.
    """
    member = np.unique(patient, return_inverse=True)[1].reshape(-1)
    size, label = np.bincount(member), most_frequent(labels, member)
    order = draw.permutation(len(size))
    taken: list[int] = []
    missing = 0.0
    for c in draw.permutation(np.unique(label)).tolist():
        patients = order[label[order] == c]
        missing += count * size[patients].sum() / len(labels)
        for p in patients.tolist():
            # |missing - size| < |missing|: with the patient it is nearer
            if 2 * missing > size[p] and len(taken) < most:
                taken.append(p)
                missing -= size[p]
    chosen = taken or [min(order.tolist(), key=lambda p: size[p])]
    return np.flatnonzero(np.isin(member, chosen))


def grouping_line(dataset: Dataset, partition: Partition, group: str) -> str | None:
    """Whether patients are kept together, in a line; None where patients are not known."""
    patient = of(dataset)
    if patient is None or dataset.patient is None:
        return None
    of_split = rows(dataset, partition)
    of_row, owned = patient[of_split.sample], of_split.client >= 0
    total = len(np.unique(of_row[owned]))
    split = len(_in_several(of_row[owned], of_split.client[owned]))
    text = f"{total} patients, each with one client"
    if split:
        text = f"patients are split over clients (data.group={group}): {split} of {total}"
    if both := len(_in_several(of_row, of_split.part)):
        text += f"; {both} have samples in several parts"
    shared = [] if dataset.site is None else _in_several(dataset.patient, dataset.site).tolist()
    if shared:
        names = ", ".join(_name(dataset, code) for code in shared[:3])
        more = ", ..." if len(shared) > 3 else ""
        occur = "patient name occurs" if len(shared) == 1 else "patient names occur"
        text += f"; {len(shared)} {occur} at several sites ({names}{more}): a different patient at "
        text += "each"
    return text


def _name(dataset: Dataset, code: int) -> str:
    return dataset.patient_names[code] if dataset.patient_names else str(code)


def check(dataset: Dataset, partition: Partition) -> None:
    """Refuses client lists that give a patient to several clients."""
    patient = of(dataset)
    if patient is None or dataset.patient is None:
        return
    of_split = rows(dataset, partition)
    owned = of_split.client >= 0
    twice = _in_several(patient[of_split.sample[owned]], of_split.client[owned])
    if len(twice):
        positions = np.flatnonzero(owned & (patient[of_split.sample] == twice[0]))
        name = _name(dataset, int(dataset.patient[of_split.sample[positions[0]]]))
        first, second = np.unique(of_split.client[positions])[:2].tolist()
        raise DataError(
            f"data.group 'patient': the client lists of {dataset.name} give patient {name} to "
            f"clients {first} and {second}; with these lists only 'none' is allowed"
        )


def _in_several(number: I64, value: I64) -> I64:
    """The numbers that occur with more than one value; both are (n,) and >= 0."""
    most = int(value.max(initial=0)) + 1
    numbers, times = np.unique(np.unique(number * most + value) // most, return_counts=True)
    return numbers[times > 1]
