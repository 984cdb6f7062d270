"""What readers of tables share: classes by number, sites and patients by name, parts by row."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.core.errors import DataError
from fedsim.core.tables import Table
from fedsim.core.types import I64, Array
from fedsim.data.dataset import OWN_TEST, TEST, TRAIN, VAL, Parts, Raw
from fedsim.data.patients import numbered

PARTS: Mapping[str, int] = {"train": TRAIN, "val": VAL, "test": TEST, "own_test": OWN_TEST}
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
    number = {user: i for i, user in enumerate(names)}
    return Raw(
        source=source,
        x=np.concatenate([x for x, _ in blocks.values()]),
        y=np.concatenate([y for _, y in blocks.values()]),
        class_names=(),
        parts=np.repeat(np.array([part for part, _ in blocks], dtype=np.int8), sizes),
        site=np.repeat([number[user] for _, user in blocks], sizes),
        site_names=tuple(names),
        sites_are_users=True,
    )


def coded(values: Sequence[Any], where: Where, noun: str) -> tuple[tuple[str, ...], I64]:
    """The sorted values as names, and the index of each row's."""
    for row, value in enumerate(values):
        if value is None or value == "":
            raise DataError(f"{where(row)}: {noun} is empty")
    number = {value: code for code, value in enumerate(sorted(set(values)))}
    return tuple(map(str, number)), np.array([number[value] for value in values], np.int64)


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
