"""Groups of runs by the settings of an experiment: a panel of a figure or a part of a page each."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from .labels import AXIS, LABEL, METHOD, NAMES, TITLES, text
from .runs import Group
from .units import ExperimentalUnit

Facets = Mapping[str, Sequence[Group]]
"""Groups labelled by method, by setting such as ``alpha = 0.1``; "" is the key if not split."""


def settings_by(by: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """The columns of ``by`` that are settings of the experiment rather than of a method."""
    methods = {str(name) for group in groups for name in group.runs["algorithm"]} | {*TITLES}
    return [
        column
        for column in dict.fromkeys(by)
        if column not in (LABEL, *METHOD)
        and column.rpartition(".")[0] not in methods
        and not column.startswith("margin")
    ]


def facets(groups: Sequence[Group], columns: Collection[str]) -> Facets:
    """Splits the groups by their values in ``columns``, which are removed from the labels."""
    split: dict[str, list[Group]] = {}
    for group in groups:
        values = {c: text(group.runs[c].iloc[0]) for c in columns if c in group.runs.columns}
        gone = {f"{column}={value}" for column, value in values.items()}
        parts = [part for part in group.label.split(", ") if part not in gone]
        title = ", ".join(
            f"{NAMES.get(c, c.removeprefix(AXIS))} = {value}" for c, value in values.items()
        )
        split.setdefault(title, []).append(replace(group, label=", ".join(parts)))
    if all(len(inside) == 1 for inside in split.values()) or not columns:
        return {"": groups}
    return split


def groups_in(facets: Facets) -> list[Group]:
    """All groups."""
    return [group for inside in facets.values() for group in inside]


def unit_of(facets: Facets) -> ExperimentalUnit:
    """The unit of all groups."""
    return next((group.unit for group in groups_in(facets)), "seed")


def labels_of(by_setting: Mapping[str, Mapping[str, object]]) -> list[str]:
    """All labels of what is by setting and label, in the order of their first setting."""
    return list(dict.fromkeys(label for by_label in by_setting.values() for label in by_label))


def labels_in(facets: Facets) -> list[str]:
    """The labels of all groups, in the order of their first facet."""
    return list(dict.fromkeys(group.label for group in groups_in(facets)))
