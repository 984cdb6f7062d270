"""Groups of one setting beside those of another: methods share a panel, settings do not."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from analysis.runs import METHOD, Group, text
from analysis.style import TITLES, Line, lines

Facets = Mapping[str, Sequence[Group]]
"""By setting, such as ``alpha = 0.1``: its groups, labelled by method. One key ``""`` for all."""
NAMES = {
    "alpha": "\N{GREEK SMALL LETTER ALPHA}", "num_clients": "clients",
    "sample_rate": "sampling rate", "dataset": "data", "data.partition": "partition",
}  # fmt: skip


def settings_by(by: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The columns of ``by`` that are settings of the experiment, not of one method."""
    methods = {str(name) for group in groups for name in group.runs["algorithm"]} | set(TITLES)
    return [
        column
        for column in dict.fromkeys(by)
        if column not in METHOD
        and column.partition(".")[0] not in methods
        and not column.startswith("margin")
    ]


def facets(groups: Sequence[Group], columns: Collection[str]) -> Facets:
    """The groups by their values in ``columns``, which leave the labels.

    Where that would leave one group in each facet, all stay together as they are.
    """
    split: dict[str, list[Group]] = {}
    for group in groups:
        values = {c: text(group.runs[c].iloc[0]) for c in columns if c in group.runs.columns}
        gone = {f"{column}={value}" for column, value in values.items()}
        parts = [part for part in group.label.split(", ") if part not in gone]
        title = ", ".join(f"{NAMES.get(c, c)} = {value}" for c, value in values.items())
        split.setdefault(title, []).append(Group(", ".join(parts), group.runs))
    if all(len(inside) == 1 for inside in split.values()) or not columns:
        return {"": groups}
    return split


def drawn(facets: Facets) -> dict[str, Line]:
    """The line of each label of all facets: a group keeps its own where others have no data."""
    return lines([group.label for inside in facets.values() for group in inside])
