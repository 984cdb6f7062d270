"""Partitions that the data or a file decide: sites, users, client lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedsim.contracts import Dataset, Partition
from fedsim.data.files import read_table, whole_number
from fedsim.data.own import of_sites
from fedsim.errors import ConfigError, DataError


def fixed(dataset: Dataset, kind: str, file: Path | None) -> Partition | None:
    """The partition of ``by_site``, ``natural`` or ``files``; None for the kinds that are drawn.

    Raises:
        ConfigError: the data set has no sites, users or lists.
        DataError: a damaged file.
    """
    if kind in ("by_site", "natural"):
        return _by_site(dataset, kind)
    if kind == "files":
        return _listed(dataset) if file is None else _read(dataset, file)
    return None


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
    own = (
        of_sites(part, site, present, some=natural)
        for part in (dataset.train, dataset.val, dataset.test)
    )
    train, val, test = own
    return Partition(train, tuple(dataset.site_names[s] for s in present), val, test)


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
    return Partition(tuple(dataset.clients[name] for name in names), names)


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
    return Partition(tuple(dataset.train[members[c]] for c in clients), () if plain else labels)
