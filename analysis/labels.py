"""What runs are called: by the name that the user gave them, else by method and server rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedsim.core.terminal import printable

METHOD = ("algorithm", "server", "margin")
"""Columns that define a method: its clients, and what replaces its server rule or margin."""
LABEL = "label"  # the column with the names of runs
AXIS = "grid: "  # what a column with the names of a grid's rows begins with, before its axis
NAMES = {
    "alpha": "\N{GREEK SMALL LETTER ALPHA}", "num_clients": "clients",
    "sample_rate": "sampling rate", "dataset": "data", "data.partition": "partition",
}  # fmt: skip
"""How figures call columns."""
TITLES: Mapping[str, str] = {
    "fedavg": "FedAvg", "fedprox": "FedProx", "fedbn": "FedBN", "fedpac": "FedPAC",
    "fedgh": "FedGH", "fedld": "FedLD", "fednova": "FedNova", "feddecorr": "FedDecorr",
    "fedld_released": "FedLD (released)", "fedgh_released": "FedGH (released)",
    "simagg": "SimAgg", "regagg": "RegAgg", "robfedavg": "RobFedAvg", "fedsr": "FedSR",
    "scaffold": "SCAFFOLD", "fedcm": "FedCM", "feddyn": "FedDyn", "moon": "MOON",
    "fedadam": "FedAdam", "fedyogi": "FedYogi", "fedadagrad": "FedAdagrad", "fedavgm": "FedAvgM",
    "slowmo": "SlowMo", "fedsam": "FedSAM", "pcgrad": "PCGrad", "fediir": "FedIIR",
    "afl": "AFL", "apfl": "APFL", "ditto": "Ditto", "ifca": "IFCA", "perfedavg": "Per-FedAvg",
    "pfedme": "pFedMe", "qffl": "q-FFL", "fedper": "FedPer", "fedrep": "FedRep",
    "fedbabu": "FedBABU", "lgfedavg": "LG-FedAvg", "fedrod": "FedRoD", "fedala": "FedALA",
    "knnper": "kNN-Per", "pfedla": "pFedLA", "matched_mean": "Matched mean", "local": "Local",
    "centralized": "Centralized",
}  # fmt: skip
"""How each known method is written in a paper."""
HALVES: Mapping[str, tuple[str, str]] = {
    "fedld, margin=none": (
        "Principal aggregation only",
        "FedLD's aggregation of clients that train with cross-entropy alone",
    ),
    "fedld, server=fedavg": (
        "Margin control only", "FedLD's margin control with FedAvg's weighted mean",
    ),
}  # fmt: skip
"""Title and meaning of FedLD's halves, by the label of their runs."""


def with_labels(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of summary.csv with ``label`` last, computed where no name was given."""
    names = table.get(LABEL, pd.Series(index=table.index, dtype=object))
    labels = names.astype(object).where(names.notna(), computed(table))
    return pd.concat([table.drop(columns=LABEL, errors="ignore"), labels.rename(LABEL)], axis=1)


def computed(table: pd.DataFrame) -> pd.Series[str]:
    """The label that each run has without a name."""
    return labels(table, [column for column in METHOD if column in table.columns])


def labels(table: pd.DataFrame, by: Sequence[str]) -> pd.Series[str]:
    """``fedld, margin=none`` of each run, grouped by columns, without settings that it lacks."""
    return table[list(by)].apply(_label, axis=1, names=_short_names(table))


def _label(row: pd.Series[Any], names: Mapping[str, str]) -> str:
    parts = []
    for column, value in row.dropna().items():
        shown = text(value)
        if column in METHOD:
            shown = ",".join(names.get(name, name) for name in shown.split(","))
        section, dot, leaf = str(column).rpartition(".")
        name = f"{names.get(section, section)}{dot}{leaf}"
        parts.append(shown if column in ("algorithm", LABEL) else f"{name}={shown}")
    return ", ".join(parts) or f"no {row.index[0]}"


def _short_names(table: pd.DataFrame) -> dict[str, str]:
    """By ``module:function`` the function's name, or the module's where it is called ``build``."""
    columns = (table[column] for column in METHOD[:2] if column in table.columns)
    cells = {str(cell) for column in columns for cell in column.dropna().unique()}
    short = {}
    for name in (name for cell in cells for name in cell.split(",")):
        module, _, function = name.rpartition(":")
        file = module.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
        short[name] = file.rpartition(".")[2] if file and function == "build" else function
    often = Counter(short.values())
    return {name: shorter for name, shorter in short.items() if often[shorter] == 1}


def text(value: object) -> str:
    """A setting as text: ``0.5``, ``none``, or ``unset`` if the run does not have it."""
    if pd.isna(value):  # type: ignore[call-overload]
        return "unset"
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)


def title_of(label: str) -> str:
    """``FedLD, alpha=0.1`` of ``fedld, alpha=0.1``, ``FedProx + FedGH`` with a server rule."""
    label = label.replace(AXIS, "")
    titles = {**TITLES, **{half: name for half, (name, _) in HALVES.items()}}
    matches = [name for name in titles if f"{label}, ".startswith(f"{name}, ")]
    name = max(matches, key=len, default="")
    rest = label.removeprefix(name)
    server, comma, more = rest.removeprefix(", server=").partition(", ")
    if rest.startswith(", server=") and server in TITLES:
        rest = f" + {TITLES[server]}{comma}{more}"
    return titles.get(name, "") + printable(rest)


def meant(name: str, labels: Iterable[str]) -> str:
    """The label, or the part of labels, that a name stands for; itself without one."""
    possible: list[str] = []
    for label in labels:
        parts = label.split(", ")
        possible += [", ".join(parts[:end]) for end in range(len(parts), 0, -1)] + parts
    folded = {f(part).casefold(): part for f in (str, title_of) for part in reversed(possible)}
    return name if name in possible else folded.get(name.casefold(), name)
