"""Reads traces: how fast and how available each client is, round by round."""

import math
from collections.abc import Mapping
from pathlib import Path

from fedsim.core.errors import ConfigError, DataError, nearest
from fedsim.core.tables import TableRow, read_table, whole_number
from fedsim.systems.clock import BOUNDS, TRAITS, Series


def read_trace(
    path: Path, num_clients: int, given: Mapping[str, object] = {}
) -> dict[str, dict[int, Series]]:
    """The traits of all clients over the rounds, by trait and client, from a CSV file with
    ``client_id``, traits, and ``round`` (from 1) where they change; none may be ``given``, too."""
    if not path.is_file():
        raise DataError(f"clock.trace {path}: there is no such file")
    rows = read_table(path, ("client_id",))
    columns = list(rows.columns)
    unknown = [name for name in columns if name not in ("client_id", "round", *TRAITS)]
    traits = [name for name in columns if name in TRAITS]
    if unknown or not traits:
        problem = "no trait"
        if unknown:
            problem = f"unknown column {unknown[0]!r}{nearest(unknown[0], TRAITS)}"
        raise DataError(
            f"{path}: {problem}; the columns are client_id, round (may be missing), and at least "
            f"one of {', '.join(TRAITS)}"
        )
    values: dict[int, dict[int, dict[str, float]]] = {}
    for row in rows:
        client = _whole(row, "client_id", 0, num_clients - 1)
        round = _whole(row, "round", 1, math.inf) - 1 if "round" in columns else 0
        if round in values.setdefault(client, {}):
            raise DataError(f"{row.where}: client_id {client} is given twice for one round")
        values[client][round] = {name: _value(row, name) for name in traits}
    for client in range(num_clients):
        if 0 not in values.get(client, {}):
            raise DataError(f"{path}: no row of client_id {client} for round 1")
    for name in traits:
        if name in given:
            raise ConfigError(f"clock.{name}: {given[name]} given; clock.trace {path} has it too")
    cells = (row.get("availability") for rounds in values.values() for row in rounds.values())
    if "availability" in traits and not any(cells):
        raise DataError(f"{path}: availability is 0 in all rows: no client would ever answer")
    series: dict[str, dict[int, Series]] = {name: {} for name in traits}
    for client, by_round in values.items():
        order = tuple(sorted(by_round))
        for name in traits:
            series[name][client] = Series(order, tuple(by_round[round][name] for round in order))
    return series


def _value(row: TableRow, name: str) -> float:
    text = row.values[name]
    low, high, allowed = BOUNDS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high or math.isinf(value):
        raise DataError(f"{row.where}: {name} {text!r} must be {allowed}")
    return value


def _whole(row: TableRow, name: str, low: int, high: float) -> int:
    value = whole_number(row.values[name], f"{row.where}: {name}")
    if not low <= value <= high:
        bounds = f"{low} or more" if high == math.inf else f"{low} to {high}"
        raise DataError(f"{row.where}: {name} {value} must be {bounds}")
    return value
