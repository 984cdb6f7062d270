"""What readers of tables share: classes by number, sites and patients by name, parts by row, and
what is learnt: classes, numbers, several labels, or time and event, by columns."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.tables import Table
from fedsim.core.types import I64, Array
from fedsim.data.dataset import OWN_TEST, TEST, TRAIN, VAL, Parts, Raw, Request
from fedsim.data.patients import numbered
from fedsim.data.table_features import level, number, present

PARTS: Mapping[str, int] = {"train": TRAIN, "val": VAL, "test": TEST, "own_test": OWN_TEST}
SURVIVAL = ("time", "event")
"""The columns in place of the target for survival, or where ``data.columns`` names them."""
Where = Callable[[int], str]
"""What messages about a row begin with: "file, row n"."""
Coded = tuple[tuple[str, ...], I64 | None]
"""Names, and the index of each row's; ``((), None)`` where they are not known."""


def of_users(
    source: Path | str, blocks: Mapping[tuple[int, str], tuple[Array, I64]], names: Sequence[str]
) -> Raw:
    """The samples of users with these ``names``, who become sites: x and y by part and user.

    Class names are not set.
    """
    sizes = [len(y) for _, y in blocks.values()]
    code = {user: i for i, user in enumerate(names)}
    return Raw(
        source=source,
        x=np.concatenate([x for x, _ in blocks.values()]),
        y=np.concatenate([y for _, y in blocks.values()]),
        class_names=(),
        parts=np.repeat(np.array([part for part, _ in blocks], dtype=np.int8), sizes),
        site=np.repeat([code[user] for _, user in blocks], sizes),
        site_names=tuple(names),
        sites_are_users=True,
    )


def coded(values: Sequence[Any], where: Where, noun: str) -> tuple[tuple[str, ...], I64]:
    """The sorted values as names, and the index of each row's."""
    for row, value in enumerate(values):
        if value is None or value == "":
            raise DataError(f"{where(row)}: {noun} is empty")
    code = {value: i for i, value in enumerate(sorted(set(values)))}
    return tuple(map(str, code)), np.array([code[value] for value in values], np.int64)


def coded_column(table: Table, column: str) -> Coded:
    """:func:`coded` of a column that a table may have."""
    if column not in table.columns:
        return (), None
    return coded(table.columns[column], table.where, column)


def names_by_number(y: Array, where: Where, remedy: str, noun: str = "label") -> tuple[str, ...]:
    """The names of classes, or sites, that are numbered 0, 1, ...: their numbers."""
    present = np.unique(y)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if len(gaps):
        row = int(y.argmin() if present[0] < 0 else y.argmax())
        missing = "" if present[0] < 0 else f" (there is no {gaps[0]})"
        raise DataError(
            f"{where(row)}: {noun} {y[row]}: they are numbered 0, 1, ... without a gap{missing}, "
            f"{remedy}"
        )
    return tuple(map(str, present.tolist()))


def parts_of_rows(table: Table, column: str, allowed: Sequence[str]) -> Parts | None:
    """The part that a column names for each row; None where the table has no such column."""
    if column not in table.columns:
        return None
    message = f"{{}} is unknown; known are {', '.join(allowed)}"
    names = table.cells(column, allowed.__contains__, message)
    return np.array([PARTS[name] for name in names], dtype=np.int8)


def people(sites: Coded, patients: Coded, parts: Parts | None, where: Where) -> dict[str, Any]:
    """Sites and patients as fields of ``Raw``; refuses a patient with samples in two parts.

    One is known by site and name, and may be in the common test part and in the site's own one.
    """
    (site_names, site), (names, patient) = sites, patients
    if patient is not None and parts is not None:
        common = np.where(parts == OWN_TEST, TEST, parts)
        person = numbered(patient, site)
        _, first, member = np.unique(person, return_index=True, return_inverse=True)
        others = np.flatnonzero(common != common[first[member]])
        if len(others):
            row, before = int(others[0]), int(first[member[others[0]]])
            here, there = (tuple(PARTS)[parts[i]] for i in (row, before))
            raise DataError(
                f"{where(row)}: patient {names[patient[row]]!r} is in part {here}, and in part "
                f"{there} in {where(before)}"
            )
    both = {"patient": patient, "patient_names": names}
    return {"site": site, "site_names": site_names, **both}


def names_of(request: Request) -> dict[str, str]:
    """The columns of the targets by what they are. Several labels or numbers are ``target=a+b``."""
    named, kind = request.columns, request.target
    given = [role for role in SURVIVAL if role in named]
    if len(given) == 1 and kind != "survival":
        (other,) = set(SURVIVAL).difference(given)
        raise ConfigError(f"data.columns.{given[0]}: given without data.columns.{other}")
    if given and request.task is not None and kind != "survival":
        raise ConfigError(f"data.columns.time: given; task {request.task.name} takes a target")
    if given or kind == "survival":
        return {role: named.get(role, role) for role in SURVIVAL}
    whole = named.get("target", "target")
    parts = whole.split("+") if kind in ("labels", "value") else [whole]
    names = parts if all(parts) else [whole]
    return {"target" if k == 0 else f"target {k + 1}": name for k, name in enumerate(names)}


def targets(
    table: Table, columns: Mapping[str, str], request: Request, known: Sequence[str] = ()
) -> tuple[tuple[str, ...], Array]:
    """What each output is called, of classes those ``known`` first, and y as the task has it."""
    names, kind = tuple(columns.values()), request.target
    if "time" in columns:
        time, event = names
        happened = "{} is neither 0 (not seen until then) nor 1 (it happened)"
        table.cells(event, lambda cell: number(cell) in (0.0, 1.0), happened)
        return ("risk",), np.column_stack([_numbers(table, time, 0.0), _numbers(table, event)])
    if kind == "class":
        return _classes(table, names[0], known)
    if kind == "labels":
        for name in names:
            odd = "{} is no label; a label is 0 or 1"
            table.cells(name, lambda cell: number(cell) in (0.0, 1.0), odd)
    elif kind != "value":
        name = request.task.name if request.task else kind
        raise ConfigError(f"task {name}: data set {request.name} has no targets of this kind")
    y = np.column_stack([_numbers(table, name) for name in names])
    return names, y[:, 0] if kind == "value" and len(names) == 1 else y


def _numbers(table: Table, column: str, least: float = -np.inf) -> NDArray[np.float32]:
    """(N,) a column without gaps of finite numbers from ``least`` on."""
    bound = "" if least == -np.inf else f" of at least {least:g}"

    def allowed(cell: str) -> bool:
        value = number(cell)
        return value is not None and value >= least

    cells = table.cells(column, allowed, f"{{}} is no finite number{bound}")
    return np.array(list(map(number, cells)), np.float32)


def _classes(table: Table, column: str, known: Sequence[str]) -> tuple[tuple[str, ...], I64]:
    """The names of the classes, and the class of each row."""
    table.cells(column, present, "the class is missing")
    odd = "{} is no class; classes are whole numbers or names (of numbers: --task regression)"
    cells = table.cells(column, lambda cell: (number(cell) or 0.0).is_integer(), odd)
    levels = [level(cell) for cell in cells]
    classes = [*known, *ordered(set(levels).difference(known))]
    if len(classes) < 2:
        raise DataError(f"{table.file}, column {column}: one class, needed are two")
    code = {name: i for i, name in enumerate(classes)}
    return tuple(classes), np.array([code[name] for name in levels], dtype=np.int64)


def ordered(levels: set[str]) -> list[str]:
    """Numbers ascending, where all are numbers, else texts in the order of their characters."""
    numbers = {name: number(name) for name in levels}
    if None in numbers.values():
        return sorted(levels)
    return sorted(levels, key=lambda name: (numbers[name] or 0.0, name))
