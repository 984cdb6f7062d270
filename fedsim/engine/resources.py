"""What machines have and what clients ask for, counted as Ray counts it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedsim.data.files import read_table, whole_number
from fedsim.errors import ConfigError, DataError

FINEST = 1e-4
"""The smallest fraction of a resource that Ray hands out."""
ONE = 10_000
"""A whole CPU or GPU in units of :data:`FINEST`."""
GIB = 2**30
Refusal = type[ConfigError] | type[DataError]


@dataclass(frozen=True)
class Node:
    """A machine of the cluster: what Ray may hand out of it.

    Args:
        cpus: number of CPUs; 0 on a head node that does no work.
        gpus: number of GPUs.
        name: address or name, for the user.
        accelerator: type of the GPUs, "" where it is not known.
        memory: bytes for processes, infinite where it is not known.
    """

    cpus: float
    gpus: float = 0.0
    name: str = "this machine"
    accelerator: str = ""
    memory: float = math.inf

    def __str__(self) -> str:
        memory = f", {self.memory / GIB:.1f} GiB" if math.isfinite(self.memory) else ""
        return f"{self.name}: {self.cpus:g} CPUs, {self.gpus:g} GPUs{memory}"


@dataclass(frozen=True)
class Share:
    """What one client's actor holds: CPUs, and GPUs up to 1 or a whole number."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus:g} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")


def units(amount: float) -> int:
    """An amount of a resource in units of :data:`FINEST`; Ray cuts off what is finer."""
    return math.floor(amount * ONE + 1e-6)


def check_share(cpus: float, gpus: float, where: Mapping[str, str], error: Refusal) -> None:
    """Refuses what Ray cannot hand out: both are whole above 1, and ``gpus`` alone may be 0.

    Args:
        cpus: of an actor.
        gpus: of an actor.
        where: the flags, or file and columns, that gave ``cpus`` and ``gpus``.
        error: the class to raise.

    Raises:
        FedsimError: an amount that is not finite, negative, finer than :data:`FINEST`, or above 1
            and not whole.
    """
    for name, amount, or_none in (("cpus", cpus, ""), ("gpus", gpus, ", or 0")):
        given = f"{where[name]} {amount:g}"
        if not (math.isfinite(amount) and (amount >= FINEST or (or_none and amount == 0))):
            raise error(f"{given}: must be {FINEST:g} or more{or_none}")
        if amount > 1 and amount != int(amount):
            raise error(
                f"{given}: above 1 it must be whole, such as {math.floor(amount)} or "
                f"{math.ceil(amount)}"
            )


def read_shares(path: Path, num_clients: int) -> dict[int, Share]:
    """The shares of ``engine.client_resources``, by client.

    Args:
        path: CSV file with the columns ``client_id,cpus,gpus``; a row for each client that asks
            for something of its own.
        num_clients: K; ids go from 0 to K - 1.

    Raises:
        DataError: a missing file or column, an id that is unknown or given twice, a number that no
            actor can hold; the message names file and row.
    """
    shares: dict[int, Share] = {}
    for row in read_table(path, ("client_id", "cpus", "gpus")):
        client = whole_number(row.values["client_id"], f"{row.where}: client_id")
        if not 0 <= client < num_clients:
            raise DataError(
                f"{row.where}: client_id {client}, the {num_clients} clients are 0 to "
                f"{num_clients - 1}"
            )
        if client in shares:
            raise DataError(f"{row.where}: client_id {client} is given twice")
        where = {name: f"{row.where}: {name}" for name in ("cpus", "gpus")}
        cpus, gpus = (_number(row.values[name], where[name]) for name in where)
        check_share(cpus, gpus, where, DataError)
        shares[client] = Share(cpus, gpus)
    return shares


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"{where} {text!r} is not a number") from error
