"""What is learnt from a table: classes, numbers, several labels, or time and event, by columns."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.core.errors import ConfigError, DataError
from fedsim.core.tables import Table
from fedsim.core.types import I64, Array
from fedsim.data.dataset import Request
from fedsim.data.table_features import level, number, present

SURVIVAL = ("time", "event")
"""The columns in place of the target for survival, or where ``data.columns`` names them."""


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
