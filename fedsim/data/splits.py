"""Split files: which sample is in which part, and whose it is.

A run's split.csv has a row per sample, ``sample,part,client_id,label`` and what else is known. The
older form ``client,index[,name]`` lists the clients' samples alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import Table, read_table, records
from fedsim.core.types import I64, Array, Dataset, Partition

PARTS = ("train", "val", "test", "own_val", "own_test")
TRAIN, VAL, TEST, OWN_VAL, OWN_TEST = range(len(PARTS))
_NEEDED = ("sample", "part", "client_id")


class Rows(NamedTuple):
    """Three arrays (n,): samples, their parts (indices of ``PARTS``), their clients (-1: none)."""

    sample: I64
    part: I64
    client: I64


def rows(dataset: Dataset, partition: Partition) -> Rows:
    """A row for every sample that is in a part.

    First the clients, one after the other, with their training samples in the partition's order,
    then their own validation and test samples; then training samples of no client, and the common
    parts, whose samples have the client that owns them (their site or user).
    """
    owner = np.full(len(dataset.y), -1, dtype=np.int64)
    common = np.concatenate([dataset.val, dataset.test])
    is_common = np.zeros(len(owner), dtype=bool)
    is_common[common] = True
    pieces: list[tuple[I64, int, int]] = []
    parts = ((partition.train, TRAIN), (partition.val, OWN_VAL), (partition.test, OWN_TEST))
    for client in range(partition.num_clients):
        for of_clients, part in parts:
            if of_clients:
                samples = of_clients[client]
                owner[samples] = client
                pieces.append((samples[~is_common[samples]], part, client))
    pieces.append((dataset.train[owner[dataset.train] < 0], TRAIN, -1))
    pieces += [(dataset.val, VAL, -1), (dataset.test, TEST, -1)]
    sample_of, part_of, client_of = zip(*pieces, strict=True)
    sizes, sample = list(map(len, sample_of)), np.concatenate(sample_of)
    clients = np.repeat(client_of, sizes)
    clients[len(sample) - len(common) :] = owner[common]
    return Rows(sample, np.repeat(part_of, sizes), clients)


def columns(
    dataset: Dataset, partition: Partition, malicious: Sequence[int] = (), root: Sequence[int] = ()
) -> dict[str, Array]:
    """The columns of split.csv, (n,) each, in the order of :func:`rows`.

    At the end ``name`` is there where the clients' names do not follow from their sites, and
    ``malicious`` where any client is, and ``root`` where the server trains on samples of its own.
    """
    sample, part, client = rows(dataset, partition)
    strata = dataset.strata
    label = np.full(len(sample), -1) if strata is None else strata[sample]
    nobody = client < 0
    table: dict[str, Array] = {
        "sample": sample,
        "part": np.array(PARTS, dtype=object)[part],
        "client_id": _texts(client, nobody),
        "label": label,
    }
    if dataset.files:
        table["file"] = np.array(dataset.files, dtype=object)[sample]
    if dataset.patient is not None:
        patient = dataset.patient[sample]
        names = np.array(dataset.patient_names, dtype=object)
        table["patient"] = names[patient] if len(names) else patient
    if dataset.site is not None:
        table["site"] = np.array(dataset.site_names, dtype=object)[dataset.site[sample]]
    if partition.names != _sites_of(dataset, partition):
        names = np.array(partition.names or [""] * partition.num_clients, dtype=object)
        table["name"] = np.where(nobody, "", names[client])
    if malicious:
        table["malicious"] = _texts(np.isin(client, malicious).astype(np.int64), nobody)
    if root:
        table["root"] = np.isin(sample, root).astype(np.int64)
    return table


def _texts(numbers: I64, nobody: Array) -> Array:
    return np.where(nobody, "", numbers.astype(str).astype(object))


def _sites_of(dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """The site of each client where every client has one of its own, else nothing."""
    if dataset.site is None:
        return ()
    sites = [np.unique(dataset.site[samples]) for samples in partition.train]
    if any(len(samples) != 1 for samples in sites) or len(np.unique(sites)) < len(sites):
        return ()
    return tuple(dataset.site_names[samples[0]] for samples in sites)


def read(dataset: Dataset, file: Path) -> tuple[Dataset, Partition]:
    """The data set with the parts of a split file, its samples fitted to them, and the clients."""
    _, header = next(records(file))
    if "sample" in [name.lower() for name in header]:
        return _read_split(dataset, file)
    return dataset, _read_clients(dataset, file)


def _read_split(dataset: Dataset, file: Path) -> tuple[Dataset, Partition]:
    table = read_table(file, _NEEDED)
    sample = table.whole("sample")
    outside = f"sample {{sample}} is not in {dataset.name}, which has 0..{len(dataset.y) - 1}"
    _refuse(table, (sample < 0) | (sample >= len(dataset.y)), outside)
    _refuse(table, _repeated(sample), "sample {sample} is given twice")
    number = {name: i for i, name in enumerate(PARTS)}
    part = np.array([number.get(name, -1) for name in table.columns["part"]], dtype=np.int64)
    _refuse(table, part < 0, f"part {{part!r}} is unknown; known: {', '.join(PARTS)}")
    client = table.whole("client_id", empty=-1)
    nobody = np.array([text == "" for text in table.columns["client_id"]])
    alone = (client < 0) & (~nobody | np.isin(part, (OWN_VAL, OWN_TEST)))
    _refuse(table, alone, "a sample of {part} needs a client")
    expected = {"file": np.array(dataset.files, dtype=object)}
    if dataset.strata is not None:
        expected["label"] = dataset.strata.astype(str).astype(object)
    for name, values in expected.items():
        cells = np.array(table.columns.get(name, ()), dtype=object)
        if len(cells) and len(values):
            other = f"{name} {{{name}!r}} of sample {{sample}} is another one in {dataset.name}"
            odd = (cells != "") & (cells != [value.strip() for value in values[sample]])
            _refuse(table, odd, f"{other}: the split belongs to other data")
    return _assembled(dataset, table, Rows(sample, part, client))


def _assembled(dataset: Dataset, table: Table, of_file: Rows) -> tuple[Dataset, Partition]:
    sample, part, client = of_file
    trained = np.unique(client[(part == TRAIN) & (client >= 0)])
    missing = np.setdiff1d(np.arange(len(trained) + 1), trained)[0]
    if missing < len(trained) or client.max() >= len(trained) or not len(trained):
        raise DataError(
            f"{table.file}: client {missing} has no training samples; clients are 0, 1, ..."
        )
    if not (part == TEST).any():
        raise DataError(f"{table.file}: no sample is in the part test")

    def of_clients(*parts: int) -> tuple[I64, ...]:
        mine = np.flatnonzero(np.isin(part, parts) & (client >= 0))
        mine = mine[np.argsort(client[mine], kind="stable")]
        cuts = np.searchsorted(client[mine], np.arange(1, len(trained)))
        return tuple(np.split(sample[mine], cuts)) if len(mine) else ()

    tested = sample[part == TEST]
    groups = {name: members[np.isin(members, tested)] for name, members in dataset.groups.items()}
    own_test = dataset.own_test[np.isin(dataset.own_test, sample[part == OWN_TEST])]
    training = np.setdiff1d(sample[np.isin(part, (TRAIN, OWN_VAL, OWN_TEST))], own_test)
    changed = replace(
        dataset.with_parts(train=training, val=sample[part == VAL], test=tested, own_test=own_test),
        groups={name: members for name, members in groups.items() if len(members)},
    )
    partition = Partition(
        train=of_clients(TRAIN), val=of_clients(VAL, OWN_VAL), test=of_clients(TEST, OWN_TEST)
    )
    names: tuple[str, ...] = _sites_of(changed, partition)
    if "name" in table.columns:
        first = np.unique(client, return_index=True)[1][-len(trained) :]
        names = tuple(table.columns["name"][row] for row in first)
        names = names if any(names) else ()
    return changed, replace(partition, names=names)


def _read_clients(dataset: Dataset, file: Path) -> Partition:
    """Reads client,index[,name]; clients in the order of their numbers, else of their names."""
    table = read_table(file, ("client", "index"))
    index, client, n = table.whole("index"), table.columns["client"], len(dataset.train)
    outside = f"index {{index}} is outside the training part of {dataset.name}, 0..{n - 1}"
    _refuse(table, (index < 0) | (index >= n), outside)
    _refuse(table, _repeated(index), "index {index} is given twice")
    by_number = all(name.isdecimal() for name in client)
    clients = sorted(dict.fromkeys(client), key=int if by_number else None)
    names = dict(zip(client, table.columns.get("name", client), strict=True))
    labels = tuple(names[c] or c for c in clients)
    plain = labels == tuple(map(str, range(len(labels))))
    owner = np.array(client, dtype=object)
    return Partition(
        train=tuple(dataset.train[index[owner == c]] for c in clients),
        names=() if plain else labels,
    )


def _refuse(table: Table, bad: Array, message: str) -> None:
    """Refuses the first bad row; ``message`` has its cells by their columns' names."""
    if bad.any():
        row = int(bad.argmax())
        cells = {name: column[row] for name, column in table.columns.items()}
        raise DataError(f"{table.where(row)}: {message.format(**cells)}")


def _repeated(numbers: I64) -> Array:
    """(n,) whether a number was there before."""
    again = np.ones(len(numbers), dtype=bool)
    again[np.unique(numbers, return_index=True)[1]] = False
    return again
